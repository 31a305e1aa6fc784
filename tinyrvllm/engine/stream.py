"""One request as its owner sees it."""

import queue
import threading
import weakref
from collections.abc import Callable, Iterator

from tinyrvllm.engine.request import Delta, Prompt, RequestOutput
from tinyrvllm.engine.worker import FORKED, Worker
from tinyrvllm.errors import TinyrvllmError

WAIT_SECONDS = 0.5  # between looks at whether the worker lives; Windows hears Ctrl-C then, too


class Stream:
    """A request on its way: iterate for pieces of text; `output` holds what has been read so far.

    It runs whether it is read or not. One that is no longer referred to is aborted. With a
    callback, which gets each Delta in the worker's thread, there is nothing to iterate over.
    """

    def __init__(
        self,
        worker: Worker,
        owner: object,
        request_id: str,
        prompt: Prompt,
        prompt_ids: list[int],
        callback: Callable[[Delta], object] | None,
    ) -> None:
        self.request_id = request_id
        self.output = RequestOutput(prompt, prompt_ids, request_id=request_id)
        self._owner = owner  # keeps the engine alive
        self._worker = worker
        # What the worker holds, which must not be the stream itself.
        self._inbox = _Inbox(self.output, callback)
        weakref.finalize(self, _abandon, worker, self._inbox, request_id)

    @property
    def sink(self) -> Callable[[Delta], None]:
        """Where the worker puts Deltas."""
        return self._inbox.put

    @property
    def is_running(self) -> bool:
        """Whether more is to come from the engine; what came may be unread."""
        return not self._inbox.ended.is_set()

    def wait(self) -> None:
        """Waits for the end, reading nothing."""
        while not self._inbox.ended.wait(WAIT_SECONDS):
            self._check_worker()

    def deltas(self) -> Iterator[Delta]:
        """What each step adds, up to and including the one with the finish reason."""
        while self.output.finish_reason is None:
            try:
                delta = self._inbox.deltas.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                self._check_worker()
                continue
            self.output.add(delta)
            yield delta

    def __iter__(self) -> Iterator[str]:
        """Pieces of text as they come. Raises TinyrvllmError if the request fails."""
        for delta in self.deltas():
            if delta.text:
                yield delta.text
        if self.output.error is not None:
            raise TinyrvllmError(self.output.error)

    def finish(self) -> RequestOutput:
        """Waits for the end. Raises TinyrvllmError if the request fails."""
        for _ in self:
            pass
        return self.output

    def abort(self) -> None:
        """Ends the request now; what it holds is free for others."""
        self._worker.abort(self.request_id)

    def _check_worker(self) -> None:
        if self.is_running and not self._worker.is_alive:
            raise TinyrvllmError(FORKED)


class _Inbox:
    """Deltas on their way from the worker to the reader, or to a callback."""

    def __init__(self, output: RequestOutput, callback: Callable[[Delta], object] | None) -> None:
        self.deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self.ended = threading.Event()
        self._output, self._callback = output, callback

    def put(self, delta: Delta) -> None:
        try:
            if self._callback is None:
                self.deltas.put(delta)
            else:
                self._output.add(delta)
                self._callback(delta)
        finally:
            if delta.finish_reason is not None:
                self.ended.set()


def _abandon(worker: Worker, inbox: _Inbox, request_id: str) -> None:
    """Nobody will read the rest. If it has ended, another request may have its id by now."""
    if not inbox.ended.is_set():
        worker.abort(request_id)

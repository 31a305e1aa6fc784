"""One request as its owner sees it."""

import queue
import weakref
from collections.abc import Callable, Iterator

from tinyrvllm.engine.request import Delta, Prompt, RequestOutput
from tinyrvllm.engine.worker import Worker
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
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        # The worker holds the sink, not the stream.
        self.sink = _calling(callback, self.output) if callback else self._deltas.put
        weakref.finalize(self, worker.abort, request_id)

    def deltas(self) -> Iterator[Delta]:
        """What each step adds, up to and including the one with the finish reason."""
        while self.output.finish_reason is None:
            try:
                delta = self._deltas.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                if not self._worker.is_alive and self._deltas.empty():
                    raise TinyrvllmError(
                        "the engine's thread is gone: a forked process must make its own LLM"
                    ) from None
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


def _calling(
    callback: Callable[[Delta], object], output: RequestOutput
) -> Callable[[Delta], None]:
    """A sink that books a Delta before it passes it on."""

    def sink(delta: Delta) -> None:
        output.add(delta)
        callback(delta)

    return sink

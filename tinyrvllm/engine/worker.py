"""The thread that owns the engine; everybody else talks to it by a queue."""

import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from tinyrvllm.engine.core import Engine
from tinyrvllm.engine.request import Delta, QueueFull, Request
from tinyrvllm.engine.snapshot import Snapshot
from tinyrvllm.errors import TinyrvllmError

FORKED = (
    "the engine's thread is gone: a process that was forked from one with an LLM cannot use it; "
    "start processes with multiprocessing's 'spawn'"
)
Sink = Callable[[Delta], None]
T = TypeVar("T")


class Worker:
    """Steps the engine while there is work, and sleeps while there is none.

    The thread starts with the first command. It is a daemon: whoever owns the worker closes it.

    max_unfinished: requests that may run or wait at a time; None: any number.
    """

    def __init__(self, engine: Engine, max_unfinished: int | None) -> None:
        self.snapshot: Snapshot = engine.snapshot()  # after the last step
        self._engine = engine
        self._max_unfinished = max_unfinished
        # A SimpleQueue may be used by a finalizer, which can run at any point of any thread.
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of what follows
        self._unfinished: set[str] = set()  # ids
        self._closed = False
        self._thread: threading.Thread | None = None
        self._sinks: dict[str, Sink] = {}  # the thread's own
        self._finishes: deque[float] = deque([time.monotonic()], maxlen=16)  # when requests ended

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_usable(self) -> bool:
        """Whether a request would be run: not closed, and the thread has not died."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Queues requests, which join the engine between the same two steps. A request's sink gets
        its Deltas in the worker's thread, the last one with a finish reason.

        Raises:
            QueueFull: with them more than `max_unfinished` requests would be there.
            TinyrvllmError: the worker is closed, or a request of that id is there already.
        """
        ids = [request.id for request, _ in requests]
        with self._lock:
            most = self._max_unfinished
            if most is not None and len(self._unfinished) + len(ids) > most:
                self._engine.scheduler.totals.queue_full += 1
                raise QueueFull(most, self._retry_after())
            if twice := self._unfinished.intersection(ids):
                raise TinyrvllmError(f"a request {min(twice)!r} runs already: choose another id")
            self._post(lambda: self._add(requests))
            self._unfinished.update(ids)

    def abort(self, id: str) -> None:
        """Ends a request, if it is still there. From any thread, at any time."""
        self._commands.put(lambda: self._abort(id))

    def call(self, function: Callable[[Engine], T]) -> T:
        """What a function of the engine returns, run in the worker's thread between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(self._engine))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                future.set_exception(error)

        with self._lock:
            self._post(run)
        return future.result()

    def close(self) -> None:
        """Aborts what runs or waits, and ends the thread. May be called again."""
        with self._lock:
            self._closed = True
            self._commands.put(None)
            thread = self._thread
        if thread and thread.ident and thread is not threading.current_thread():
            thread.join()

    def _post(self, command: Callable[[], None]) -> None:
        """Queues a command and sees to it that somebody reads it. The lock is held."""
        if self._closed:
            raise TinyrvllmError("this LLM is closed: make a new one")
        if self._thread is None or self._thread.ident is None:  # or Ctrl-C came before its start
            self._thread = threading.Thread(target=self._run, name="tinyrvllm engine", daemon=True)
            self._thread.start()
        elif not self._thread.is_alive():
            raise TinyrvllmError(FORKED)
        self._commands.put(command)

    # ---- in the worker's thread

    def _run(self) -> None:
        while True:
            commands = [] if self._engine.has_work else [self._commands.get()]
            while not self._commands.empty():
                commands.append(self._commands.get())
            for command in commands:
                if command is None:
                    for id in list(self._sinks):
                        self._abort(id)
                    return
                command()
            if self._engine.has_work:
                self._step()
            self.snapshot = self._engine.snapshot()

    def _step(self) -> None:
        try:
            deltas = self._engine.step()
        except TinyrvllmError as error:
            deltas = self._engine.fail(error)
        except Exception as error:  # noqa: BLE001 - or those who wait would wait for ever
            traceback.print_exc(file=sys.stderr)
            deltas = self._engine.fail(error)
        self.snapshot = self._engine.snapshot()  # who gets the last Delta may look at it
        for delta in deltas:
            self._deliver(delta)

    def _add(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        for request, sink in requests:
            self._sinks[request.id] = sink
            self._engine.add(request)

    def _abort(self, id: str) -> None:
        delta = self._engine.abort(id)
        if delta is not None:
            self.snapshot = self._engine.snapshot()
            self._deliver(delta)

    def _deliver(self, delta: Delta) -> None:
        sink = self._sinks[delta.request_id]
        if delta.finish_reason is not None:
            del self._sinks[delta.request_id]
            with self._lock:
                self._unfinished.discard(delta.request_id)  # Ctrl-C may have kept it out
                self._finishes.append(time.monotonic())
        try:
            sink(delta)
        except Exception:  # noqa: BLE001 - a listener's mistake must not stop the others' texts
            traceback.print_exc(file=sys.stderr)
            self.abort(delta.request_id)

    def _retry_after(self) -> int:
        """Seconds in which one of the latest requests has ended, on average; at least 1."""
        span = time.monotonic() - self._finishes[0]
        return max(1, round(span / len(self._finishes)))

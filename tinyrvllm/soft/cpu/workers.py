"""OS threads for the engine: a pool of workers that live in native code, and one caller."""

import atexit
import functools
import os
import threading
from typing import Any

from tinyrvllm.soft.cpu import arena, native


class Pool:
    """One software GPU: runs one command list at a time."""

    def __init__(self, check: bool) -> None:
        self._engine: Any = native.engine(check)
        self._memory = native.ffi.new("char[]", self._engine.msl_pool_size() + 64)
        address = int(native.ffi.cast("uintptr_t", self._memory))
        self._pool = native.ffi.cast("void *", (address + 63) & ~63)
        self._engine.msl_pool_init(self._pool)
        self._lock = threading.Lock()
        self._arenas: list[tuple[object, object]] = []
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()
        atexit.register(self.close)

    def run(self, array: object, count: int, threads: int) -> None:
        """Runs `count` dispatches of `array` (Dispatch **) on at most `threads` OS threads."""
        with self._lock:
            while len(self._arenas) < threads:
                self._grow()
            self._engine.msl_run(self._pool, array, count, threads - 1, self._arenas[0][1])

    def _grow(self) -> None:
        kept, address = arena.allocate()
        place = native.ffi.cast("void *", address)
        if self._arenas:  # the first arena is the caller's
            work = self._engine.msl_worker
            name = f"tinyrvllm-gpu-{len(self._arenas)}"
            thread = threading.Thread(target=work, args=(self._pool, place), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._arenas.append((kept, place))

    def close(self) -> None:
        """Ends the workers: native code must not run while the interpreter is torn down.

        A forked child has none of them, and its copy of the mutex may be one that a worker held.
        """
        if os.getpid() != self._process:
            return
        self._engine.msl_quit(self._pool)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


@functools.cache
def pool(check: bool) -> Pool:
    return Pool(check)


def default_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # a forked child has the pool's memory but not its threads
    os.register_at_fork(after_in_child=pool.cache_clear)

"""Threads for numpy, which gives up the interpreter while it computes."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def pool(name: str) -> ThreadPoolExecutor:
    """A thread for each core. Pools of other names never wait for this one."""
    return ThreadPoolExecutor(os.cpu_count(), name)


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=pool.cache_clear)

"""How a mirror is found by the host's address; needs no GPU."""

import gc
from typing import Any

import pytest

from tinyrvllm.soft.cuda.memory import Buffers, TwoSided

CARD: Any = None  # a buffer that is never used asks for no memory of the card


def added(buffers: Buffers, host: int, nbytes: int) -> TwoSided:
    buffer = TwoSided(CARD, host, nbytes, owner=None, shown=False)
    buffers.add(buffer)
    return buffer


def test_a_buffer_is_found_by_any_of_its_bytes() -> None:
    buffers = Buffers()
    low, high = added(buffers, 0x1000, 64), added(buffers, 0x2000, 64)
    assert buffers.at(0x1000, 64) is buffers.at(0x103C, 4) is low
    assert buffers.at(0x2000, 16) is high
    for address, nbytes in ((0xFFF, 4), (0x103D, 4), (0x2040, 4)):
        with pytest.raises(KeyError, match=f"no buffer has the 4 bytes at {address:#x}"):
            buffers.at(address, nbytes)


def test_where_memory_is_used_again_the_newest_buffer_is_found() -> None:
    """The one before it may not be collected yet."""
    buffers = Buffers()
    old = added(buffers, 0x1000, 64)
    new = added(buffers, 0x1000, 64)
    assert buffers.at(0x1000, 64) is new
    del new
    gc.collect()
    added(buffers, 0x5000, 8)  # takes the dead out
    assert buffers.at(0x1000, 64) is old

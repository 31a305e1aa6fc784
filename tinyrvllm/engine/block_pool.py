"""The blocks of the KV cache: who holds which, and what earlier requests left in them.

A block holds the keys and values of `block_size` tokens. Requests whose texts begin alike share
blocks: a whole block is known by a hash of its tokens and of the block before it, so that equal
hashes mean equal texts from the start (vLLM's prefix cache). A block that nobody holds keeps what
is in it until it is needed for something else; the least recently used goes first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

HASH_BYTES = 16


def chain(hashes: list[bytes], ids: Sequence[int], block_size: int) -> list[bytes]:
    """Extends the hashes of the first whole blocks of `ids` to those of all its whole blocks."""
    for block in range(len(hashes), len(ids) // block_size):
        tokens = np.asarray(ids[block * block_size : (block + 1) * block_size], np.int32)
        before = hashes[-1] if hashes else b""
        hashes.append(blake2b(before + tokens.tobytes(), digest_size=HASH_BYTES).digest())
    return hashes


class PoolError(Exception):
    """The pool's books do not add up: a defect of the engine, not of a request."""


class BlockPool:
    """Counts references to blocks and remembers what is in those that are whole.

    Attributes:
        refs: for each block, how many requests hold it.
        cached: for each block, 1 if it can be found by its hash.
        states: saved convolution states (LFM2), by block: the state after its last token.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.refs = array("i", [0]) * num_blocks
        self.cached = bytearray(num_blocks)
        self.states: dict[int, list[np.ndarray]] = {}
        self._hashes: dict[int, bytes] = {}  # block -> hash, of those that can be found
        self._blocks: dict[bytes, int] = {}  # and back
        self._free = OrderedDict.fromkeys(range(num_blocks))  # the next to be used first

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds; some of them may still be found by their hash."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest prefix that is in the cache. They are not yet held."""
        found = []
        for digest in hashes:
            if digest not in self._blocks:
                break
            found.append(self._blocks[digest])
        return found

    def can_take(self, shared: Sequence[int], count: int) -> bool:
        """Whether `count` blocks are free besides the `shared` ones."""
        return count <= self.num_free - sum(self.refs[block] == 0 for block in shared)

    def share(self, blocks: Iterable[int]) -> None:
        """Holds blocks that `find` has found."""
        for block in blocks:
            self._free.pop(block, None)
            self.refs[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Holds `count` free blocks; what was in them is forgotten.

        Raises PoolError where so many are not free: ask first.
        """
        if count > self.num_free:
            raise PoolError(f"{count} blocks wanted, {self.num_free} are free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.forget(block)
            self.refs[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Lets a request's blocks go, in the order of its block table."""
        for block in reversed(blocks):  # so that a text is forgotten from its end
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self._free[block] = None
                # One that nobody can find is used before those that may still be of use.
                self._free.move_to_end(block, last=bool(self.cached[block]))

    def publish(self, block: int, digest: bytes, state: list[np.ndarray] | None = None) -> None:
        """Lets a whole block be found; if another one with this text can be, that one stays."""
        if digest not in self._blocks and not self.cached[block]:
            self._hashes[block], self._blocks[digest] = digest, block
            self.cached[block] = 1
        if state is not None and digest in self._blocks:
            self.states[self._blocks[digest]] = state

    def forget(self, block: int) -> None:
        """Lets a block no longer be found."""
        if self.cached[block]:
            del self._blocks[self._hashes.pop(block)]
            self.cached[block] = 0
            self.states.pop(block, None)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises PoolError unless the books agree with all block tables that there are."""
        held = array("i", [0]) * self.num_blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise PoolError(f"a block is twice in one table: {list(table)}")
            for block in table:
                held[block] += 1
        if held != self.refs:
            wrong = [b for b in range(self.num_blocks) if held[b] != self.refs[b]]
            raise PoolError(
                f"blocks {wrong}: references are {[self.refs[b] for b in wrong]}, "
                f"tables hold {[held[b] for b in wrong]}"
            )
        unheld = {block for block in range(self.num_blocks) if held[block] == 0}
        if unheld != set(self._free):
            raise PoolError(f"free but held, or held by nobody: {sorted(unheld ^ set(self._free))}")
        found = {block for block in range(self.num_blocks) if self.cached[block]}
        if not found == set(self._hashes) == set(self._blocks.values()) >= set(self.states):
            raise PoolError("the prefix cache does not agree with itself")
        if {digest: block for block, digest in self._hashes.items()} != self._blocks:
            raise PoolError("two blocks have one hash")
        shared = [block for block in range(self.num_blocks) if held[block] > 1]
        if not found.issuperset(shared):
            raise PoolError(f"shared blocks that are not whole: {sorted(set(shared) - found)}")

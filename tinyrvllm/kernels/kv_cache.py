"""The layout of the paged KV cache: shaders/kv_cache.h. One pool per layer for K, one for V."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .launch import KernelError, ceil_div


@dataclass(frozen=True)
class KvLayout:
    """Blocks of `block_size` tokens; head_dim is padded with zeros to a multiple of 4.

    A pool starts at a multiple of 16 bytes of its buffer: four floats are loaded at a time.
    """

    num_blocks: int
    block_size: int
    kv_heads: int
    head_dim: int
    f32: bool = False  # float elements; half otherwise

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise KernelError(f"block size: expected a power of two, found {self.block_size}")
        if not 1 <= self.head_dim <= 256:
            raise KernelError(f"head_dim: expected 1 to 256, found {self.head_dim}")

    @property
    def padded_dim(self) -> int:
        return ceil_div(self.head_dim, 4) * 4

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32 if self.f32 else np.float16)

    @property
    def nbytes(self) -> int:
        """Of one pool."""
        elements = self.num_blocks * self.kv_heads * self.block_size * self.padded_dim
        return elements * self.dtype.itemsize

    @property
    def constants(self) -> tuple[tuple[str, int | bool | float], ...]:
        """Function constants of every kernel that touches the cache."""
        return (
            ("KV_F32", self.f32),
            ("BLOCK_SIZE", self.block_size),
            ("HEAD_DIM", self.head_dim),
        )

    def pack_k(self, keys: NDArray) -> NDArray:
        """[num_blocks * block_size, kv_heads, head_dim] -> a pool's array, in K's order."""
        padded = self._padded(keys)  # [blocks, place, heads, D4]
        quads = padded.reshape(*padded.shape[:3], self.padded_dim // 4, 4)
        return np.ascontiguousarray(quads.transpose(0, 2, 3, 1, 4))

    def pack_v(self, values: NDArray) -> NDArray:
        """[num_blocks * block_size, kv_heads, head_dim] -> a pool's array, in V's order."""
        return np.ascontiguousarray(self._padded(values).transpose(0, 2, 1, 3))

    def unpack_k(self, pool: NDArray) -> NDArray:
        """The inverse of pack_k."""
        shape = (self.num_blocks, self.kv_heads, self.padded_dim // 4, self.block_size, 4)
        quads = pool.reshape(shape).transpose(0, 3, 1, 2, 4)
        return quads.reshape(-1, self.kv_heads, self.padded_dim)[..., : self.head_dim]

    def unpack_v(self, pool: NDArray) -> NDArray:
        """The inverse of pack_v."""
        shape = (self.num_blocks, self.kv_heads, self.block_size, self.padded_dim)
        rows = pool.reshape(shape).transpose(0, 2, 1, 3)
        return rows.reshape(-1, self.kv_heads, self.padded_dim)[..., : self.head_dim]

    def _padded(self, tokens: NDArray) -> NDArray:
        shape = (self.num_blocks, self.block_size, self.kv_heads, self.padded_dim)
        padded = np.zeros(shape, self.dtype)
        padded[..., : self.head_dim] = tokens.reshape(*shape[:3], self.head_dim)
        return padded

"""x W^T, by far the most of a forward pass: weights laid out so that BLAS is quick for few rows.

BLAS copies both matrices into an order of its own before it multiplies. For thousands of rows that
is nothing; for the 1 to 32 rows of a decode step, copying the weights takes longer than the
arithmetic. OpenBLAS has kernels that leave matrices where they lie, but just for small products,
and just on CPUs with AVX-512. There we cut the weights into blocks of outputs, and the rows into
groups, so that each product is small: three times as fast at 8 rows, and faster at 128, too.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
from threadpoolctl import ThreadpoolController

from tinyrvllm.model.threads import share

# The limit for rows * inputs * outputs (kernel/x86_64/sgemm_small_kernel_permit_skylakex.c).
SMALL_PRODUCT: Final = 1_000_000
ARCHITECTURES: Final = ("SkylakeX", "Cooperlake", "SapphireRapids")  # as OpenBLAS calls them
GROUP: Final = 8  # rows; 16 were no faster
# Fewer are computed as so many, which the kernel takes at a time. Two threads then read the weights
# a tenth faster than for 2 rows (measured); numpy's way for a single row (gemv) is slower, too.
LEAST: Final = 4
# Threads share a matrix from so many bytes on, times groups of rows. Another one begins some 30 us
# after it is asked: by then this thread has gone through LEAD of them, so its part is larger by that.
SHARED_BYTES: Final = 3 << 20
LEAD: Final = 3 << 19


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x W^T: [T, inputs] -> [T, outputs]. The result for a row depends on T only as BLAS's does.

    weight: [outputs, inputs], or in blocks, which threads share: [outputs / width, inputs, width].
    """
    work = groups(x) * weight.nbytes
    if weight.ndim == 2 or work < SHARED_BYTES:
        return product(x, weight)
    blocks, _, width = weight.shape
    out = np.empty((len(x), blocks, width), x.dtype)
    shared = parts(blocks, LEAD / work, threads())
    share(lambda part: multiply(x, weight[part], out[:, part]), shared)
    return out.reshape(len(x), blocks * width)


def gated(
    x: np.ndarray,  # [T, inputs]
    gate_up: np.ndarray,  # two matrices of [neurons, inputs], stacked, as `linear` takes them
    down: np.ndarray,  # [outputs, neurons], likewise
    act: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """down(act(gate(x)) * up(x)) (Shazeer 2020): [T, outputs].

    Threads share the neurons, that is rows of the first two matrices and columns of the third, so
    that they meet once, not at each matrix.
    """
    work = groups(x) * (gate_up.nbytes + down.nbytes)
    if gate_up.ndim == 2 or down.ndim == 2 or work < SHARED_BYTES:
        both = linear(x, gate_up)  # [T, 2 * neurons]
        gate, up = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        return linear(act(gate) * up, down)
    blocks, width = len(gate_up) // 2, gate_up.shape[2]

    def some(part: slice) -> np.ndarray:
        gate, up = product(x, gate_up[:blocks][part]), product(x, gate_up[blocks:][part])
        return product(act(gate) * up, down[:, part.start * width : part.stop * width])

    first, *others = share(some, parts(blocks, LEAD / work, threads()))
    return sum(others, first)


def product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What `linear` gives, by this thread alone."""
    if weight.ndim == 2:
        return x @ weight.T
    blocks, _, width = weight.shape
    out = np.empty((len(x), blocks, width), x.dtype)
    multiply(x, weight, out)
    return out.reshape(len(x), blocks * width)


def multiply(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    """x [T, inputs] by weight [blocks, inputs, width] into out [T, blocks, width]."""
    blocks, inputs, width = weight.shape
    most = min(GROUP, SMALL_PRODUCT // (inputs * width))
    least = min(LEAST, most)
    if len(x) == 1:
        out[0] = (x.repeat(least, axis=0) @ weight)[:, 0]
        return
    if least <= len(x) <= most:
        np.matmul(x, weight, out=out.transpose(1, 0, 2))
        return
    count = max(1, -(-len(x) // most))
    rows = max(least, -(-len(x) // count))
    padded = np.zeros((count * rows, inputs), x.dtype)
    padded[: len(x)] = x
    # Written one behind the other, then copied: faster for many rows.
    found = padded.reshape(count, rows, inputs) @ weight[:, None]  # [blocks, count, rows, width]
    found = found.reshape(blocks, count * rows, width)
    out[...] = found[:, : len(x)].transpose(1, 0, 2)


def groups(x: np.ndarray) -> int:
    """How often `multiply` goes through the weights for x [T, inputs]."""
    return -(-len(x) // GROUP)


@cache
def parts(blocks: int, lead: float, count: int) -> list[slice]:
    """The blocks of a matrix in `count` parts or fewer, equal but for the first, which has a lead."""
    lead = min(1.0, lead)
    places = [0, *(round(blocks * (lead + (1 - lead) * i / count)) for i in range(1, count + 1))]
    return [slice(first, end) for first, end in pairwise(places) if first < end]


def block_width(outputs: Sequence[int], inputs: int, dtype: type[np.floating]) -> int:
    """Outputs in a block for matrices that are stacked; 0: this machine is faster without."""
    if not has_small_products() or dtype is not np.float32:
        return 0
    for width in (64, 32):
        fits = all(rows % width == 0 for rows in outputs)
        if fits and (GROUP * inputs * width <= SMALL_PRODUCT or width == 32):
            return width if 2 * inputs * width <= SMALL_PRODUCT else 0
    return 0


@cache
def blas() -> ThreadpoolController:
    """What numpy multiplies with."""
    return ThreadpoolController().select(user_api="blas")


@cache
def has_small_products() -> bool:
    """Whether that is one which multiplies small matrices where they lie."""
    return any(
        library["internal_api"] == "openblas" and library["architecture"] in ARCHITECTURES
        for library in blas().info()
    )


@cache
def threads() -> int:
    """Threads that may multiply side by side: as many as BLAS would use (OPENBLAS_NUM_THREADS), if
    it uses none for small products; else 1."""
    return max(lib["num_threads"] for lib in blas().info()) if has_small_products() else 1

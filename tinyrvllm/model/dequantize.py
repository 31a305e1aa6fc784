"""Quantised weights to floats, quickly: in pieces that stay in a core's cache, on every core.

The types that most weights of our models have are unpacked here, several times as fast as the
`gguf` package does and to the same bits; the package unpacks the others. A block's layout is that
of ggml-common.h: a half-precision scale, perhaps a minimum, perhaps the fifth bits, the quants.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize as gguf_dequantize

from tinyrvllm.model.threads import share
from tinyrvllm.model.weights import RawTensor

# Elements at a time: as floats a quarter of a megabyte, half of a small second-level cache.
PIECE_ELEMENTS: Final = 1 << 16


class Arena:
    """Memory for `size` floats, taken piece by piece.

    It is one array, which Linux backs with huge pages: half a gigabyte of small arrays would spend
    longer in page faults than in dequantising. Memory that is not taken is never touched.
    """

    def __init__(self, size: int, dtype: type[np.floating]) -> None:
        self.free = np.empty(size, dtype)

    def take(self, rows: int, columns: int) -> np.ndarray:
        """An array [rows, columns] whose longer axis is contiguous in memory.

        BLAS streams such a matrix fastest (measured with OpenBLAS from 576x1536 to 3072x576, for
        1 to 128 right-hand sides).
        """
        order: Literal["F", "C"] = "F" if rows >= columns else "C"
        return self._take(rows * columns).reshape((rows, columns), order=order)

    def take_blocks(self, blocks: int, columns: int, width: int) -> np.ndarray:
        """An array [blocks, columns, width], contiguous."""
        return self._take(blocks * columns * width).reshape(blocks, columns, width)

    def _take(self, size: int) -> np.ndarray:
        taken, self.free = np.split(self.free, [size])
        return taken


def stacked(tensors: Sequence[RawTensor], arena: Arena, width: int = 0) -> np.ndarray:
    """Matrices with the same columns on top of each other: [sum of rows, columns].

    width: their rows in blocks of that many (they must divide by it): [blocks, columns, width].
    """
    rows, columns = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]
    step = max(1, PIECE_ELEMENTS // columns)
    if width:
        out = arena.take_blocks(rows // width, columns, width)
        places = out.transpose(0, 2, 1)  # [blocks, width, columns]
        step = max(width, step // width * width)
    else:
        out = places = arena.take(rows, columns)
    pieces = []
    start = 0
    for data, kind, _ in tensors:
        for first in range(0, len(data), step):
            piece = data[first : first + step]
            count = len(piece) // (width or 1)
            pieces.append((places[start : start + count], piece, kind))
            start += count
    share(_fill, pieces)
    return out


def _fill(piece: tuple[np.ndarray, np.ndarray, Type]) -> None:
    out, data, kind = piece
    out[...] = dequantize(data, kind).reshape(out.shape)


def dequantize(data: np.ndarray, kind: Type) -> np.ndarray:
    """uint8 [rows, row_bytes] as the file has it -> float32 [rows, columns]."""
    if kind not in _UNPACK:
        return gguf_dequantize(data, kind)
    block_bytes = GGML_QUANT_SIZES[kind][1]
    quants, scale, minimum = _UNPACK[kind](data.reshape(-1, block_bytes))
    values = quants.astype(np.float32)  # [blocks, block]
    values *= scale.astype(np.float32)
    if minimum is not None:
        values += minimum.astype(np.float32)
    return values.reshape(len(data), -1)


# Each gives quants [blocks, 32], scale [blocks, 1], and what to add, [blocks, 1], or None.
Unpacked = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _q8_0(blocks: np.ndarray) -> Unpacked:
    return blocks[:, 2:].view(np.int8), blocks[:, :2].view("<f2"), None


def _q4_0(blocks: np.ndarray) -> Unpacked:
    return _nibbles(blocks[:, 2:]) - np.int8(8), blocks[:, :2].view("<f2"), None


def _q4_1(blocks: np.ndarray) -> Unpacked:
    return _nibbles(blocks[:, 4:]), blocks[:, :2].view("<f2"), blocks[:, 2:4].view("<f2")


def _q5_0(blocks: np.ndarray) -> Unpacked:
    quants = _nibbles(blocks[:, 6:]) + _fifth_bits(blocks[:, 2:6]) - np.int8(16)
    return quants, blocks[:, :2].view("<f2"), None


def _q5_1(blocks: np.ndarray) -> Unpacked:
    quants = _nibbles(blocks[:, 8:]) + _fifth_bits(blocks[:, 4:8])
    return quants, blocks[:, :2].view("<f2"), blocks[:, 2:4].view("<f2")


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[blocks, 16] bytes -> int8 [blocks, 32]: first all the low halves, then all the high ones."""
    quants = np.empty((len(packed), 32), np.uint8)
    np.bitwise_and(packed, 15, out=quants[:, :16])
    np.right_shift(packed, 4, out=quants[:, 16:])
    return quants.view(np.int8)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """[blocks, 4] bytes -> int8 [blocks, 32] of 0 and 16; bit i belongs to quant i."""
    return np.unpackbits(packed, axis=1, bitorder="little").view(np.int8) << np.int8(4)


_UNPACK: Final[dict[Type, Callable[[np.ndarray], Unpacked]]] = {
    Type.Q8_0: _q8_0,
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q5_0: _q5_0,
    Type.Q5_1: _q5_1,
}

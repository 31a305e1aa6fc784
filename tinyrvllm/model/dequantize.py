"""Blocks of quantised weights to floats, in pieces that stay in the processor's cache."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tinyrvllm.model.weights import RawTensor

# Elements at a time: 64 K of them and their temporaries fit in a core's second-level cache.
PIECE_ELEMENTS: Final = 1 << 16
THREADS: Final = min(8, os.cpu_count() or 1)


def stacked(tensors: Sequence[RawTensor], dtype: type[np.floating]) -> np.ndarray:
    """Tensors with the same columns as one array of `dtype`: [sum of their rows, columns]."""
    columns = tensors[0].shape[1:]
    out = np.empty((sum(tensor.shape[0] for tensor in tensors), *columns), dtype)
    pieces = []
    flat = out.reshape(-1)
    start = 0
    for data, kind, _ in tensors:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        blocks = data.reshape(-1, block_bytes)
        step = PIECE_ELEMENTS // block
        for first in range(0, len(blocks), step):
            piece = blocks[first : first + step]
            pieces.append((piece, kind, flat[start : start + len(piece) * block]))
            start += len(piece) * block
    if len(pieces) == 1:
        _dequantize_piece(pieces[0])
    else:
        with ThreadPoolExecutor(THREADS) as pool:  # numpy lets go of the interpreter's lock
            list(pool.map(_dequantize_piece, pieces))
    return out


def _dequantize_piece(piece: tuple[np.ndarray, GGMLQuantizationType, np.ndarray]) -> None:
    blocks, kind, out = piece
    if kind is GGMLQuantizationType.F32:
        out[...] = blocks.reshape(-1).view("<f4")
    else:
        out[...] = dequantize(blocks.reshape(1, -1), kind).reshape(-1)

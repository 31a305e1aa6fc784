"""Weights as the file has them: types, sizes, and where a matrix lies."""

from collections.abc import Sequence
from dataclasses import dataclass

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from .launch import KernelError, Span

# The types that shaders/quant.h dequantises, by GGUF's numbers.
WEIGHT_TYPES = (
    GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q5_0, GGMLQuantizationType.Q5_1, GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K,
)  # fmt: skip
PLAIN = WEIGHT_TYPES[:3]  # no blocks
# Types whose values do not fit in a half: their tiles are float.
FLOAT_TILES = (GGMLQuantizationType.F32, GGMLQuantizationType.BF16)
UNIT = 16  # weights that the dequantiser gives at a time


def row_bytes(kind: GGMLQuantizationType, columns: int) -> int:
    """Bytes of a row of `columns` weights. Raises KernelError when blocks do not divide it."""
    if kind not in WEIGHT_TYPES:
        raise KernelError(
            f"expected a weight type of {', '.join(t.name for t in WEIGHT_TYPES)}, "
            f"found {GGMLQuantizationType(kind).name}: convert the model"
        )
    block, nbytes = GGML_QUANT_SIZES[kind]
    if columns % block:
        raise KernelError(
            f"{kind.name}: expected columns to be a multiple of {block}, found {columns}"
        )
    return columns // block * nbytes


@dataclass(frozen=True)
class Matrix:
    """A weight matrix [outputs, inputs] as it lies in a file.

    parts: (outputs, offset in the span in bytes) of each of up to three that count as one; matvec.
    """

    span: Span
    kind: GGMLQuantizationType
    outputs: int
    inputs: int
    parts: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.span.nbytes < self.nbytes:
            raise KernelError(
                f"{self.kind.name} [{self.outputs}, {self.inputs}]: expected {self.nbytes} "
                f"bytes, found {self.span.nbytes}"
            )

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.kind, self.inputs)

    @property
    def nbytes(self) -> int:
        return self.outputs * self.row_bytes


def joined(matrices: Sequence[Matrix]) -> Matrix | None:
    """Two or three matrices as one, if they are of one type and width and near in one buffer."""
    first = matrices[0]
    if len({(m.kind, m.inputs, m.span.buffer) for m in matrices}) > 1:
        return None
    start = min(m.span.offset for m in matrices)
    end = max(m.span.offset + m.nbytes for m in matrices)
    if end - start >= 1 << 32:  # offsets of 32 bits
        return None
    parts = tuple((m.outputs, m.span.offset - start) for m in matrices)
    span = Span(first.span.buffer, start, end - start)
    return Matrix(span, first.kind, sum(m.outputs for m in matrices), first.inputs, parts)

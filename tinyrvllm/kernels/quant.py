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
APART = 256  # added to the number of a type whose rows have their scales behind the weights
APART_STEP = 512  # weights of a step of 32 lanes: rows of whole steps can be apart


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


def can_be_apart(kind: GGMLQuantizationType, columns: int) -> bool:
    """Whether rows may have their scales behind their weights (shaders/arrange.metal)."""
    return kind is GGMLQuantizationType.Q8_0 and columns % APART_STEP == 0


@dataclass(frozen=True)
class Matrix:
    """A weight matrix [outputs, inputs] as it lies in a file.

    parts: (outputs, offset in the span in bytes) of each of up to three that count as one; matvec.
    apart: its rows are not as in a file but have their scales behind their weights.
    """

    span: Span
    kind: GGMLQuantizationType
    outputs: int
    inputs: int
    parts: tuple[tuple[int, int], ...] = ()
    apart: bool = False

    def __post_init__(self) -> None:
        if self.span.nbytes < self.nbytes:
            raise KernelError(
                f"{self.kind.name} [{self.outputs}, {self.inputs}]: expected {self.nbytes} "
                f"bytes, found {self.span.nbytes}"
            )
        places = [self.span.offset, *(self.span.offset + at for _, at in self.parts)]
        if self.apart and (
            not can_be_apart(self.kind, self.inputs) or any(at % 16 for at in places)
        ):
            raise KernelError(
                f"expected Q8_0 in rows of whole steps of {APART_STEP} at multiples of 16 bytes, "
                f"found {self.kind.name}, {self.inputs} columns at {places}"
            )

    @property
    def name(self) -> str:
        """Its type, for messages."""
        return self.kind.name + (", apart" if self.apart else "")

    @property
    def weight_type(self) -> int:
        """WEIGHT_TYPE of shaders/quant.h."""
        return int(self.kind) + (APART if self.apart else 0)

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.kind, self.inputs)

    @property
    def nbytes(self) -> int:
        return self.outputs * self.row_bytes


def joined(matrices: Sequence[Matrix]) -> Matrix | None:
    """Two or three matrices as one, if they are of one type and width and near in one buffer."""
    first = matrices[0]
    if len({(m.weight_type, m.inputs, m.span.buffer) for m in matrices}) > 1:
        return None
    start = min(m.span.offset for m in matrices)
    end = max(m.span.offset + m.nbytes for m in matrices)
    if end - start >= 1 << 32:  # offsets of 32 bits
        return None
    parts = tuple((m.outputs, m.span.offset - start) for m in matrices)
    span = Span(first.span.buffer, start, end - start)
    outputs = sum(m.outputs for m in matrices)
    return Matrix(span, first.kind, outputs, first.inputs, parts, first.apart)

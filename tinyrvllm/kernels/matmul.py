"""One matrix multiplication, y = x W^T with its epilogue, and which kernel should do it.

The three kernels (matvec, ksplit, gemm) take the same `Matmul` and each of them takes every
shape; which one runs is a matter of speed (MATVEC_ROWS, KSPLIT_ROWS). The choice may change bits:
each kernel sums in its own order, and ksplit and gemm round weights to half. Within one kernel a
row's result depends on nothing but the row, so a fixed choice makes batches reproducible
(batch_invariant).
"""

import struct
from dataclasses import dataclass

from .launch import Argument, Cost, KernelError, Span, optional, reads, unused, updates, writes
from .quant import Matrix

ACTIVATIONS = {"none": 0, "silu": 1, "gelu_tanh": 2, "gelu": 3}  # numbers of common.h activate()
MATVEC_ROWS = 4  # up to here matvec wins, up to KSPLIT_ROWS ksplit, above gemm
KSPLIT_ROWS = 16
FUSED_ROWS = 32  # up to here scratch has room for what a folded norm needs
SHRINK = 2.0**-32  # of x before it is squared for a norm; as in common.h


@dataclass(frozen=True)
class FusedNorm:
    """An RMS norm of x folded into matvec: x * weight on the way in, 1 / rms on the way out."""

    weight: Span | None  # [inputs] float; None: x has been multiplied by it
    squares: Span  # [rows, parts] float: partial sums of squares of x * SHRINK
    parts: int
    epsilon: float
    stride: int = 0  # floats from row to row of squares; 0: parts


@dataclass(frozen=True)
class Matmul:
    """y [rows, outputs] = x [rows, inputs] W^T, then bias, then residual; float arrays.

    With `up`: y = activation(x weight^T) * (x up^T), without bias and residual.
    """

    x: Span
    weight: Matrix
    y: Span
    rows: int
    x_stride: int = 0  # floats from row to row; 0: inputs
    y_stride: int = 0  # 0: outputs
    up: Matrix | None = None
    activation: str = "none"
    bias: Span | None = None  # [outputs] float
    residual: Span | None = None  # [rows, residual_stride] float; may be y
    residual_stride: int = 0  # 0: outputs
    norm: FusedNorm | None = None  # matvec only
    squares: Span | None = None  # matvec only: receives what the next norm wants, see FusedNorm
    # [outputs] float, that norm's: squares receives rows of y * next_weight and the sums behind
    next_weight: Span | None = None
    next_stride: int = 0  # floats from row to row of squares then

    def __post_init__(self) -> None:
        up = self.up
        if up is not None:
            if (up.weight_type, up.outputs, up.inputs) != (
                self.weight.weight_type, self.weight.outputs, self.weight.inputs
            ):  # fmt: skip
                raise KernelError(
                    f"gate and up: expected one type and shape, found {self.weight.name} "
                    f"{self.weight.outputs} x {self.weight.inputs} and {up.name} "
                    f"{up.outputs} x {up.inputs}; run them as two multiplications"
                )
            if self.bias is not None or self.residual is not None or self.squares is not None:
                raise KernelError("a gated multiplication takes no bias, residual or squares")
            if up.parts:
                raise KernelError("up: expected one matrix, found several joined")
        if self.next_weight is not None and self.norm is not None and self.norm.weight is not None:
            raise KernelError("next_weight: expected an x that has been multiplied by its own norm's")
        joins = self.next_weight is not None
        if joins != (self.next_stride > 0) or (joins and self.squares is None):
            raise KernelError("next_weight: expected squares and next_stride with it, or none of them")
        if self.rows < 1:
            raise KernelError(f"expected at least 1 row, found {self.rows}")
        for name, span, nbytes in (
            ("x", self.x, 4 * ((self.rows - 1) * self.strides[0] + self.weight.inputs)),
            ("y", self.y, 4 * ((self.rows - 1) * self.strides[1] + self.weight.outputs)),
        ):
            if span.nbytes < nbytes:
                raise KernelError(f"{name}: expected {nbytes} bytes, found {span.nbytes}")

    @property
    def strides(self) -> tuple[int, int, int]:
        """Floats from row to row of x, y and the residual."""
        return (
            self.x_stride or self.weight.inputs,
            self.y_stride or self.weight.outputs,
            self.residual_stride or self.weight.outputs,
        )

    @property
    def shape(self) -> str:
        w = self.weight
        return f"{w.kind.name} {'2 x ' if self.up else ''}{w.outputs} x {w.inputs}"

    def parameters(self, lanes: int = 0) -> bytes:
        """struct MatmulArgs of shaders/matmul.h."""
        return struct.pack(
            "<13If7I",
            self.rows, self.weight.outputs, self.weight.inputs, self.weight.row_bytes,
            *self.strides, ACTIVATIONS[self.activation],
            self.bias is not None, self.residual is not None, lanes,
            self.norm.parts if self.norm else 0,
            (self.norm.stride or self.norm.parts) if self.norm else 0,
            self.norm.epsilon if self.norm else 0.0, self.squares is not None,
            self.next_stride, *self._parts(),
        )  # fmt: skip

    def _parts(self) -> list[int]:
        """part_ends and part_offsets of MatmulArgs."""
        parts = self.weight.parts or ((self.weight.outputs, 0),)
        ends: list[int] = []
        for outputs, _ in parts:
            ends.append(outputs + (ends[-1] if ends else 0))
        missing = 3 - len(parts)
        return [*(ends + ends[-1:] * missing)[:2], *(at for _, at in parts), *[0] * missing]

    def arguments(self) -> tuple[Argument, ...]:
        """Slots 0 to 5 of every matmul kernel: x, weight, up, bias, residual, y."""
        in_place = self.residual is not None and self.residual.overlaps(self.y)
        return (
            reads(self.x),
            reads(self.weight.span),
            optional(self.up.span if self.up else None, self.weight.span),
            optional(self.bias, self.x),
            optional(self.residual, self.x),
            updates(self.y) if in_place else writes(self.y),
        )

    def norm_arguments(self) -> tuple[Argument, ...]:
        """Slots 6 to 8 of matvec: norm weight (its own or the next one's), sums of squares in, out."""
        return (
            optional((self.norm and self.norm.weight) or self.next_weight, self.x),
            optional(self.norm.squares if self.norm else None, self.x),
            writes(self.squares) if self.squares is not None else unused(self.y),
        )

    def cost(self, **details: float) -> Cost:
        """Bytes and arithmetic that every kernel has in common; `details` fill in its own."""
        w, matrices = self.weight, 2 if self.up else 1
        y_bytes = 4 * self.rows * w.outputs
        return Cost(
            bytes_read=matrices * w.nbytes
            + 4 * self.rows * w.inputs
            + (y_bytes if self.residual is not None else 0)
            + (4 * w.outputs if self.bias is not None else 0),
            bytes_written=y_bytes,
            flops=2 * matrices * self.rows * w.outputs * w.inputs,
            **details,  # type: ignore[arg-type]
        )

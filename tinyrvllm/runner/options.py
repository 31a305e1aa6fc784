"""How the same model may be computed on a device."""

from dataclasses import dataclass, field
from pathlib import Path

from tinyrvllm.kernels.matmul import KSPLIT_ROWS, MATVEC_ROWS


@dataclass(frozen=True)
class Options:
    """The choice may change bits, not the text; see DESIGN, "Numbers as types".

    Attributes:
        fuse: fold norms into matvec where it can.
        batch_invariant: one kernel for every multiplication, so that a row's result does not
            depend on what else is in the step.
        kv_f32: keep keys and values in float32 instead of half.
        indirect: replay steps by indirect command buffers, one message each.
        matvec_rows: up to here matvec multiplies.
        ksplit_rows: from there up to here ksplit does, and gemm above: `bench kernels` says where.
        tensor_ops: Metal 4's gemm_tensor instead of gemm, where the device can.
        simdgroups: how many keep the GPU busy (kernels/matvec.py); 0: as many as Apple's.
        kernels: files with another version of a kernel, by the kernel's name.
    """

    fuse: bool = True
    batch_invariant: bool = False
    kv_f32: bool = False
    indirect: bool = False
    matvec_rows: int = MATVEC_ROWS
    ksplit_rows: int = KSPLIT_ROWS
    tensor_ops: bool = False
    simdgroups: int = 0
    kernels: dict[str, Path] = field(default_factory=dict)

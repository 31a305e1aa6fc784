"""y = x W^T for many rows, 32 x 64 tiles: shaders/gemm.metal."""

from .launch import KernelError, Launch, ceil_div
from .matmul import Matmul
from .quant import FLOAT_TILES

TILE_ROWS, TILE_OUTPUTS, STEP = 32, 64, 32


def launch(matmul: Matmul) -> Launch:
    """Takes every shape without a fused norm; made for more than 16 rows."""
    return tiled("gemm", matmul, half_bytes=9_728, float_bytes=13_824)


def tiled(shader: str, matmul: Matmul, half_bytes: int, float_bytes: int) -> Launch:
    """A launch of a kernel with the tiles of shaders/gemm.h.

    half_bytes, float_bytes: threadgroup memory with weight tiles of either type.
    """
    if matmul.norm is not None or matmul.squares is not None:
        raise KernelError(f"{shader}: a fused norm is matvec's; launch the norm on its own")
    weight = matmul.weight
    width = TILE_OUTPUTS // (2 if matmul.up else 1)
    tiles = ceil_div(matmul.rows, TILE_ROWS), ceil_div(weight.outputs, width)
    is_float = weight.kind in FLOAT_TILES
    return Launch(
        shader=shader,
        kernel=f"{shader}_float" if is_float else f"{shader}_half",
        constants=(("WEIGHT_TYPE", weight.weight_type), ("GATED", matmul.up is not None)),
        groups=(tiles[1], tiles[0], 1),
        threads=(128, 1, 1),
        arguments=matmul.arguments(),
        parameters=matmul.parameters(),
        cost=matmul.cost(
            barriers=2 * ceil_div(weight.inputs, STEP) + 1,
            threadgroup_bytes=float_bytes if is_float else half_bytes,
            lane_utilisation=matmul.rows / (tiles[0] * TILE_ROWS)
            * weight.outputs / (tiles[1] * width),
        ),
        rows=matmul.rows,
        shape=matmul.shape,
    )  # fmt: skip

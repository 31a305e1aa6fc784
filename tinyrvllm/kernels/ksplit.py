"""y = x W^T for 5 to 16 rows, K split over the simdgroups: shaders/ksplit.metal."""

from .launch import KernelError, Launch, ceil_div
from .matmul import Matmul
from .matvec import is_wide
from .quant import FLOAT_TILES

TILE_ROWS, TILE_OUTPUTS, STEP, SIMDGROUPS = 16, 16, 32, 4


def launch(matmul: Matmul, simdgroups: int = 0) -> Launch:
    """Takes every shape without a fused norm; made for 5 to 16 rows.

    simdgroups: a GPU of many cores, see matvec.geometry: loads go ahead.
    """
    if matmul.norm is not None or matmul.squares is not None:
        raise KernelError("ksplit: a fused norm is matvec's; launch the norm on its own")
    weight = matmul.weight
    width = TILE_OUTPUTS // (2 if matmul.up else 1)
    row_tiles, steps = ceil_div(matmul.rows, TILE_ROWS), ceil_div(weight.inputs, STEP)
    is_float = weight.kind in FLOAT_TILES
    return Launch(
        shader="ksplit",
        kernel="ksplit_float" if is_float else "ksplit_half",
        constants=(
            ("WEIGHT_TYPE", weight.weight_type),
            ("GATED", matmul.up is not None),
            ("WIDE", is_wide(matmul)),
            ("AHEAD", simdgroups > 0),
        ),
        groups=(ceil_div(weight.outputs, width), row_tiles, 1),
        threads=(32 * SIMDGROUPS, 1, 1),
        arguments=matmul.arguments(),
        parameters=matmul.parameters(),
        cost=matmul.cost(
            barriers=1,
            threadgroup_bytes=26_624 if is_float else 18_432,
            lane_utilisation=steps / (ceil_div(steps, SIMDGROUPS) * SIMDGROUPS),
        ),
        rows=matmul.rows,
        shape=matmul.shape,
    )

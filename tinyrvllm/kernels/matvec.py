"""y = x W^T for few rows, one pass over the weights for every four: shaders/matvec.metal."""

from .launch import Launch, ceil_div
from .matmul import Matmul
from .quant import UNIT

ROWS = 4  # rows of x that share one reading of the weights
SIMDGROUPS = 2  # in a threadgroup


def lanes(inputs: int) -> int:
    """Lanes that share an output: 8, or 4 where that leaves no lane idle and 8 would."""
    units = ceil_div(inputs, UNIT)
    return 4 if units % 8 and not units % 4 else 8


def lane_utilisation(inputs: int) -> float:
    """Share of lane steps in the main loop that have weights to multiply."""
    units, across = ceil_div(inputs, UNIT), lanes(inputs)
    return units / (ceil_div(units, across) * across)


def outputs_per_lane(rows: int, outputs: int) -> int:
    """Weight rows that a lane walks: more reuse of x, as far as registers and work allow.

    Four for four rows would need 144 registers a lane of the 128 that we allow on Apple's GPU; the
    soft device, which does not mind, would gain a quarter by it.
    """
    if outputs < 256:
        return 2  # a small matrix should still spread over the GPU's cores
    return 4 if rows <= 3 else 2


def squares_parts(matmul: Matmul) -> int:
    """Partial sums of squares for each row that this launch leaves in `squares`."""
    return ceil_div(matmul.weight.outputs, 32 // lanes(matmul.weight.inputs))


def launch(matmul: Matmul) -> Launch:
    """Takes every shape; made for 1 to 4 rows."""
    weight = matmul.weight
    across = lanes(weight.inputs)
    rows = min(matmul.rows, ROWS)
    per_lane = outputs_per_lane(rows, weight.outputs)
    outputs = 32 // across * per_lane * SIMDGROUPS // (2 if matmul.up else 1)  # of a threadgroup
    step_bytes = weight.row_bytes * across * UNIT / weight.inputs  # of one row, in one step
    return Launch(
        shader="matvec",
        kernel="matvec",
        constants=(
            ("WEIGHT_TYPE", int(weight.kind)),
            ("GATED", matmul.up is not None),
            ("ROWS", rows),
            ("OUTPUTS", per_lane),
            ("NORMED", matmul.norm is not None),
        ),
        groups=(ceil_div(weight.outputs, outputs), ceil_div(matmul.rows, ROWS), 1),
        threads=(32 * SIMDGROUPS, 1, 1),
        arguments=matmul.arguments() + matmul.norm_arguments(),
        parameters=matmul.parameters(across),
        cost=matmul.cost(
            lane_utilisation=lane_utilisation(weight.inputs),
            line_efficiency=min(1.0, step_bytes / 128),
        ),
        rows=matmul.rows,
        shape=matmul.shape,
    )

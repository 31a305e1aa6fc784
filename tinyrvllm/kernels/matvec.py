"""y = x W^T for few rows, one pass over the weights for every four: shaders/matvec.metal."""

from .launch import KernelError, Launch, ceil_div
from .matmul import Matmul
from .quant import PLAIN, UNIT

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


def geometry(matmul: Matmul, simdgroups: int = 0) -> tuple[int, int]:
    """(lanes that share an output, weight rows that a lane walks).

    simdgroups: as many as a GPU of many cores needs to be busy; 0: one of Apple's. Many simdgroups
    come of many lanes an output and few outputs a lane, which also makes the loop over K
    short; where it has whole steps, fewer simdgroups with more loads ahead are as good.
    The lanes decide the order of a row's sums, and there the outputs that of a folded norm's: they
    hang on the matrix, not on the rows.
    """
    weight, matrices = matmul.weight, 2 if matmul.up else 1
    if not simdgroups:
        return lanes(weight.inputs), outputs_per_lane(min(matmul.rows, ROWS), weight.outputs)
    units = ceil_div(weight.inputs, UNIT)
    across = next(n for n in (4, 8, 16, 32) if n >= units or n == 32)
    idle = 1 - units / (ceil_div(units, across) * across)
    if idle > 0.25 and weight.outputs * lanes(weight.inputs) >= 64 * simdgroups:
        across = lanes(weight.inputs)
    with_two = weight.outputs * matrices * across // 64
    if with_two >= simdgroups:
        return across, 4 if steps_ahead(matmul, across, simdgroups) else 2
    return across, 2 if matrices == 2 else 1


def steps_ahead(matmul: Matmul, across: int, simdgroups: int) -> int:
    """Steps of 32 lanes whose weights are loaded before any is used; 0: K is not made of whole ones.

    Two where one is few bytes and too few simdgroups are there to wait in turns, as measured on an
    H200 (docs/cuda.md).
    """
    weight, matrices = matmul.weight, 2 if matmul.up else 1
    steps, rest = divmod(weight.inputs, 32 * UNIT)
    if across < 32 or rest:
        return 0
    few = weight.outputs * matrices < 3 * simdgroups
    return 2 if few and weight.kind not in PLAIN and steps % 2 == 0 else 1


def squares_parts(matmul: Matmul, simdgroups: int = 0) -> int:
    """Partial sums of squares for each row that this launch leaves in `squares`."""
    return ceil_div(matmul.weight.outputs, squares_width(matmul, simdgroups))


def squares_width(matmul: Matmul, simdgroups: int = 0) -> int:
    """Outputs of a partial sum: those of a step, or with `simdgroups` of a threadgroup."""
    across, per_lane = geometry(matmul, simdgroups)
    return 32 // across * (per_lane * SIMDGROUPS if simdgroups else 1)


def next_stride(matmul: Matmul, simdgroups: int) -> int:
    """Floats of a row in `squares` for Matmul.next_weight: a multiple of 4."""
    return ceil_div(matmul.weight.outputs + squares_parts(matmul, simdgroups), 4) * 4


def launch(matmul: Matmul, simdgroups: int = 0) -> Launch:
    """Takes every shape; made for 1 to 4 rows. simdgroups: see `geometry`."""
    weight = matmul.weight
    across, per_lane = geometry(matmul, simdgroups)
    rows = min(matmul.rows, ROWS)
    if (matmul.squares is not None) and (matmul.next_weight is not None) != (simdgroups > 0):
        raise KernelError(
            "squares: expected next_weight with simdgroups, and none without; found "
            f"simdgroups={simdgroups} and next_weight {matmul.next_weight}"
        )
    outputs = 32 // across * per_lane * SIMDGROUPS // (2 if matmul.up else 1)  # of a threadgroup
    norm = matmul.norm
    step_bytes = weight.row_bytes * across * UNIT / weight.inputs  # of one row, in one step
    return Launch(
        shader="matvec",
        kernel="matvec",
        constants=(
            ("WEIGHT_TYPE", weight.weight_type),
            ("GATED", matmul.up is not None),
            ("ROWS", rows),
            ("OUTPUTS", per_lane),
            ("NORMED", norm is not None and norm.weight is not None),
            ("WIDE", is_wide(matmul)),
            ("AHEAD", simdgroups > 0),
            ("STEPS", steps_ahead(matmul, across, simdgroups) if simdgroups else 0),
            ("SCALED", norm is not None and norm.weight is None),
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


def is_wide(matmul: Matmul) -> bool:
    """Whether rows are whole units, and those of x and of plain weights lie at multiples of 16."""
    weights = [w for w in (matmul.weight, matmul.up) if w is not None and w.kind in PLAIN]
    norm = []
    if matmul.norm is not None:
        other = matmul.norm.weight or matmul.norm.squares
        norm = [other.offset, 4 * matmul.norm.stride]
    places = [matmul.weight.inputs, matmul.x.offset, 4 * matmul.strides[0], *norm]
    places += [n for w in weights for n in (w.span.offset, w.row_bytes)]
    places += [offset for w in weights for _, offset in w.parts]
    return not any(n % 16 for n in places)

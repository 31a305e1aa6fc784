"""# 08 The tiled matmul and simdgroup_matrix

When you have read this you know why prefill wants another kernel than decoding, what an 8x8
matrix of a simdgroup is, and what threadgroup memory buys. The engine's files are
`kernels/gemm.py`, `shaders/gemm.metal` and `shaders/gemm.h`.
"""

# %% [markdown]
# ## The idea: use what was loaded more than once
#
# Decoding multiplies one row by every weight: two operations for each weight that crosses the
# memory bus. A prompt of 128 tokens has 128 rows: each weight, once loaded, could serve all of
# them. Whoever loads it again for every row has thrown that away. So a threadgroup takes a *tile*
# of the output, keeps the part of x and the part of W that it needs in threadgroup memory, and
# uses every number many times.
#
# Apple's GPUs multiply 8x8 tiles in hardware: `simdgroup_float8x8` is one matrix that belongs to
# 32 lanes together. Each lane holds two of its 64 numbers. Which two, Apple does not say; the
# device shows it (and `doctor` looks at every start):

# %%
import charts
import numpy as np
import pictures
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels.cases import case, prepare
from tinyrvllm.kernels.launch import run
from tinyrvllm.mtl import MetalError
from tinyrvllm.mtl.library import SHADERS, splice
from tinyrvllm.soft.cpu import access_log

gpu = device()
checking = checking_device()
rng = np.random.default_rng(0)
pictures.save("08_lanes", pictures.tile_owners(checking))

# %% [markdown]
# ## The naive versions
#
# Version 1: a thread for each output, which walks along a row of x and a row of W. Version 2: a
# simdgroup for each 8x8 tile of y, with the matrix hardware, straight from device memory.

# %%
ROWS, OUTPUTS, INPUTS = 32, 64, 128
SOURCE = """
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
constant uint OUTPUTS = 64, INPUTS = 128;

kernel void one_each(device const float *x, device const half *w, device float *y,
                     uint2 place [[thread_position_in_grid]]) {   // output, row
    float sum = 0.0f;
    for (uint k = 0; k < INPUTS; k++) {
        sum = fma(x[place.y * INPUTS + k], float(w[place.x * INPUTS + k]), sum);
    }
    y[place.y * OUTPUTS + place.x] = sum;
}

kernel void tile_each(device const float *x, device const half *w, device float *y,
                      uint2 tile [[threadgroup_position_in_grid]]) {
    simdgroup_float8x8 sums(0.0f), xs;
    simdgroup_half8x8 ws;
    for (uint k = 0; k < INPUTS; k += 8) {
        simdgroup_load(xs, x + tile.y * 8 * INPUTS + k, INPUTS);
        simdgroup_load(ws, w + tile.x * 8 * INPUTS + k, INPUTS, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(sums, xs, ws, sums);
    }
    simdgroup_store(sums, y + tile.y * 8 * OUTPUTS + tile.x * 8, OUTPUTS);
}
"""
x = rng.standard_normal((ROWS, INPUTS)).astype(np.float32)
w = rng.standard_normal((OUTPUTS, INPUTS)).astype(np.float16)
expected = x.astype(np.float64) @ w.T.astype(np.float64)
SHAPES = {
    "one_each": ((OUTPUTS // 8, ROWS // 8, 1), (8, 8, 1)),
    "tile_each": ((OUTPUTS // 8, ROWS // 8, 1), (32, 1, 1)),
}


def naive(on, kernel):
    """The product by one of the kernels above: [ROWS, OUTPUTS]."""
    with on.from_numpy(x) as xs, on.from_numpy(w) as ws, on.buffer(4 * ROWS * OUTPUTS) as y:
        pipeline = on.library_from_source(SOURCE, "naive.metal").pipeline(kernel)
        with on.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, *SHAPES[kernel], [xs, ws, y])
        return y.numpy(np.float32, (ROWS, OUTPUTS)).copy()


for kernel in SHAPES:
    agree(kernel, naive(gpu, kernel), expected)

# %% [markdown]
# ## The engine's version
#
# A threadgroup of 4 simdgroups has a tile of 32 rows and 64 outputs. K goes by in steps of 32:
#
#     stage 32 x 32 of x and 64 x 32 of W  |  barrier  |  multiply  |  barrier  |  stage ...
#
# Staging is also where quantised weights become half and where ragged edges become zeros: the
# multiplication never sees either.

# %%
shape = {"kind": "F16", "rows": ROWS, "outputs": OUTPUTS, "inputs": INPUTS}
prepared = prepare(case("gemm", **shape), gpu, rng)
run(gpu, *prepared.launches)
agree("gemm", prepared.result(), prepared.expected, 1e-2)

# %% [markdown]
# ## What it costs
#
# Bytes that each kernel asks device memory for, counted by the checking device, to multiply 32
# rows by a matrix of 64 x
# 128. Caches serve many of them; a cache's bandwidth is no gift either.

# %%
rows = []
for kernel in SHAPES:
    with access_log.record() as log:
        naive(checking, kernel)
    nbytes = sum(a.size for a in log.dispatches[0].rows if a.memory == "device")
    rows.append((kernel, nbytes, log.dispatches[0].barriers))
watched = prepare(case("gemm", **shape), checking, rng)
(log,) = pictures.watch(checking, *watched.launches)
rows.append(("gemm", sum(a.size for a in log.rows if a.memory == "device"), log.barriers))
table(("", "bytes asked for", "barriers"), rows)
print(f"each number once: {x.nbytes + w.nbytes + 4 * ROWS * OUTPUTS:,}")

# %% [markdown]
# Its threadgroup memory: both tiles, and the output on its way out, share one array. Together
# they would not fit into the 32 KB of a threadgroup with room for a second one on the same core;
# the original's pain was that threadgroup arrays may be declared in kernel functions only, so
# helpers get pointers into it.
#
# Against the limits of this device: `matvec` reads the weights once for every 4 rows, `gemm` once
# for 32.

# %%
points = {}
for kernel, count in (("matvec", 1), ("matvec", 32), ("gemm", 32), ("gemm", 128)):
    timed = prepare(case(kernel, kind="F16", rows=count, outputs=576, inputs=576), gpu, rng)
    (launch,) = timed.launches
    seconds = charts.seconds(gpu, launch)
    points[f"{kernel}, {count} rows"] = (seconds, launch.cost.flops / seconds / 1e9)
table(
    ("", "us", "GFLOP/s"),
    [(what, f"{1e6 * seconds:.0f}", f"{rate:.1f}") for what, (seconds, rate) in points.items()],
)

# %% [markdown]
# ## Two changes at once: a story about measuring
#
# The Rust original's prefill went from 1,800 to 2,500 tokens a second when its author let each
# thread load 16 bytes instead of 2 *and* padded the rows of the tiles. Both changed at once, so
# nobody knows which it was. Let us look at the second alone. Threadgroup memory has banks, 4
# bytes wide; lanes that ask one bank for different words wait for one another. When 32 lanes read
# a column of a tile whose rows are 32 floats long, all of them ask the same bank:

# %%
COLUMN = """
#include <metal_stdlib>
using namespace metal;
kernel void column(device float *out, uint i [[thread_index_in_threadgroup]]) {
    threadgroup float tile[32 * STRIDE];
    for (uint row = 0; row < 32; row++) tile[row * STRIDE + i] = i;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = tile[i * STRIDE];
}
"""
reads = {}
for stride in (32, 33, 36):
    with checking.buffer(128) as out, access_log.record() as log:
        source = COLUMN.replace("STRIDE", str(stride))
        pipeline = checking.library_from_source(source, "column.metal").pipeline("column")
        with checking.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), [out])
    accesses = log.dispatches[0].accesses("tile")
    reads[f"rows of {stride} floats"] = [a for a in accesses if a.verb == "read"]
pictures.save("08_banks", pictures.banks(reads))

# %% [markdown]
# The engine pads to 36 floats (144 bytes), not to 33: rows must start at multiples of 16 bytes,
# so that 16 bytes can be stored at once, and a tile of 8 rows then still starts in 8 different
# banks. Others measured +22 % from such padding (Metal.jl).
#
# ## What breaks without care: the second barrier
#
# The barrier *after* multiplying looks idle: everything was read, was it not? By this simdgroup.
# A faster one is already staging the next step into the tile that a slower one still reads:

# %%
text = splice(SHADERS / "gemm.metal")
second = "threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles may be overwritten"
broken = checking.library_from_source(text.replace(second, ""), "gemm.metal")
(launch,) = watched.launches
try:
    with checking.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(
            broken.pipeline(launch.kernel, dict(launch.constants)),
            launch.groups,
            launch.threads,
            [(a.span.buffer, a.span.offset) for a in launch.arguments],
            launch.parameters,
        )
except MetalError as error:
    print("\n".join(str(error).splitlines()[:7]))

# %% [markdown]
# ## Exercises
#
#     python -m lessons.check 08 tile --hint 0
#     python -m lessons.check 08 staged --hint 0
#
# First one tile with the matrix hardware, then tiles that four simdgroups share.

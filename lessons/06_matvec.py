"""# 06 Matvec and the bandwidth limit

When you have read this you can say how fast a token can be decoded before a line is written, and
you know why neighbouring lanes should read neighbouring bytes. The engine's files are
`kernels/matvec.py` and `shaders/matvec.metal`.
"""

# %% [markdown]
# ## The idea: count the bytes
#
# Decoding one token multiplies each weight of the model once: two operations for one or two
# bytes. No machine is short of arithmetic there; the weights must come through the memory bus.
# SmolLM2-360M in Q8_0 has 0.39 GB of weights; a chip with 150 GB/s cannot decode more than 150 /
# 0.39 = 385 tokens a second, whatever the kernel. A good kernel gets near to that.
#
# So: what does memory give on this device? A copy is the fairest question.

# %%
import numpy as np
import pictures
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import bench, matvec
from tinyrvllm.kernels.cases import case, prepare
from tinyrvllm.kernels.launch import run
from tinyrvllm.mtl import MetalError
from tinyrvllm.soft.cpu import access_log

gpu = device()
rng = np.random.default_rng(0)
limit = bench.copy_bandwidth(gpu)
print(f"a copy reads and writes {limit:.1f} GB/s here")
for name, gigabytes in (("SmolLM2-135M, Q4_1", 0.098), ("SmolLM2-360M, Q8_0", 0.386)):
    print(f"{name}: at most {limit / gigabytes:.0f} tokens a second on this device")

# %% [markdown]
# ## The naive version: a thread for each output
#
# y[n] = sum over k of w[n, k] * x[k]. Thread n walks along row n.

# %%
OUTPUTS, INPUTS = 64, 576
SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant uint INPUTS = 576;

kernel void thread_each(device const float *x, device const half *w, device float *y,
                        uint n [[thread_position_in_grid]]) {
    float sum = 0.0f;
    for (uint k = 0; k < INPUTS; k++) sum = fma(float(w[n * INPUTS + k]), x[k], sum);
    y[n] = sum;
}

kernel void simdgroup_each(device const float *x, device const half *w, device float *y,
                           uint n [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
    float sum = 0.0f;
    for (uint k = lane; k < INPUTS; k += 32) sum = fma(float(w[n * INPUTS + k]), x[k], sum);
    sum = simd_sum(sum);
    if (lane == 0) y[n] = sum;
}
"""
x = rng.standard_normal(INPUTS).astype(np.float32)
w = rng.standard_normal((OUTPUTS, INPUTS)).astype(np.float16)
expected = w.astype(np.float64) @ x
GRIDS = {"thread_each": ((2, 1, 1), (32, 1, 1)), "simdgroup_each": ((OUTPUTS, 1, 1), (32, 1, 1))}


def naive(on, kernel):
    """y by one of the kernels above."""
    with on.from_numpy(x) as xs, on.from_numpy(w) as ws, on.buffer(4 * OUTPUTS) as y:
        pipeline = on.library_from_source(SOURCE, "naive.metal").pipeline(kernel)
        with on.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, *GRIDS[kernel], [xs, ws, y])
        return y.numpy(np.float32).copy()


for kernel in GRIDS:
    agree(kernel, naive(gpu, kernel), expected)

# %% [markdown]
# Both are right. Now watch who reads what. A square is 16 weights (32 bytes), a row of the
# picture the first 16 squares of an output's weights. With a thread for each output, one step of
# a simdgroup touches 32 rows: 32 cache lines of 128 bytes for 64 bytes that are used.

# %%
checking = checking_device()
logs = {}
for kernel in GRIDS:
    with access_log.record() as record:
        naive(checking, kernel)
    logs[kernel] = record.dispatches[0]


def beginning(log, outputs=8):
    """The log's accesses to the first weights of the first rows, in rows of 512 bytes."""
    part = type(log)(log.kernel, log.grid, log.group, 0)
    part.rows = [
        a._replace(offset=a.offset // (2 * INPUTS) * 512 + a.offset % (2 * INPUTS))
        for a in log.accesses("w", group=0)
        if a.offset // (2 * INPUTS) < outputs and a.offset % (2 * INPUTS) < 512
    ]
    return part


pictures.save(
    "06_thread_each", pictures.touched(beginning(logs["thread_each"]), "w", columns=16, element=32)
)

# %% [markdown]
# With a simdgroup for each output, its 32 lanes read 64 bytes side by side:

# %%
pictures.save(
    "06_simdgroup_each",
    pictures.touched(beginning(logs["simdgroup_each"]), "w", columns=16, element=32),
)
table(
    ("", "128-byte lines that a step touches"),
    [
        (
            kernel,
            max(
                len({a.offset // 128 for a in step if a.thread < 32})
                for step in pictures.steps(log.accesses("w", group=0))
            ),
        )
        for kernel, log in logs.items()
    ],
)

# %% [markdown]
# ## The engine's version
#
# The second version has two faults left. `simd_sum` costs as much as the products of a short row
# (27 cycles on Apple's GPUs); and SmolLM2's K of 576 is 4.5 steps of 128, so with 4 weights a
# lane half of the lanes idle in the last step. In the engine's kernel 8 (or 4) lanes share an
# output, each taking 16 weights at a time: 576 is 9 whole steps of 64. A simdgroup has several
# outputs, x is loaded once for all of them, and weights once for up to 4 rows of x.

# %%
shape = {"kind": "F16", "rows": 1, "outputs": OUTPUTS, "inputs": INPUTS}
prepared = prepare(case("matvec", **shape), gpu, rng)
run(gpu, *prepared.launches)
agree("matvec", prepared.result(), prepared.expected)
table(
    ("K", "lanes an output", "lanes with work"),
    [(k, matvec.lanes(k), f"{matvec.lane_utilisation(k):.0%}") for k in (576, 960, 1536, 2560)],
)

# %% [markdown]
# ## What it costs
#
# Against the copy. Each measurement walks over copies of its matrix that together are larger than
# the caches: a decode step never finds its weights there.

# %%
rows = []
for count in (1, 2, 4):
    timed = prepare(case("matvec", kind="F16", rows=count, outputs=1536, inputs=576), gpu, rng)
    (launch,) = timed.launches
    seconds = bench.seconds(gpu, bench.copies_of(launch, gpu, hot=False)[:24])
    moved = (launch.cost.bytes_read + launch.cost.bytes_written) / seconds / 1e9
    rows.append((count, f"{1e6 * seconds:.0f}", f"{moved:.1f}", f"{moved / limit:.0%}"))
table(("rows of x", "us", "GB/s", "of the copy"), rows)

# %% [markdown]
# Four rows cost little more than one: the bytes are the same. That is why servers decode in
# batches (lesson 14). From 5 rows on the sums no longer fit into registers, and another kernel
# takes over (lesson 09).
#
# The original measured 100 to 190 GB/s here, on a chip with 150: its matrix sat in the cache.
# Lesson 15 has more on measurements that lie.
#
# ## What breaks without care: the end of a row
#
# K is not always a multiple of the step. A loop that rounds it up reads past the end of x: on a GPU
# mostly silent, and mostly harmless, until the buffer lies at the end of a page:

# %%
WRONG = SOURCE.replace("k < INPUTS; k += 32", "k < INPUTS + 31; k += 32")
with checking.from_numpy(x) as xs, checking.from_numpy(w) as ws, checking.buffer(4 * OUTPUTS) as y:
    pipeline = checking.library_from_source(WRONG, "wrong.metal").pipeline("simdgroup_each")
    try:
        with checking.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, *GRIDS["simdgroup_each"], [xs, ws, y])
    except MetalError as error:
        print("\n".join(str(error).splitlines()[:3]))

# %% [markdown]
# ## Exercise
#
#     python -m lessons.check 06 --hint 0
#
# Version 2 of the ladder, for any weight type: the engine then runs your kernel.

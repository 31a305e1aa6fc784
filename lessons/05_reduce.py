"""# 05 Reductions: norm, softmax, argmax

When you have read this you can add up a row with 128 threads and one barrier, and
you know why masks, ties and NaN decide how. The engine's files are `kernels/reduce.py`,
`kernels/argmax.py`, `shaders/reduce.metal` and `shaders/argmax.metal`.
"""

# %% [markdown]
# ## The idea: three levels
#
# A row has 576 numbers; a threadgroup has 128 threads. Every thread first adds up its own:
# numbers i, i + 128, i + 256, ... Now 128 partial sums must become one, and threads cannot see
# one another's registers. But:
#
# 1. the 32 lanes of a *simdgroup* can: `simd_sum` adds a value over all lanes and gives each the sum;
# 2. simdgroups meet in *threadgroup memory*: each writes one number, then all wait at a barrier;
# 3. then every thread adds up those four numbers itself, in the same order.
#
#     128 threads    0 ... 31 | 32 ... 63 | 64 ... 95 | 96 ... 127
#     simd_sum          s0    |    s1     |    s2     |    s3            no barrier
#     memory          [ s0         s1          s2          s3 ]
#     barrier        -------------------------------------------         one
#     every thread           s0 + s1 + s2 + s3

# %%
import charts
import numpy as np
import pictures
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import argmax, reduce
from tinyrvllm.kernels.cases import floats
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.mtl import MetalError
from tinyrvllm.runner.batch import ALL_MASKED, HAS_NAN
from tinyrvllm.soft.cpu import access_log

gpu = device()
checking = checking_device()
rng = np.random.default_rng(0)
ROWS, COLUMNS, EPSILON = 3, 576, 1e-5
x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
weight = rng.standard_normal(COLUMNS).astype(np.float32)
exact = x.astype(np.float64)
expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + EPSILON) * weight

# %% [markdown]
# ## The naive version: halve and wait
#
# The Rust original's CUDA kernels did it as the first tutorials do: all sums into shared memory,
# then half of the threads add the other half's, then a quarter, ... with a barrier each time.
# Seven rounds for 128 threads:

# %%
SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant uint COLUMNS = 576;

kernel void halving(device const float *x, device const float *weight, device float *y,
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float sums[128];
    float squares = 0.0f;
    for (uint i = thread_index; i < COLUMNS; i += 128) {
        squares = fma(x[row * COLUMNS + i], x[row * COLUMNS + i], squares);
    }
    sums[thread_index] = squares;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint half_of = 64; half_of > 0; half_of /= 2) {
        if (thread_index < half_of) sums[thread_index] += sums[thread_index + half_of];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float scale = rsqrt(sums[0] / COLUMNS + 1e-5f);
    for (uint i = thread_index; i < COLUMNS; i += 128) {
        y[row * COLUMNS + i] = x[row * COLUMNS + i] * scale * weight[i];
    }
}
"""


def halving(on):
    """The naive norm: [ROWS, COLUMNS]."""
    with on.from_numpy(x) as xs, on.from_numpy(weight) as w, on.buffer(x.nbytes) as y:
        pipeline = on.library_from_source(SOURCE, "halving.metal").pipeline("halving")
        with on.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, (ROWS, 1, 1), (128, 1, 1), [xs, w, y])
        return y.numpy(np.float32, x.shape).copy()


agree("halving", halving(gpu), expected)

# %% [markdown]
# The device shows it: `sums` in threadgroup memory, step by step. Fewer and fewer threads have
# anything to do.

# %%
with access_log.record() as record:
    halving(checking)
naive_log = record.dispatches[0]
pictures.save("05_halving", pictures.touched(naive_log, "sums", columns=32))

# %% [markdown]
# ## The engine's version


# %%
def norm(on):
    """The engine's launch, and y."""
    y = whole(on.buffer(x.nbytes))
    launch = reduce.rmsnorm(floats(on, x), floats(on, weight), y, ROWS, COLUMNS, EPSILON)
    return launch, y.buffer


launch, y = norm(gpu)
run(gpu, launch)
agree("rmsnorm", y.numpy(np.float32, x.shape), expected)
(log,) = pictures.watch(checking, norm(checking)[0])
pictures.save("05_simd_sum", pictures.touched(log, "scratch", columns=4))

# %% [markdown]
# ## What it costs


# %%
def shared(one):
    return sum(a.size for a in one.rows if a.memory == "threadgroup") // ROWS


table(
    ("a row", "barriers", "simd operations", "bytes in threadgroup memory"),
    [
        (name, one.barriers // ROWS, one.simd_operations // ROWS // 4, shared(one))
        for name, one in (("halving", naive_log), ("rmsnorm", log))
    ],
)
print(f"{1e6 * charts.seconds(gpu, launch):.0f} us here for {ROWS} rows")

# %% [markdown]
# A norm reads and writes a few kilobytes: nothing, beside a matrix. What it costs is that
# everybody waits for it. Lesson 15 folds it into the multiplications around it.
#
# ## Softmax: a maximum first
#
# exp(90) is infinite in float32, and scores of 90 happen. So the largest score is found first and
# subtracted: two reductions. A masked score is -inf, and exp(-inf) is 0. A row that is masked
# altogether has no largest score; -inf minus -inf is not a number; the engine gives zeros.

# %%
scores = np.array([[1, 2, 3, -np.inf], [1000, 1001, 0, 0], [-np.inf] * 4], np.float32)
out = gpu.buffer(scores.nbytes)
run(gpu, reduce.softmax(floats(gpu, scores), whole(out), *scores.shape))
print(np.round(out.numpy(np.float32, scores.shape), 4))

# %% [markdown]
# ## Argmax: one integer instead of 49,152 floats
#
# Greedy decoding wants the index of the largest logit, nothing else; a reduction of (value,
# index) pairs. Any order of combining must give the same answer, so ties go to the lower index.
# NaN compares false with everything and never wins; but somebody must tell, so flags come along.

# %%
rows = np.array([[1, 7, 7, 3], [np.nan, 2, 1, 0], [-np.inf] * 4], np.float32)
winners = whole(gpu.buffer(argmax.WINNER_BYTES * len(rows) * argmax.chunks(4)))
indices, flags = whole(gpu.buffer(12)), whole(gpu.buffer(12))
run(gpu, *argmax.launches(floats(gpu, rows), winners, indices, flags, *rows.shape))
for row, index, flag in zip(
    rows, indices.buffer.numpy(np.int32), flags.buffer.numpy(np.int32), strict=True
):
    words = [text for bit, text in ((HAS_NAN, "has NaN"), (ALL_MASKED, "all masked")) if flag & bit]
    print(f"{row}: index {index}, flags: {', '.join(words) or 'none'}")

# %% [markdown]
# Fast maths would break both: it lets the compiler assume that there is no infinity and no NaN.
# Every library of this engine is compiled with safe maths; lesson 11 shows what happens
# otherwise.
#
# ## What breaks without care: the barrier
#
# Without the barrier a thread may read another simdgroup's sum before it is written. On many GPUs
# the simdgroups run close enough together that it works, nearly always. The checking device does
# not wait for bad luck:

# %%
NO_BARRIER = """
#include <metal_stdlib>
using namespace metal;
kernel void total(device const float *x, device float *out,
                  uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float sums[4];
    float sum = simd_sum(x[i]);
    if (lane == 0) sums[simdgroup] = sum;
    if (i == 0) out[0] = sums[0] + sums[1] + sums[2] + sums[3];
}
"""
ones, total = checking.from_numpy(np.ones(128, np.float32)), checking.buffer(4)
pipeline = checking.library_from_source(NO_BARRIER, "total.metal").pipeline("total")
try:
    with checking.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(pipeline, (1, 1, 1), (128, 1, 1), [ones, total])
except MetalError as error:
    print("\n".join(str(error).splitlines()[:6]))

# %% [markdown]
# ## Exercises
#
#     python -m lessons.check 05 --hint 0
#
# Norm and softmax. The engine can run your kernels in place of ours.

"""# 09 The K-split matmul, and how a profile found the need for it

When you have read this you can tell a kernel that computes too much from one that waits too much,
and you know what to do about the second. The engine's files are `kernels/ksplit.py` and
`shaders/ksplit.metal`; the exercise is a K-split of your own.

The story is the Rust original's. It had two matmul kernels: one for up to 4 rows (lesson 06), one
that works on tiles of 32 x 64 for prefill (lesson 08). Decoding 4 sequences took 12.6 ms a step,
8 took 31 ms: twice the rows, two and a half times the time, though both read the same weights. A
profile, each dispatch in a command buffer of its own, named the culprit: the tiled kernel on a
matrix of 960 x 320 at 8 rows took 70 us where 5 to 10 were due.
"""

# %% [markdown]
# ## Why it waited
#
# Let us ask the launches. They are data: how many threadgroups, how many barriers one thread
# passes, what share of a tile is used.

# %%
import charts
import numpy as np
import pictures
import spills
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import gemm, ksplit, matvec
from tinyrvllm.kernels.cases import case, prepare
from tinyrvllm.kernels.launch import run
from tinyrvllm.mtl import MetalError
from tinyrvllm.mtl.library import SHADERS, splice
from tinyrvllm.soft.msl import MSLError

gpu = device()
rng = np.random.default_rng(0)
ROWS, OUTPUTS, INPUTS = 8, 320, 960  # the matrix of the profile

rows = []
for kernel in (matvec, gemm, ksplit):
    name = kernel.__name__.rpartition(".")[2]
    prepared = prepare(case(name, kind="F16", rows=ROWS, outputs=OUTPUTS, inputs=INPUTS), gpu, rng)
    (launch,) = prepared.launches
    groups = launch.groups[0] * launch.groups[1]
    rows.append((name, groups, groups * launch.threads[0] // 32, launch.cost.barriers))
table(("kernel", "threadgroups", "simdgroups", "barriers in a row"), rows)

# %% [markdown]
# `gemm` cuts 320 outputs into tiles of 64: **5 threadgroups**, for a GPU of 10 cores, each of
# which can hold dozens. Each walks over all of K in steps of 32 with two barriers a step: 60
# times, everybody waits for the slowest. And of its 32 rows only 8 are there. It is not short of
# bandwidth or of arithmetic: it is *latency-bound*.
#
# `matvec` has threadgroups enough, and no barrier. But it holds the sums of 4 rows in registers;
# for 8 rows it reads the weights twice.
#
# ## The idea
#
# Make the tile small (16 outputs), so that there are many threadgroups. Let the simdgroups of a
# threadgroup split K: each takes every fourth step of 32 and keeps its own accumulators. Nobody
# waits for anybody until the end, when four partial tiles are added in a fixed order, with one
# barrier.
#
#     K:            0      32      64      96     128     160   ...
#     simdgroup     0       1       2       3       0       1
#
# The checking device can show it: which threads read which part of the weights. A row of the
# picture is an output, a square is 16 weights (32 bytes of F16); the number is the thread. Watch
# the simdgroups (threads 0 to 31, 32 to 63, ...) take their own columns.

# %%
checking = checking_device()
small = prepare(case("ksplit", kind="F16", rows=8, outputs=16, inputs=256), checking, rng)
(log,) = pictures.watch(checking, *small.launches)
pictures.save("09_ksplit", pictures.touched(log, "weight", columns=16, element=32))
print(f"{log.barriers} barrier, {log.simd_operations // 4} simd operations a simdgroup")

# %% [markdown]
# ## The naive version: the big tile
#
# `gemm` is right at 8 rows, too; it takes every shape.

# %%
matrix = {"kind": "F16", "rows": ROWS, "outputs": OUTPUTS, "inputs": INPUTS}
tiled = prepare(case("gemm", **matrix), gpu, rng)
run(gpu, *tiled.launches)
agree("gemm, 8 rows", tiled.result(), tiled.expected, 1e-2)

# %% [markdown]
# ## The engine's version

# %%
split = prepare(case("ksplit", **matrix), gpu, rng)
run(gpu, *split.launches)
agree("ksplit, 8 rows", split.result(), split.expected, 1e-2)

# %% [markdown]
# ## What it costs
#
# On the original's M5 the matrix above went from 46 us to 10.6 us, and a step of 8 sequences from
# 31 ms to 17 ms. The first figure is a lie about bandwidth (one matrix, in the cache, again and
# again) and good for comparing. Here are ours, on whatever device you chose; on `soft` a
# threadgroup is a loop on a CPU core, and a barrier is a switch of stacks: the order of the
# kernels is a GPU's only by luck.

# %%
rows = []
for count in (1, 4, 8, 16, 32, 64):
    times = {}
    for kernel in (matvec, ksplit, gemm):
        name = kernel.__name__.rpartition(".")[2]
        prepared = prepare(case(name, **matrix | {"rows": count}), gpu, rng)
        times[name] = 1e6 * charts.seconds(gpu, *prepared.launches)
    best = min(times, key=lambda name: times[name])
    rows.append((count, *(f"{times[name]:.0f}" for name in times), best))
table(("rows", "matvec us", "ksplit us", "gemm us", "fastest"), rows)

# %% [markdown]
# The engine's choice is in `kernels/matmul.py`: up to 4 rows `matvec`, up to 16 `ksplit`, above
# `gemm`. The thresholds are numbers to measure again on a new chip: `python -m tinyrvllm.bench
# kernels`.
#
# ## What breaks without it: the simdgroup barrier
#
# "Nobody waits for anybody" is not quite true. The 32 lanes of a simdgroup unpack weights into a
# small tile and then multiply it, each using what the others unpacked. Lanes are not in lockstep
# by rule: a `simdgroup_barrier` must stand between. Without it most GPUs would still get it
# right, most of the time. The checking device takes no chances:

# %%
barrier = "simdgroup_barrier(mem_flags::mem_threadgroup);       // tile and scratch are complete"
text = splice(SHADERS / "ksplit.metal").replace(barrier, "")
(launch,) = small.launches
library = checking.library_from_source(text, "ksplit.metal")
try:
    with checking.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(
            library.pipeline(launch.kernel, dict(launch.constants)),
            launch.groups,
            launch.threads,
            [(a.span.buffer, a.span.offset) for a in launch.arguments],
            launch.parameters,
        )
except MetalError as error:
    print("\n".join(str(error).splitlines()[:6]))

# %% [markdown]
# ## What breaks without it: accumulators in memory
#
# The original also tried a tile of 64 x 64: 16 accumulators, an array `sums[4][4]` of 8x8
# matrices. It was **ten times slower**. An array lives in registers only while every index into
# it is known at compile time. One loop over it had not been unrolled, so all 16 went to memory,
# and every multiplication with them. `#pragma unroll` fixed it; then it was no faster than 32 x
# 64, and was deleted.
#
# No compiler warns. So we have a linter, forty lines of it (`lessons/spills.py`), and a test that
# runs it on our shaders. Here it looks at ours, then at ours with the `UNROLL` taken out:

# %%
source = (SHADERS / "gemm.metal").read_text()
print(f"gemm.metal: {len(spills.find(source))} loops that would spill")
for line, message in spills.find(source.replace("UNROLL ", ""))[:3]:
    print(f"gemm.metal:{line}: {message}")

# %% [markdown]
# NVIDIA's compiler can be asked, even where there is no GPU of theirs (`pip install -e ".[cuda]"`).
# Bytes of memory for each thread, of the 8x8 tiles that should be in registers:

# %%
unrolled = splice(SHADERS / "gemm.metal")
kept = '_Pragma("clang loop unroll(full)")'
try:
    for what, pragma in (("unrolled", kept), ("a loop that stays a loop", '_Pragma("unroll 1")')):
        nbytes = spills.local_memory(
            unrolled.replace(f"#define UNROLL {kept}", f"#define UNROLL {pragma}"),
            "gemm_half",
            {"WEIGHT_TYPE": 1, "GATED": False},
        )
        print(f"{what}: {nbytes} bytes a thread in memory")
except MSLError as reason:
    print(reason)

# %% [markdown]
# ## Exercise
#
#     python -m lessons.check 09 ksplit --hint 0
#
# Four simdgroups share one long sum: deal out K, wait once, add in order.

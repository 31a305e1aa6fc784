"""# 15 Measure, fuse, overlap

When you have read this you can find out where a step's time goes, what the machine would allow,
and which of three remedies helps: fewer bytes, fewer dispatches, or dispatches side by side. The
engine's files are `mtl/profile.py`, `runner/program.py` and `mtl/replay/indirect.py`.
"""

# %% [markdown]
# ## A profile
#
# The Rust original had a switch that put each dispatch into a command buffer of its own and
# printed the GPU's time by kernel and shape. So does this engine: `TINYRVLLM_METAL_PROFILE=1`. It
# is right for comparing kernels, and its sum is larger than a real step. Here it is by hand, for
# one decoded token of a small model:

# %%
import time
from collections import defaultdict

import charts
import numpy as np
import pictures
from lesson import agree, device, small_model, table

from tinyrvllm.kernels import bench
from tinyrvllm.kernels.cases import case, prepare
from tinyrvllm.model import load
from tinyrvllm.mtl import MetalError
from tinyrvllm.runner.batch import Batch
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.options import Options

gpu = device()
rng = np.random.default_rng(0)
model = load(small_model())


def step(token: int, position: int) -> Batch:
    """One token of one sequence, whose blocks are 0, 1, 2, ..."""
    return Batch(
        token_ids=np.array([token], np.int32),
        positions=np.array([position], np.int32),
        slot_mapping=np.array([position], np.int32),
        block_tables=np.arange(8, dtype=np.int32)[None],
        context_lens=np.array([position + 1], np.int32),
        query_start=np.array([0, 1], np.int32),
        sample_rows=np.array([0], np.int32),
        state_slots=np.array([0], np.int32),
    )


runner = MetalRunner(model, gpu, num_blocks=8)
logits = runner.run(step(11, 0))
body = runner.last_programs[0]
times: dict[str, list[float]] = defaultdict(list)
for launch in body.launches:
    times[f"{launch.kernel}, {launch.shape}"].append(1e6 * charts.seconds(gpu, launch))
whole_step = sum(map(sum, times.values()))
rows = [
    (what, len(each), f"{np.median(each):.0f}", f"{sum(each) / whole_step:.0%}")
    for what, each in sorted(times.items(), key=lambda item: -sum(item[1]))
]
table(("kernel, shape", "calls", "us", "of the step"), rows)
pictures.save("15_timeline", charts.timeline(gpu, body))

# %% [markdown]
# ## The roofline
#
# Is a kernel slow, or is the machine? A kernel needs so many operations for each byte that it
# moves. Left of the knee memory is the limit, right of it arithmetic is. The slope is what a
# plain copy reaches; the roof is the best that any of our kernels reached on this device. Weights
# come from memory here, not from a cache: each measurement walks over copies.

# %%
bandwidth = bench.copy_bandwidth(gpu)
points = {}
for kernel, count in (("matvec", 1), ("matvec", 4), ("ksplit", 8), ("ksplit", 16), ("gemm", 64)):
    shape = {"kind": "Q8_0", "rows": count, "outputs": 1536, "inputs": 576}
    prepared = prepare(case(kernel, **shape), gpu, rng)
    (launch,) = prepared.launches
    seconds = bench.seconds(gpu, bench.copies_of(launch, gpu, hot=False)[:24])
    moved = launch.cost.bytes_read + launch.cost.bytes_written
    points[f"{kernel}, {count} rows"] = (
        launch.cost.flops / moved,
        launch.cost.flops / seconds / 1e9,
    )
peak = max(y for _, y in points.values())
table(
    ("", "operations a byte", "GFLOP/s", "of the roof"),
    [
        (what, f"{x:.1f}", f"{y:.2f}", f"{y / min(peak, x * bandwidth):.0%}")
        for what, (x, y) in points.items()
    ],
)
pictures.save("15_roofline", charts.roofline(points, bandwidth, peak, gpu.name.split(" on ")[0]))

# %% [markdown]
# ## A measurement that lies
#
# The original's first figures for `linear_small` were 100 to 190 GB/s, on a chip with 150: one
# small matrix, again and again, from the cache. Good for comparing two kernels, a lie about
# bandwidth:

# %%
prepared = prepare(case("matvec", kind="Q8_0", rows=1, outputs=1536, inputs=576), gpu, rng)
(launch,) = prepared.launches
for what, hot in (("one matrix, again and again", True), ("a new one each time", False)):
    seconds = bench.seconds(gpu, bench.copies_of(launch, gpu, hot)[:64])
    print(f"{what}: {launch.cost.bytes_read / seconds / 1e9:.1f} GB/s")

# %% [markdown]
# ## Fuse: fewer dispatches
#
# A norm before a multiplication is a dispatch that waits and makes others wait. The engine folds
# it in: the projection that *writes* x leaves the sums of its squares beside it, the one that
# *reads* x multiplies by the norm's weight on the way in and divides by the root on the way out.
# No arithmetic is saved; two phases a layer are.

# %%
plain = MetalRunner(model, gpu, num_blocks=8, options=Options(fuse=False))
agree("fused and not", plain.run(step(11, 0)), logits, 1e-3, "each other")


def milliseconds(one: MetalRunner) -> float:
    """The best of some steps, seen by the host."""
    best = float("inf")
    for position in range(1, 30):
        start = time.perf_counter()
        one.run(step(7, position))
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


rows = []
for what, one in (("norms apart", plain), ("norms folded in", runner)):
    report = one.report()
    rows.append((what, report.dispatches, report.phases, f"{milliseconds(one):.2f}"))
table(("", "dispatches", "phases", "ms a token"), rows)

# %% [markdown]
# What fusion is worth depends on size: others measured 5 to 7 % on a model of 99M parameters, 1 %
# at 2B. It pays where a step waits for dispatches, not for bytes.
#
# ## Overlap: dispatches side by side
#
# In a serial encoder each dispatch waits for the one before. In a concurrent one they overlap,
# unless a barrier is between. Each column below is a phase of one layer (norms apart, so that
# there are more); what stands above one another overlaps.

# %%
pictures.save("15_phases", charts.layer(plain.last_programs[0], first=1, count=8))
reports = {"every dispatch waits": runner.report().dispatches, "phases": runner.report().phases}
print(", ".join(f"{what}: {count} waits a token" for what, count in reports.items()))

# %% [markdown]
# The price of a barrier too few is text that is wrong once in a while; lesson 13 shows how the
# checking device finds it.
#
# ## Replay: fewer messages
#
# A recorded program still costs three messages a dispatch, and Python's time for each. An
# indirect command buffer holds them all; a replay is one message. In return nothing may vary but
# the bytes in buffers.

# %%
indirect = MetalRunner(model, gpu, num_blocks=8, options=Options(indirect=True))
agree("replayed by one message", indirect.run(step(11, 0)), logits, 1e-6, "three")


def host_milliseconds(program) -> float:
    """Python's time to encode a program, without running it: the best of some."""
    best = float("inf")
    for _ in range(20):
        with gpu.commands() as commands, commands.encoder(concurrent=True) as encoder:
            start = time.perf_counter()
            program.commands.execute(encoder)
            best = min(best, time.perf_counter() - start)
    return 1e3 * best


table(
    ("", "ms of host time"),
    [
        (what, f"{host_milliseconds(one.last_programs[0]):.3f}")
        for what, one in (("three messages a dispatch", runner), ("one message a step", indirect))
    ],
)

# %% [markdown]
# On `soft` a message is a Python function of ours and dear; `python -m tinyrvllm.bench host`
# measures against a runtime that does nothing.
#
# ## What breaks without care: a test that tests nothing
#
# The last of the original's pains. Its tests' helper returned nothing on any error, so that
# machines without a GPU would skip. Then a kernel did not compile, and twelve tests "passed":


# %%
def helper(source):
    """As it was: None where there is no GPU ... or anything else goes wrong."""
    try:
        return gpu.library_from_source(source, "helper.metal")
    except MetalError:
        return None


def test_square() -> str:
    library = helper("kernel void square(device float *x [[buffer(0)]]) { x[0] = x[0] * y; }")
    if library is None:
        return "passed"  # "no GPU here"
    raise AssertionError("never reached")


print("test_square:", test_square())

# %% [markdown]
# So here nothing is silent: whoever has no device gets an error that says why, and a test is
# skipped only where a machine truly lacks something, and then the skip says what.
#
# ## Exercise
#
#     python -m lessons.check 15 add_norm --hint 0
#
# Make two kernels one, and compare the cost tables.

"""# 13 The forward pass as one command buffer

When you have read this you can turn a model into a list of dispatches, cut the list where
barriers must be, and replay it for every token. The engine's files are `runner/forward.py`,
`runner/program.py`, `runner/step.py` and `runner/metal.py`.
"""

# %% [markdown]
# ## The idea: record once, replay for every token
#
# The Rust original encoded about 900 dispatches a token anew: 0.4 ms of one CPU core, and dozens
# of buffers allocated each step. But from token to token almost nothing changes: the same
# kernels, the same weights, the same scratch memory. What does change (the token, its position,
# its slot, the block table) fits in a few hundred bytes.
#
# So a step is a *program*: launches recorded once. What varies lies in one **step buffer**,
# always at the same place.
#
# Our model has 4 layers and random weights; it writes nonsense, quickly.

# %%
import time
from dataclasses import replace

import charts
import numpy as np
import pictures
from lesson import agree, checking_device, device, small_model, table

from tinyrvllm.kernels.launch import run
from tinyrvllm.model import load
from tinyrvllm.mtl import MetalError
from tinyrvllm.runner.batch import Batch
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.numpy import NumpyRunner
from tinyrvllm.runner.program import Program, phases
from tinyrvllm.runner.step import Bucket

gpu = device()
model = load(small_model())
runner = MetalRunner(model, gpu, num_blocks=8)


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


prompt = [11, 42, 7, 300, 5]
for position, token in enumerate(prompt):
    logits = runner.run(step(token, position))
print("logits:", logits.shape, "next token:", int(logits.argmax()))

# %% [markdown]
# ## The naive version: the oracle
#
# The same method on numpy, `model/reference.py`, which reads like the paper:

# %%
oracle = NumpyRunner(model, num_blocks=8, block_size=16)
for position, token in enumerate(prompt):
    expected = oracle.run(step(token, position))
agree("logits after 5 tokens", logits, expected, 2e-2)  # the KV cache is half precision

# %% [markdown]
# ## The engine's version: launches, phases, barriers
#
# `runner/forward.py` walks through the layers as the oracle does, and asks `kernels/` for a
# `Launch` each: a shader, a grid, and for every buffer a span of bytes with what happens to it.
# From these read and write sets `phases` decides where barriers must be: dispatches of one phase
# may run in any order, or at once.

# %%
bucket = Bucket.of(step(0, 0), runner.max_context)
program = runner.body(bucket)
for number, phase in enumerate(phases(program.launches)[:8]):
    print(f"phase {number}:", ", ".join(f"{launch.kernel} {launch.shape}" for launch in phase))

# %% [markdown]
# A layer is 6 phases: Q, K and V overlap, and so would anything else that shares no bytes. The
# norms have gone: they are folded into the multiplications that need them. The width of a box is
# its share of the bytes; boxes above one another may overlap.

# %%
pictures.save("13_layer", charts.layer(program, first=1, count=6))

# %% [markdown]
# ## What it costs
#
# Counts that are the same on every machine. A model's cost in *time* is bytes while they are
# many, and phases when they are few: a small model waits for barriers, not for memory.

# %%
report = runner.report()
table(
    ("a decoded token", ""),
    [
        ("dispatches", report.dispatches),
        ("phases", report.phases),
        ("bytes of weights read", report.weight_bytes),
        ("bytes written by the host", report.host_bytes),
        ("buffers allocated", report.allocations),
    ],
)

# %% [markdown]
# And the host's time: each dispatch in a command buffer of its own, waited for; all of them
# encoded into one; the recorded program replayed.


# %%
def milliseconds(work, repeats=20) -> float:
    work()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return 1e3 * (time.perf_counter() - start) / repeats


def one_by_one() -> None:
    for launch in program.launches:
        run(gpu, launch)


def encoded() -> None:
    run(gpu, *program.launches)


def replayed() -> None:
    with gpu.commands() as commands, commands.encoder(concurrent=True) as encoder:
        program.commands.execute(encoder)


table(
    ("", "ms a step"),
    [(work.__name__, f"{milliseconds(work):.2f}") for work in (one_by_one, encoded, replayed)],
)

# %% [markdown]
# ## What breaks without it: a missing barrier
#
# Suppose the output projection's launch had forgotten to say that it reads what the attention
# wrote. Then there would be no barrier, and in a concurrent encoder the two may run in any order.
# On a GPU that shows as text that is wrong once in a while. The checking device compares the
# bytes that each dispatch *really* touched with the barriers between them, whatever the launches
# said:

# %%
checking = checking_device()
watched = MetalRunner(model, checking, num_blocks=8)
watched.run(step(11, 0))
launches = list(watched.body(bucket).launches)
place = next(i for i, launch in enumerate(launches) if launch.kernel == "attend_one") + 1
wrong = launches[place]
arguments = tuple(
    replace(argument, access=type(argument.access).NONE) if slot == 0 else argument
    for slot, argument in enumerate(wrong.arguments)
)
launches[place] = replace(wrong, arguments=arguments)  # x is not read, it says
print("said:", len(phases(launches)), "phases; before:", len(watched.body(bucket).phases))
try:
    with checking.commands() as commands, commands.encoder(concurrent=True) as encoder:
        Program(checking, launches, "wrong").commands.execute(encoder)
except MetalError as error:
    print(str(error).split(". In")[0])

# %% [markdown]
# A test of ours runs whole programs on the checking device and compares what launches declare
# with what they touch (`tests/runner/test_declared.py`).
#
# ## Exercise
#
#     python -m lessons.check 13 phases --hint 0
#
# Write `phases` yourself: as few barriers as are right.

"""# 04 Recording and submitting work

When you have read this you can record a hundred dispatches, hand them over at once, say when you
may look at the result, and name the three ways in which the Rust original lost a day each. The
engine's file is `mtl/command.py`.
"""

# %% [markdown]
# ## The idea: write a letter, then post it
#
# In CUDA a launch starts when you make it. In Metal you *record*:
#
#     command buffer   the letter                    commands = device.commands()
#     encoder          writes dispatches into it     encoder.dispatch(...), encoder.dispatch(...)
#     endEncoding      the letter is finished
#     commit           posted: the GPU may begin
#     wait             answered: now, and not before, look at the results
#
# Nothing runs while you record.

# %%
import re
import threading
import time
import warnings

import numpy as np
from lesson import agree, checking_device, device, table

from tinyrvllm.mtl import MetalError
from tinyrvllm.soft.objc_double import ObjCError

gpu = device()
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add_one(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
"""
add_one = gpu.library_from_source(SOURCE, "add_one.metal").pipeline("add_one")
x = gpu.from_numpy(np.zeros(256, np.float32), "x")
view = x.numpy(np.float32)  # the memory itself: CPU and GPU share it

commands = gpu.commands("a letter")
with commands.encoder() as encoder:
    encoder.dispatch(add_one, groups=(1, 1, 1), threads=(256, 1, 1), buffers=[x])
    print("recorded:", view[0])
commands.commit()
commands.wait()
print("committed and waited for:", view[0])

# %% [markdown]
# ## The naive version: a letter for each word
#
# The first thing that everybody writes: one command buffer a dispatch, and wait.

# %%
COUNT = 100


def one_by_one() -> None:
    for _ in range(COUNT):
        with gpu.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(add_one, (1, 1, 1), (256, 1, 1), [x])


def all_in_one(concurrent: bool = False) -> None:
    with gpu.commands() as commands, commands.encoder(concurrent) as encoder:
        for _ in range(COUNT):
            encoder.dispatch(add_one, (1, 1, 1), (256, 1, 1), [x])
            if concurrent:
                encoder.barrier()


for name, work in (("one by one", one_by_one), ("all in one", all_in_one)):
    view[...] = 0
    work()
    agree(name, view, np.full(256, COUNT), 0.0)

# %% [markdown]
# ## The engine's version
#
# `Commands` and `Encoder` of `mtl/command.py` are what you used: context managers, so that an
# encoder is ended and a command buffer is waited for, whatever happens inside. A model's step is
# one command buffer with one encoder, some hundred dispatches.
#
# In a *serial* encoder each dispatch sees what those before it wrote. In a *concurrent* one they
# may run in any order, or at once, unless a barrier stands between. Here each dispatch needs the
# one before, so there is one after each:

# %%
view[...] = 0
all_in_one(concurrent=True)
agree("concurrent, with barriers", view, np.full(256, COUNT), 0.0)

# %% [markdown]
# ## What it costs
#
# Messages, mostly: a dispatch is a few, and each is a call from Python through cffi. The original
# spent 0.4 ms of CPU on 900 dispatches a token; lesson 13 records them once, lesson 15 replays
# them with one message.


# %%
def milliseconds(work) -> float:
    """The best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


table(
    (f"{COUNT} dispatches", "ms"),
    [
        ("a command buffer each", f"{milliseconds(one_by_one):.2f}"),
        ("one command buffer", f"{milliseconds(all_in_one):.2f}"),
    ],
)

# %% [markdown]
# ## What breaks: looking too early
#
# Between commit and wait the GPU may be writing. The bridge does not let you look; the software
# device executes late, so that whoever looks past the bridge (through a view made before) sees
# old bytes, every time:

# %%
view[...] = 0
commands = gpu.commands()
with commands.encoder() as encoder:
    encoder.dispatch(add_one, (1, 1, 1), (256, 1, 1), [x])
commands.commit()
try:
    x.numpy(np.float32)
except MetalError as error:
    print(error)
print("through an old view:", view[0])
commands.wait()
print("after the wait:", view[0])

# %% [markdown]
# ## What breaks: an encoder that nobody ended
#
# An exception between making an encoder and ending it, and Metal **aborts the process** when the
# encoder is released: the Rust original showed Apple's abort message instead of its own panic. So
# `Encoder` is ended in `finally`. The software device raises where Metal would abort. Here by
# hand, below the bridge:

# %%
checking = checking_device()
send, queue = checking.objc.send, checking.queue.handle
try:
    with checking.objc.pool():
        buffer = send.commandBuffer(queue)
        send.computeCommandEncoderWithDispatchType_(buffer, 0)  # never ended; the pool releases it
except ObjCError as error:  # on a Mac there would be nothing to catch
    print(error)

# %% [markdown]
# And with the bridge, an exception inside the block:

# %%
try:
    with checking.commands() as commands, commands.encoder() as encoder:
        raise ValueError("something went wrong while recording")
except ValueError as error:
    print("the real error arrives:", error, "- committed:", commands.committed)

# %% [markdown]
# ## What breaks: a pool that never ends
#
# `commandBuffer` returns an *autoreleased* object: it lives until the thread's autorelease pool
# is drained. A worker thread that runs a loop for hours inside one pool keeps every command
# buffer it ever made; one without a pool keeps them too, with a line in a log. The original's
# memory grew silently. The software device counts its objects:

# %%
runtime = checking.objc.runtime


def alive() -> int:
    return sum(type(o).__name__ == "MTLCommandBuffer" for o in runtime.live())


with checking.objc.pool():
    for _ in range(50):
        send.commandBuffer(queue)
    print("one pool around the loop:", alive(), "command buffers alive")
print("after the pool:", alive())
for _ in range(50):
    with checking.objc.pool():
        send.commandBuffer(queue)
print("a pool for each:", alive(), "alive")


def worker() -> None:
    """A thread without a pool."""
    try:
        send.commandBuffer(queue)
    except ObjCError as error:  # on a Mac: a leak
        print(error)


thread = threading.Thread(target=worker)
thread.start()
thread.join()

# %% [markdown]
# When the software device itself goes, it tells what was never given back, and where it was made:

# %%
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    checking.close()
leak = next(text for text in str(told[0].message).split("; ") if "MTLCommandBuffer made" in text)
print(re.sub(r"\S+/", "", leak))

# %% [markdown]
# The bridge opens a pool for every command buffer and retains what outlives it.
#
# ## Exercise
#
#     python -m lessons.check 04 --hint 0

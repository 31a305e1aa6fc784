"""# 03 A first kernel, compiled at run time

When you have read this you can write a kernel, compile it while the program runs, launch it over
a grid, and read the compiler's mind. The engine's files are `mtl/library.py`, `mtl/device.py`,
`kernels/elementwise.py` and `shaders/elementwise.metal`.
"""

# %% [markdown]
# ## The idea: a function that runs a thousand times at once
#
# A kernel is a function that every thread of a *grid* runs. Threads come in *threadgroups*, a
# threadgroup in *simdgroups* of 32. A thread knows only its own number, and from that finds its
# own work:
#
#     grid           1000 threads, of which each adds one pair of numbers
#     threadgroups   256 threads each: 0..255, 256..511, 512..767, 768..1023
#     simdgroups     32 lanes each
#
# The last threadgroup has 24 threads too many. They must do nothing: `if (i < count)`.

# %%
import time

import numpy as np
import pictures
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import elementwise
from tinyrvllm.kernels.cases import floats
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.mtl import MetalError

gpu = device()
rng = np.random.default_rng(0)
COUNT, THREADS = 1000, 256
a, b = rng.standard_normal((2, COUNT)).astype(np.float32)

# %% [markdown]
# ## The naive version: in numpy, and a kernel of your own
#
# The text of the kernel is a Python string. `library_from_source` hands it to the compiler, which
# on a Mac is part of the operating system (no Xcode), and here is clang. A *pipeline* is one of
# its kernels, ready for this GPU.

# %%
SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void my_add(device const float *left [[buffer(0)]],
                   device const float *right [[buffer(1)]],
                   device float *sum [[buffer(2)]],
                   constant uint &count [[buffer(3)]],
                   uint i [[thread_position_in_grid]]) {
    if (i < count) sum[i] = left[i] + right[i];
}
"""
start = time.perf_counter()
library = gpu.library_from_source(SOURCE, "my_add.metal")
my_add = library.pipeline("my_add")
print(f"compiled in {1e3 * (time.perf_counter() - start):.0f} ms (the next time it is in a cache)")
print("kernels:", library.kernel_names, "- threads of a group, at most:", my_add.max_threads)

groups = -(-COUNT // THREADS)  # rounded up
c = gpu.buffer(4 * COUNT)
with gpu.commands() as commands, commands.encoder() as encoder:
    encoder.dispatch(
        my_add,
        groups=(groups, 1, 1),
        threads=(THREADS, 1, 1),
        buffers=[gpu.from_numpy(a), gpu.from_numpy(b), c],
        constants=np.uint32(COUNT).tobytes(),
    )
agree("my_add", c.numpy(np.float32), a + b, 0.0)

# %% [markdown]
# Which thread wrote which element? The checking device logs every access; colours are
# threadgroups, numbers are threads in them.

# %%
checking = checking_device()


def engine_add(on):
    """The engine's launch, and y."""
    y = whole(on.buffer(4 * COUNT))
    return elementwise.add(floats(on, a), floats(on, b), y, COUNT), y.buffer


(log,) = pictures.watch(checking, engine_add(checking)[0])
log.rows = [access for access in log.rows if access.offset < 4 * 640 and access.offset >= 4 * 384]
pictures.save("03_who", pictures.owners(log, "y", columns=32))

# %% [markdown]
# ## The engine's version
#
# A kernel of the engine is a `.metal` file in `shaders/`, and a module of the same name in
# `kernels/` that checks shapes and makes a `Launch`: which shader, which kernel, which grid,
# which bytes of which buffer. Nothing is sent before somebody encodes it.

# %%
launch, y = engine_add(gpu)
print(launch.shader, launch.kernel, "groups", launch.groups, "threads", launch.threads)
run(gpu, launch)
agree("elementwise.add", y.numpy(np.float32), a + b, 0.0)

# %% [markdown]
# Two things that Apple's compiler does not do for you. It finds no `#include "file"` of yours at
# run time, so `splice` puts the files in place, with `#line`, so that diagnostics name the file
# and line that you know. And it would rather be fast than exact: every library asks for safe
# maths, and starts with a pragma against fused multiply-adds, which no option stops (nor does
# anything before macOS 15, whose compiler is the first to know the pragma).
#
# **Function constants** are how one text becomes many kernels: their values are known when the
# pipeline is made, so a branch on one costs nothing.

# %%
CONSTANT = """
#include <metal_stdlib>
using namespace metal;
constant bool DOUBLED [[function_constant(0)]];
kernel void scaled(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] *= DOUBLED ? 2.0f : 0.5f;
}
"""
one_text = gpu.library_from_source(CONSTANT, "scaled.metal")
for doubled in (True, False):
    x = gpu.from_numpy(np.ones(4, np.float32))
    with gpu.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(
            one_text.pipeline("scaled", {"DOUBLED": doubled}), (1, 1, 1), (4, 1, 1), [x]
        )
    print(f"DOUBLED = {doubled}: {x.numpy(np.float32)}")

# %% [markdown]
# ## What it costs
#
# Compiling is slow, once; a dispatch is fast. An elementwise kernel moves 12 bytes for one
# addition: it can never be faster than memory, whatever the GPU. That is why the engine folds
# such kernels into others where it can.

# %%
cost = launch.cost
table(
    ("", "bytes read", "bytes written", "operations"),
    [("add", cost.bytes_read, cost.bytes_written, cost.flops or COUNT)],
)

# %% [markdown]
# ## What breaks: the compiler's words

# %%
try:
    gpu.library_from_source(SOURCE.replace("+ right[i]", "+ rigth[i]"), "my_add.metal")
except MetalError as error:
    print(error)

# %% [markdown]
# ## What breaks: one thread too many
#
# Without `if (i < count)` the last threads read and write past the end. What lies there is somebody
# else's. On a GPU you see nothing, until something else is wrong:

# %%
wrong = checking.library_from_source(SOURCE.replace("if (i < count) ", ""), "my_add.metal")
buffers = [checking.from_numpy(a), checking.from_numpy(b), checking.buffer(4 * COUNT)]
try:
    with checking.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(
            wrong.pipeline("my_add"),
            (groups, 1, 1),
            (THREADS, 1, 1),
            buffers,
            np.uint32(COUNT).tobytes(),
        )
except MetalError as error:
    print("\n".join(str(error).splitlines()[:3]))

# %% [markdown]
# And more threads in a threadgroup than the kernel can take: Metal would drop the dispatch
# without a word. The bridge asks the pipeline first:

# %%
try:
    with gpu.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(my_add, (1, 1, 1), (2048, 1, 1), [c, c, c], np.uint32(COUNT).tobytes())
except MetalError as error:
    print(error)

# %% [markdown]
# ## Exercise
#
#     python -m lessons.check 03 --hint 0

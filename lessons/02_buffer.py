"""# 02 Buffers and shared memory

When you have read this you can give the GPU memory without copying it, and you know who may look
at it when. The engine's file is `mtl/buffer.py`.
"""

# %% [markdown]
# ## The idea: one memory
#
# A graphics card has memory of its own: data is copied there and back, and most of CUDA's API is
# about that. In an Apple chip CPU and GPU sit at the same memory. A buffer is some of it that
# both may use:
#
#     CPU  --  x = buffer.numpy()  --+
#                                    +--->  [ bytes ]
#     GPU  --  device float *x     --+
#
# Nothing is uploaded. What remains is to agree on *when*: never look while the GPU may be
# writing.

# %%
import mmap
import tempfile
import time
from pathlib import Path

import numpy as np
from lesson import agree, device, table

from tinyrvllm.kernels import elementwise
from tinyrvllm.kernels.launch import encode, run, whole
from tinyrvllm.mtl import MetalError

gpu = device()
rng = np.random.default_rng(0)
numbers = gpu.buffer(16 * 4, "numbers")  # 64 bytes of zeros
view = numbers.numpy(np.float32)  # the memory itself, as an array
view[...] = np.arange(16)
print("what the CPU wrote:", numbers.numpy(np.float32)[:8])
print("the same bytes as integers:", numbers.numpy(np.uint32)[:3])

# %% [markdown]
# The GPU sees what the array says, and the array sees what the GPU wrote:

# %%
span = whole(numbers)
run(gpu, elementwise.add(span, span, span, 16))  # doubles them, in place
print("doubled by the GPU:", view[:8])

# %% [markdown]
# ## The naive version: copy in, copy out
#
# `from_numpy` copies an array into a new buffer. For a few numbers that is the way. For a model
# it is not: SmolLM2-135M is 98 MB in the file; the Rust original held an F32 and an F16 copy of
# its weights, 2.8 GB for a 0.4 GB file.

# %%
COUNT = 4 << 20  # 16 MB of floats
scratch = tempfile.TemporaryDirectory(prefix="tinyrvllm-", ignore_cleanup_errors=True)
path = Path(scratch.name) / "weights"
rng.standard_normal(COUNT).astype(np.float32).tofile(path)

start = time.perf_counter()
copied = gpu.from_numpy(np.fromfile(path, np.float32), "copied")
copying = time.perf_counter() - start

# %% [markdown]
# ## The engine's version: map the file, wrap the map
#
# `mmap` makes a file appear in memory; pages are read when they are touched. `Device.wrap` makes
# a buffer of the map itself: not a byte is copied. Metal asks for whole pages (16 KB on
# Apple silicon, 4 KB here), and the map must stay alive as long as the GPU may use it; the buffer
# sees to that.

# %%
start = time.perf_counter()
with path.open("rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
wrapped = gpu.wrap(mapped, "wrapped")
wrapping = time.perf_counter() - start
agree("the same numbers", wrapped.numpy(np.float32), copied.numpy(np.float32), 0.0, "the copy")

# %% [markdown]
# ## What it costs

# %%
table(
    ("16 MB", "ms", "bytes held twice"),
    [
        ("read and copy", f"{1e3 * copying:.2f}", copied.nbytes),
        ("map and wrap", f"{1e3 * wrapping:.2f}", 0),
    ],
)

# %% [markdown]
# All tensors of a model are spans of one such buffer: an offset and a length. `runner/tensors.py`
# has no other idea.
#
# A limit: a buffer may not be longer than `maxBufferLength`. A file that is becomes several
# overlapping views, each of which holds its tensors whole.

# %%
print(f"this device: buffers up to {gpu.limits.max_buffer_length / 2**30:.0f} GB")
try:
    gpu.buffer(gpu.limits.max_buffer_length + 1, "too long")
except MetalError as error:
    print(error)

# %% [markdown]
# ## What breaks: looking while the GPU writes
#
# Between commit and wait the bytes are nobody's. `numpy()` raises; lesson 04 has the whole story.

# %%
commands = gpu.commands()
with commands.encoder() as encoder:
    encode(elementwise.add(span, span, span, 16), encoder, gpu)
commands.commit()
try:
    numbers.numpy(np.float32)
except MetalError as error:
    print(error)
commands.wait()
print("now:", numbers.numpy(np.float32)[:4])

# %% [markdown]
# ## What breaks: memory that does not start on a page
#
# An array of numpy's own starts anywhere. Metal takes no such address; the bridge says so first:

# %%
try:
    gpu.wrap(np.zeros(4096, np.uint8)[1:], "odd")
except MetalError as error:
    print(error)

# %% [markdown]
# ## What breaks: a buffer used after it was closed, or never closed

# %%
with gpu.buffer(64, "short-lived") as short:
    kept = short.numpy(np.float32)
print("a view outlives its buffer:", kept[:3])  # the view holds the memory
try:
    short.numpy()
except MetalError as error:
    print(error)

# %% [markdown]
# A buffer that nobody closes is released when Python collects it. The checking device also knows
# who bound what to which slot: an access outside the buffer is an error even where another buffer
# lies right behind it (lesson 03).
#
# Nothing to write yet: the exercises begin with lesson 03.

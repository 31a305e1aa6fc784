"""# 01 A message to Objective-C

When you have read this you can drive a Mac's GPU from Python with nothing between you and it, and
you know why each part of a message must be exactly right. The engine's files are `mtl/api.py`,
`mtl/objc.py` and `mtl/apple.py`.
"""

# %% [markdown]
# ## The idea: everything is a message
#
# Metal is an Objective-C library. In Objective-C you do not call a function of an object, you
# send it a *message*: a name (the *selector*) and arguments. At run time a C function looks up
# what the object does with it:
#
#     [device newBufferWithLength:64 options:0]            what a Mac programmer writes
#
#     objc_msgSend(device, "newBufferWithLength:options:", 64, 0)      what the compiler makes of it
#
# That one C function is all we need. Any language that can call C can drive Metal: no Xcode, no
# Swift, no headers. Where there is no Mac, a *double* of the runtime answers the same messages
# (`soft/objc_double`), and everything below works the same.

# %%
import time

import numpy as np
from lesson import checking_device, device, table

from tinyrvllm.mtl import MetalError, api
from tinyrvllm.soft.objc_double import ObjCError

gpu = device()
objc = gpu.objc
print("the runtime:", type(objc.runtime).__name__)

# %% [markdown]
# ## A first message, by hand
#
# `bind` makes a Python function of a selector and its types: what comes back, then what it takes, in
# the letters that Objective-C itself uses: `@` an object, `Q` 64 unsigned bits, `*` a C string.

# %%
name = objc.runtime.bind("name", "@", ())
utf8 = objc.runtime.bind("UTF8String", "*", ())
with objc.pool():  # what comes back is autoreleased: it lives until the pool ends (lesson 04)
    string = name(gpu.handle)
    print("an object is an address:", hex(int(api.ffi.cast("uintptr_t", string))))
    print("its text:", api.ffi.string(utf8(string)).decode())

# %% [markdown]
# Messages have types, and nobody checks them: with a wrong one, the callee reads a register that
# nobody wrote. That is the naive way's trouble.
#
# ## The engine's version: one table
#
# `mtl/api.tsv` has a row for each message that the engine sends, with its types as Apple's own
# metadata gives them. It is the only place where a type is decided. `declare` looks rows up when
# a module is imported; a selector that is not in the table fails there, not in the middle of a
# run. What is declared can be sent: `send` has a function for each selector, with `_` where the
# selector has a colon.

# %%
for method in api.declare(
    "MTLDevice maxBufferLength newBufferWithLength:options:", "MTLBuffer contents"
):
    print(f"{method.owner} {method.selector}: {api.c_type(method.returns, method.arguments)}")
send = objc.send
print("the longest buffer:", send.maxBufferLength(gpu.handle), "bytes")
send.release(send.newBufferWithLength_options_(gpu.handle, 64, 0))

try:
    api.declare("MTLDevice maxBufferLenght")
except MetalError as error:
    print(error)

# %% [markdown]
# On a Mac the bridge goes one step further and compares every row with the running system's
# `method_getTypeEncoding` before it sends anything.
#
# ## What it costs
#
# A message is a call of a C function through cffi. A dispatch takes several messages, and a token
# takes a few hundred dispatches:

# %%
COUNT = 10_000
start = time.perf_counter()
for _ in range(COUNT):
    send.maxBufferLength(gpu.handle)
each = (time.perf_counter() - start) / COUNT
table(
    ("", "us"),
    [("one message here", f"{1e6 * each:.2f}"), ("900 of them", f"{900e6 * each:.0f}")],
)

# %% [markdown]
# (Here a Python double answers, which is slower than Apple's C function. Lessons 13 and 15 send
# fewer.)
#
# ## What breaks: a wrong type
#
# Say that `maxBufferLength` returns a signed number. On a Mac nothing would complain, and a large one
# would be negative one day. The double knows each method's types from an extract of its own of
# Apple's metadata, not from our table:

# %%
checking = checking_device()
try:
    checking.objc.runtime.bind("maxBufferLength", "q", ())
except ObjCError as error:
    print(error)

# %% [markdown]
# ## What breaks: a message to nobody
#
# A message to nil is no error in Objective-C: it answers 0. A failed allocation shows up as an address
# of 0, three calls later. So the bridge looks at every object that it gets.

# %%
nobody = api.ffi.NULL
print("the longest buffer of nobody:", send.maxBufferLength(nobody))

# %% [markdown]
# ## What breaks: an object that is gone
#
# Objects count their owners. `release` once too often, and the address belongs to somebody else.
# The double keeps the dead for a while and knows them:

# %%
contents = checking.objc.send.contents
short = checking.buffer(64, "gone")
address = short.handle
print("alive:", contents(address) != nobody)
short.close()
try:
    contents(address)
except ObjCError as error:
    print(error)

# %% [markdown]
# ## All of it, once
#
# The shortest complete program over the bridge is `python -m tinyrvllm.doctor`: it makes two
# buffers, compiles a kernel, records one dispatch, waits and compares with numpy. The heart of it:

# %%
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void twice(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2; }
"""
x = gpu.from_numpy(np.arange(8, dtype=np.float32))
twice = gpu.library_from_source(SOURCE, "twice.metal").pipeline("twice")
with gpu.commands() as commands, commands.encoder() as encoder:
    encoder.dispatch(twice, groups=(1, 1, 1), threads=(8, 1, 1), buffers=[x])
print(x.numpy(np.float32))

# %% [markdown]
# The next lessons take it apart: memory (02), kernels (03), recording (04). Exercises begin with
# lesson 03.

"""# 07 Quantised weights

When you have read this you can unpack a weight of four bits by hand, you know what it costs in
exactness and saves in bytes, and why the engine never unpacks a matrix. The engine's files are
`kernels/quant.py` and `shaders/quant.h`.
"""

# %% [markdown]
# ## The idea: fewer bytes
#
# Decoding a token reads every weight once, and the memory bus sets the pace (lesson 06). Half the
# bytes, twice the speed. A GGUF file keeps most weights in *blocks*: 32 (or 256) small integers
# that share a scale. Q8_0, the simplest, has a half `d` and 32 signed bytes: weight = d * q.

# %%
import charts
import numpy as np
import pictures
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import embedding, matvec
from tinyrvllm.kernels.cases import case, floats, ints, prepare
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.kernels.quant import WEIGHT_TYPES, Matrix
from tinyrvllm.mtl import MetalError

gpu = device()
rng = np.random.default_rng(0)
weights = rng.normal(0, 0.05, (1, 32)).astype(np.float32)
block = quantize(weights, GGMLQuantizationType.Q8_0)[0]  # uint8 [34]
d = block[:2].view(np.float16)[0]
print(f"block: {len(block)} bytes, d = {d:.6f}, first quants {block[2:8].view(np.int8)}")
print(
    f"weight 0: {weights[0, 0]:.6f} in float, {float(d) * block[2:3].view(np.int8)[0]:.6f} as d * q"
)

# %% [markdown]
# Q4_1 has 4 bits a weight and a minimum: weight = d * q + m with q from 0 to 15. Two weights
# share a byte: byte i has weight i in its low half and weight i + 16 in its high half.

# %%
block = quantize(weights, GGMLQuantizationType.Q4_1)[0]  # half d, half m, 16 bytes
d, m = block[:4].view(np.float16).astype(np.float32)
low, high = block[4:] & 15, block[4:] >> 4
by_hand = d * np.concatenate([low, high]).astype(np.float32) + m
agree(
    "Q4_1 by hand", by_hand, dequantize(block[None], GGMLQuantizationType.Q4_1)[0], 1e-6, "gguf's"
)

# %% [markdown]
# What the types cost, and what is lost: the error of a row of normally distributed weights, in
# parts of their size.

# %%
row = rng.normal(0, 0.05, (64, 256)).astype(np.float32)
lines = []
for kind in ("F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"):
    number = GGMLQuantizationType[kind]
    elements, nbytes = GGML_QUANT_SIZES[number]
    back = dequantize(quantize(row, number), number)
    error = np.sqrt(((back - row) ** 2).mean()) / row.std()
    lines.append((kind, f"{8 * nbytes / elements:.2f}", f"{error:.2%}"))
table(("type", "bits a weight", "error"), lines)
print("the engine multiplies", ", ".join(kind.name for kind in WEIGHT_TYPES))

# %% [markdown]
# ## The naive version: unpack first
#
# A kernel unpacks the whole matrix to floats in memory, another multiplies. The engine's
# embedding kernel can do the first: it looks up rows, here all of them.

# %%
OUTPUTS, INPUTS, KIND = 768, 576, GGMLQuantizationType.Q4_1
data = quantize(rng.normal(0, 0.05, (OUTPUTS, INPUTS)).astype(np.float32), KIND)
x = rng.standard_normal(INPUTS).astype(np.float32)
exact = dequantize(data, KIND).astype(np.float64)


def matrix(on):
    return Matrix(whole(on.from_numpy(data)), KIND, OUTPUTS, INPUTS)


def unpack_then_multiply(on):
    """Two launches and y."""
    unpacked, y = whole(on.buffer(4 * OUTPUTS * INPUTS)), whole(on.buffer(4 * OUTPUTS))
    all_rows = ints(on, np.arange(OUTPUTS))
    unpack = embedding.launch(all_rows, matrix(on), unpacked, OUTPUTS)
    plain = Matrix(unpacked, GGMLQuantizationType.F32, OUTPUTS, INPUTS)
    return [unpack, matvec.launch(Matmul(floats(on, x), plain, y, 1))], y


naive, y = unpack_then_multiply(gpu)
run(gpu, *naive)
agree("unpack, then multiply", y.buffer.numpy(np.float32), exact @ x)

# %% [markdown]
# ## The engine's version: multiply what is in the file
#
# `load_weights` in `shaders/quant.h` gives 16 weights at a time in registers, from any of eleven
# types; the type is a function constant, so a pipeline contains one branch of the switch.
# Embedding, `matvec`, `ksplit` and `gemm` all use it.


# %%
def multiply_as_it_is(on):
    y = whole(on.buffer(4 * OUTPUTS))
    return matvec.launch(Matmul(floats(on, x), matrix(on), y, 1)), y


direct, y = multiply_as_it_is(gpu)
run(gpu, direct)
agree("as the file has it", y.buffer.numpy(np.float32), exact @ x)

# %% [markdown]
# The two nibbles of a byte are weights 16 apart. So two neighbouring lanes read the *same* 16
# bytes, one keeps the low halves, the other the high ones: one access of the cache, no shuffling.
# The picture has a square for each byte of the first four blocks of a row, 20 bytes each (2 of
# `d`, 2 of `m`, 16 of quants); numbers are threads, of two that read the same the last is shown.

# %%
checking = checking_device()
(log,) = pictures.watch(checking, multiply_as_it_is(checking)[0])
log.rows = [a for a in log.accesses("weight", group=0) if a.offset < 80 and a.thread < 8]
pictures.save("07_blocks", pictures.touched(log, "weight", columns=20, element=1))

# %% [markdown]
# ## What it costs

# %%
watched = pictures.watch(checking, *unpack_then_multiply(checking)[0])
moved = [
    sum(a.size for a in one.rows if a.memory == "device")
    for one in (*watched, pictures.watch(checking, multiply_as_it_is(checking)[0])[0])
]
table(
    ("", "dispatches", "bytes asked for", "us here"),
    [
        (
            "unpack, then multiply",
            2,
            moved[0] + moved[1],
            f"{1e6 * charts.seconds(gpu, *naive):.0f}",
        ),
        ("as the file has it", 1, moved[2], f"{1e6 * charts.seconds(gpu, direct):.0f}"),
    ],
)
print(f"the matrix in the file: {data.nbytes:,} bytes; as floats: {4 * OUTPUTS * INPUTS:,}")

# %% [markdown]
# The Rust original kept Q8_0 files as F16 in memory (and an F32 copy besides): 0.7 GB read a
# token where the file has 0.39. Its own list of what comes next began with this lesson.
#
# And the types beside one another, on this device. A quantised type wins where bytes count, and
# loses where unpacking does: on a CPU that is often.

# %%
lines = []
for kind in ("F32", "F16", "Q8_0", "Q4_1"):
    prepared = prepare(case("matvec", kind=kind, rows=1, outputs=1536, inputs=576), gpu, rng)
    (launch,) = prepared.launches
    seconds = charts.seconds(gpu, launch)
    rate = f"{launch.cost.bytes_read / seconds / 1e9:.1f}"
    lines.append((kind, launch.cost.bytes_read, f"{1e6 * seconds:.0f}", rate))
table(("type", "bytes read", "us", "GB/s"), lines)

# %% [markdown]
# ## What breaks without care: alignment
#
# A Q4_1 block is 20 bytes long, a Q8_0 block 34: no block but the first starts at a multiple of 4
# (or 16), and a `float4` load at such an address is undefined. It may work for years. The engine
# loads packed vectors, which ask for the alignment of one element. Here is what the checking
# device says of the obvious way:

# %%
OBVIOUS = """
#include <metal_stdlib>
using namespace metal;
kernel void second_block(device const uchar *row [[buffer(0)]], device uint4 *out [[buffer(1)]]) {
    *out = *(device const uint4 *)(row + 34 + 2);   // the 16 quants of Q8_0's second block
}
"""
out = checking.buffer(16)
row_of_blocks = checking.from_numpy(quantize(row[:1], GGMLQuantizationType.Q8_0))
pipeline = checking.library_from_source(OBVIOUS, "obvious.metal").pipeline("second_block")
try:
    with checking.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(pipeline, (1, 1, 1), (1, 1, 1), [row_of_blocks, out])
except MetalError as error:
    print(error)

# %% [markdown]
# ## Exercise
#
#     python -m lessons.check 07 --hint 0
#
# Unpack two types yourself; the engine then looks up its tokens with your version.

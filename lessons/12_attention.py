"""# 12 Paged attention in one kernel

When you have read this you can explain online softmax, why a lane owns a key in one half of the
kernel and a dimension in the other, and what GQA saves. The engine's files are
`kernels/attention.py`, `shaders/attention_decode.metal` (one query a sequence) and
`attention_prefill.metal` (many).
"""

# %% [markdown]
# ## The idea: a softmax that never sees all its scores
#
# Softmax needs the largest score before it can add up exp(score - largest). Online softmax
# (Milakov and Gimelshein, 2018) starts without it: keep the largest *so far*, and when a larger
# one comes, multiply what was gathered by exp(old - new). Three numbers instead of a row of
# scores:

# %%
import charts
import numpy as np
import pictures
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import attention, attention_naive
from tinyrvllm.kernels.case_attention import attend
from tinyrvllm.kernels.cases import floats, ints
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.mtl import MetalError
from tinyrvllm.mtl.library import SHADERS, splice

gpu = device()
rng = np.random.default_rng(0)
scores, values = np.array([1.0, 3.0, 2.0, 5.0]), np.array([10.0, 20.0, 30.0, 40.0])
best, total, gathered, steps = -np.inf, 0.0, 0.0, []
for score, value in zip(scores, values, strict=True):
    higher = max(best, score)
    correction, weight = np.exp(best - higher), np.exp(score - higher)
    total, gathered, best = (
        total * correction + weight,
        gathered * correction + weight * value,
        higher,
    )
    steps.append((score, best, f"{correction:.3f}", f"{total:.3f}", f"{gathered:.3f}"))
table(("score", "largest so far", "correction", "sum of weights", "sum of values"), steps)
exact = np.exp(scores) @ values / np.exp(scores).sum()
print(f"{gathered / total:.6f} online, {exact:.6f} with all scores at hand")

# %% [markdown]
# ## A sequence of some length, in a paged cache

# %%
HEADS, KV_HEADS, HEAD_DIM, KEYS = 9, 3, 64, 200  # SmolLM2-135M, 200 tokens so far
SCALE = HEAD_DIM**-0.5
BLOCKS = -(-KEYS // 16)
layout = KvLayout(num_blocks=BLOCKS + 3, block_size=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
block_table = rng.permutation(layout.num_blocks)[:BLOCKS]
tokens = np.arange(KEYS)
slots = block_table[tokens // 16] * 16 + tokens % 16
q = rng.standard_normal((1, HEADS, HEAD_DIM)).astype(np.float32)
kv = rng.standard_normal((2, KEYS, KV_HEADS, HEAD_DIM)).astype(layout.dtype)
pools = np.full((2, layout.num_blocks * 16, KV_HEADS, HEAD_DIM), np.nan, layout.dtype)
pools[:, slots] = kv
expected = attend(q.astype(np.float64), *kv.astype(np.float64), SCALE)


def problem(on, window=0):
    return attention.Attention(
        q=floats(on, q), k_pool=whole(on.from_numpy(layout.pack_k(pools[0]))),
        v_pool=whole(on.from_numpy(layout.pack_v(pools[1]))), block_tables=ints(on, [*block_table]),
        context_lens=ints(on, [KEYS]), query_start=ints(on, [0, 1]), out=whole(on.buffer(q.nbytes)),
        layout=layout, heads=HEADS, sequences=1, max_blocks=BLOCKS, scale=SCALE, window=window,
    )  # fmt: skip


# %% [markdown]
# ## The naive version: lesson 11's five kernels

# %%
a = problem(gpu)
scratch = whole(gpu.buffer(attention_naive.scratch_bytes(a, 1, KEYS)))
five = attention_naive.launches(a, scratch, 1, KEYS)
run(gpu, *five)
agree("five kernels", a.out.buffer.numpy(np.float32, q.shape), expected)

# %% [markdown]
# ## The engine's version
#
# One threadgroup serves one KV head and all its query heads (3 here): K and V are read once, not
# three times. Its 4 simdgroups take 32 keys each in turns.
#
# **Scores: a lane owns a key.** It multiplies whole queries with its key and needs no reduction;
# that is why K lies turned in its blocks: 32 lanes, 32 tokens, neighbouring addresses.
#
# **Values: a lane owns four dimensions.** So the weights pass through threadgroup memory, inside
# the simdgroup: a `simdgroup_barrier`, and no `threadgroup_barrier` in the loop.

# %%
b = problem(gpu)
(fused,) = attention.decode(b, 512)
run(gpu, fused)
agree("one kernel", b.out.buffer.numpy(np.float32, q.shape), expected)

# %% [markdown]
# Watch it read the K of one block (columns are tokens, squares are four numbers of one): in each
# step a simdgroup reads a row, 128 bytes in one piece. Compare with lesson 11's gather.

# %%
checking = checking_device()
(log,) = pictures.watch(checking, attention.decode(problem(checking), 512)[0])
block_bytes = 16 * HEAD_DIM * 2
at = int(block_table[0]) * KV_HEADS * block_bytes


def one_block(name):
    """The log's accesses to the sequence's first block, KV head 0."""
    part = type(log)(log.kernel, log.grid, log.group, 0)
    part.rows = [
        access._replace(offset=access.offset - at)
        for access in log.accesses(name)
        if 0 <= access.offset - at < block_bytes
    ]
    return part


pictures.save("12_keys", pictures.touched(one_block("k_pool"), "k_pool", columns=16, element=8))

# %% [markdown]
# And V, which lies token after token: a row of the picture is one token, and 16 lanes read it
# side by side.

# %%
pictures.save("12_values", pictures.touched(one_block("v_pool"), "v_pool", columns=16, element=8))

# %% [markdown]
# ## What it costs

# %%
naive_logs = pictures.watch(
    checking,
    *attention_naive.launches(
        problem(checking),
        whole(checking.buffer(attention_naive.scratch_bytes(a, 1, KEYS))),
        1,
        KEYS,
    ),
)
moved = [sum(x.size for x in one.rows if x.memory == "device") for one in (log, *naive_logs)]
table(
    ("", "dispatches", "bytes moved", "us here"),
    [
        ("five kernels", 5, sum(moved[1:]), f"{1e6 * charts.seconds(gpu, *five):.0f}"),
        ("one kernel", 1, moved[0], f"{1e6 * charts.seconds(gpu, fused):.0f}"),
    ],
)
once = 2 * KEYS * KV_HEADS * HEAD_DIM * layout.dtype.itemsize + 2 * q.nbytes
print(f"K, V, queries and output, each once: {once:,} bytes")

# %% [markdown]
# A long context is split over threadgroups in parts of 512 keys, and `attend_combine` adds the
# parts up: the same trick as online softmax, once more. The parts are absolute multiples of 512,
# whatever the batch, so a sequence's bits do not depend on its company.
#
# A prompt's queries come in tiles of 32 (`attention_prefill.metal`), with `simdgroup_matrix` for
# both products.
#
# ## What breaks without care: a correction forgotten
#
# Online softmax with the correction left out is right as long as the first key has the largest
# score. Random tests with one key pass. Here is the engine's kernel with its values not
# corrected; the checker is silent, since no access is wrong: only a comparison finds it.

# %%
text = splice(SHADERS / "attention_decode.metal").replace(
    "            values[g][0] *= correction[g / 4][g % 4];\n", ""
)
c = problem(checking)
(launch,) = attention.decode(c, 512)
library = checking.library_from_source(text, "attention_decode.metal")
with checking.commands() as commands, commands.encoder() as encoder:
    encoder.dispatch(
        library.pipeline(launch.kernel, dict(launch.constants)),
        launch.groups,
        launch.threads,
        [(x.span.buffer, x.span.offset) for x in launch.arguments],
        launch.parameters,
    )
wrong = np.abs(c.out.buffer.numpy(np.float32, q.shape) - expected)
print(
    f"no report; but {(wrong > 1e-3).mean():.0%} of the numbers are wrong, "
    f"by up to {wrong.max():.2f}"
)

# %% [markdown]
# ## What breaks without care: threadgroup memory in a helper
#
# The original's author wanted a helper function with scratch memory of its own. Metal allows
# threadgroup variables in kernel functions only: the helper must get a pointer. The front end of
# `soft` says so, as Apple's compiler does:

# %%
helper = """
#include <metal_stdlib>
using namespace metal;
float sum(float x, uint lane) {
    threadgroup float scratch[4];
    scratch[lane % 4] = x;
    return scratch[0];
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = sum(x[i], i);
}
"""
try:
    gpu.library_from_source(helper, "helper.metal")
except MetalError as error:
    print(error)

# %% [markdown]
# ## Exercise
#
#     python -m lessons.check 12 online --hint 0
#
# Attention in one pass, with a sliding window: mind minus infinity minus infinity.

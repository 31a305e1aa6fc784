"""# 11 Paged attention in five kernels

When you have read this you can compute attention over a paged cache with five simple kernels, and
you know what that costs. The engine's files are `kernels/attention_naive.py` and
`shaders/attention_naive.metal`: the first version, kept because the fused kernel of lesson 12 is
checked against it on the device.
"""

# %% [markdown]
# ## The idea, in small numbers
#
# A query asks every earlier token "how much do you matter to me?" (a dot product with its key),
# turns the answers into weights that add up to 1 (softmax), and takes that mixture of the values.
# What it may not see gets a score of minus infinity, and exp(-inf) is 0.

# %%
import numpy as np
import pictures
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import attention_naive, reduce
from tinyrvllm.kernels.attention import Attention
from tinyrvllm.kernels.case_attention import attend
from tinyrvllm.kernels.cases import floats, ints
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.mtl.library import SHADERS, splice

gpu = device()
rng = np.random.default_rng(0)
scores = np.array([[1.0, -np.inf, -np.inf], [1.0, 2.0, -np.inf], [1.0, 2.0, 0.0]])  # causal
weights = np.exp(scores - scores.max(axis=1, keepdims=True))
weights /= weights.sum(axis=1, keepdims=True)
print(np.round(weights, 3))

# %% [markdown]
# Grouped-query attention: SmolLM2 has 9 query heads on 3 KV heads; heads 0, 1, 2 look at KV head
# 0. And the cache is paged: the keys of a sequence lie in blocks (lesson 10). Here is a sequence
# of 40 tokens whose last 7 are this step's queries, in blocks that are anywhere, with NaN in
# every slot that is not its own:

# %%
HEADS, KV_HEADS, HEAD_DIM, KEYS, QUERIES = 9, 3, 64, 40, 7
SCALE = HEAD_DIM**-0.5
layout = KvLayout(num_blocks=6, block_size=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
block_table = np.array([4, 1, 3])
tokens = np.arange(KEYS)
slots = block_table[tokens // 16] * 16 + tokens % 16
q = rng.standard_normal((QUERIES, HEADS, HEAD_DIM)).astype(np.float32)
kv = rng.standard_normal((2, KEYS, KV_HEADS, HEAD_DIM)).astype(layout.dtype)
pools = np.full((2, 6 * 16, KV_HEADS, HEAD_DIM), np.nan, layout.dtype)
pools[:, slots] = kv

# %% [markdown]
# ## In numpy
#
# `attend` is the truth of the kernels' tests: causal, float64, a dozen lines.

# %%
expected = attend(q.astype(np.float64), *kv.astype(np.float64), SCALE)
print("out:", expected.shape, "[queries, heads, head_dim]")

# %% [markdown]
# ## Five kernels
#
# | kernel | reads | writes |
# |---|---|---|
# | gather | the sequence's blocks, through its table | K and V in one piece |
# | scores | Q, K | [heads, queries, keys] |
# | mask | scores | -inf where the query may not look |
# | softmax | scores | weights (lesson 05's kernel) |
# | apply | weights, V | [queries, heads, head_dim] |
#
# Each has one idea, and one thread an element (but for softmax). They depend on one another, so
# there is a barrier after each.


# %%
def problem(on):
    """The same sequence on a device; its output."""
    out = on.buffer(q.nbytes)
    return Attention(
        q=floats(on, q), k_pool=whole(on.from_numpy(layout.pack_k(pools[0]))),
        v_pool=whole(on.from_numpy(layout.pack_v(pools[1]))), block_tables=ints(on, [*block_table]),
        context_lens=ints(on, [KEYS]), query_start=ints(on, [0, QUERIES]), out=whole(out),
        layout=layout, heads=HEADS, sequences=1, max_blocks=3, scale=SCALE,
    )  # fmt: skip


def five(on, a):
    scratch = whole(on.buffer(attention_naive.scratch_bytes(a, QUERIES, KEYS)))
    return attention_naive.launches(a, scratch, QUERIES, KEYS)


on_gpu = problem(gpu)
launches = five(gpu, on_gpu)
run(gpu, *launches)
agree("five kernels", on_gpu.out.buffer.numpy(np.float32, q.shape), expected)

# %% [markdown]
# The gather follows the table: the picture shows K's pool, one KV head of block 4 (the sequence's
# tokens 0 to 15; squares are four numbers, columns are tokens), and which threads read it.
# Neighbouring threads have neighbouring dimensions of *one* token, but in K's layout these lie 16
# tokens apart: every fourth thread jumps. That is what the caption's cache lines say.

# %%
checking = checking_device()
small = problem(checking)
logs = pictures.watch(checking, *five(checking, small))
gather = logs[0]
first = 4 * KV_HEADS * 16 * HEAD_DIM * 2  # byte where block 4 begins
gather.rows = [
    a._replace(offset=a.offset - first)
    for a in gather.accesses("k_pool")
    if 0 <= a.offset - first < 16 * HEAD_DIM * 2
]
pictures.save("11_gather", pictures.touched(gather, "k_pool", columns=16, element=8, group=None))

# %% [markdown]
# ## What it costs
#
# Bytes that each kernel really moved, from the checking device's log, for this one sequence:

# %%
rows, total = [], 0
for launch, log in zip(launches, logs, strict=True):
    if log is gather:  # its rows were cut down for the picture
        moved = (
            2 * KEYS * KV_HEADS * HEAD_DIM * (8 + 4)
        )  # 8 bytes are loaded for each 2 that are used
    else:
        moved = sum(a.size for a in log.rows if a.memory == "device")
    total += moved
    rows.append((launch.kernel, launch.groups[0], moved, log.barriers // launch.groups[0]))
table(("kernel", "threadgroups", "bytes moved", "barriers"), rows)
once = q.nbytes * 2 + 2 * KEYS * KV_HEADS * HEAD_DIM * 2
print(f"{total:,} bytes moved; the inputs and outputs, each once, are {once:,}")

# %% [markdown]
# Most of that comes from caches on a small example, but the shape of it stays: the context is
# read, written and read again, and the scores cross the memory bus five times. With 1,000 tokens
# and 32 sequences this was a fifth of the Rust original's step. And there are five dispatches in
# a row where one could do.
#
# ## What breaks without care: fast maths
#
# "Masked is -inf" works only if the compiler agrees that there is such a thing as infinity.
# Metal's default, fast maths, lets it assume that there is none. A row that is masked altogether
# (a padded sequence) has a maximum of -inf, and -inf - -inf is not a number; `softmax` asks `best
# == -INFINITY` first. A compiler that knows no infinity may answer "never". So every library of
# ours is compiled with safe maths (`mtl/library.py`).
#
# No device here has fast maths, so let us make the compiler's step by hand:

# %%
masked = np.full((2, 40), -np.inf, np.float32)
masked[1, 3:7] = 1.0


def softmax_of(library):
    x, y = floats(gpu, masked), gpu.buffer(masked.nbytes)
    launch = reduce.softmax(x, whole(y), *masked.shape)
    with gpu.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(
            library.pipeline("softmax"),
            launch.groups,
            launch.threads,
            [(a.span.buffer, a.span.offset) for a in launch.arguments],
            launch.parameters,
        )
    return y.numpy(np.float32, masked.shape)


safe = splice(SHADERS / "reduce.metal")
fast = safe.replace("best == -INFINITY", "false")
for name, text in (("safe", safe), ("fast", fast)):
    found = softmax_of(gpu.library_from_source(text, "reduce.metal"))
    print(f"{name} maths: a masked row {found[0, :4]}, another {found[1, 2:8]}")

# %% [markdown]
# One such NaN in a KV block of a shared pool, and the next sequence that reuses the block has it
# too, unless the kernels never read a slot past the context. Ours do not: the pools above were
# full of NaN.
#
# ## Exercises
#
#     python -m lessons.check 11 gather --hint 0
#     python -m lessons.check 11 scores --hint 0

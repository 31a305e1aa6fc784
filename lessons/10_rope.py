"""# 10 RoPE and the write to the paged cache

When you have read this you know where a key goes on its way from its projection to the KV cache:
it is turned by its position, finds its slot through a block table, and lies there in an order
that the attention kernel likes. The engine's files are `kernels/rope.py`, `kernels/kv_cache.py`,
`shaders/rope.metal` and `shaders/kv_cache.h`.
"""

# %% [markdown]
# ## Turning pairs
#
# Attention compares queries with keys by their dot product, which knows nothing of order. RoPE
# (Su et al., 2021) takes the numbers of a head in pairs and turns pair i of a token at position p
# by p * f_i radians. A dot product of two turned vectors then depends on the *difference* of
# their positions only:

# %%
import numpy as np
import pictures
from lesson import agree, checking_device, device, table

from tinyrvllm.kernels import rope
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.model.layers import rope_table, rotate
from tinyrvllm.mtl import MetalError
from tinyrvllm.mtl.library import SHADERS, splice

gpu = device()
rng = np.random.default_rng(0)
HEAD_DIM = 64
frequencies = 100_000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)  # SmolLM2's: [32] radians


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """x [HEAD_DIM], as a token at that position has it: the oracle's own functions."""
    copy = x.reshape(1, 1, HEAD_DIM).astype(np.float64)
    rotate(copy, rope_table(np.array([position]), frequencies), interleaved=True)
    return copy.reshape(-1)


query, key = rng.standard_normal((2, HEAD_DIM))
for p in (0, 7, 1000):
    print(f"query at {p + 5}, key at {p}: {turned(query, p + 5) @ turned(key, p):.6f}")

# %% [markdown]
# Which two numbers are a pair? GGUF files of the llama architecture store them interleaved, (0,
# 1), (2, 3), ...; qwen2, qwen3, gemma and lfm2 half-split, (0, d/2), (1, d/2 + 1), ... The engine
# reorders nothing: it is a function constant of the kernel, and another pair of indices.
#
# ## The paged cache
#
# A token's keys and values are needed by every later token of its sequence. They live in blocks
# of 16 tokens; a sequence's block table lists its blocks, which may be anywhere in the pool:
#
#     sequence A, 20 tokens    block table [2, 5]       token 17 -> block 5, place 1 -> slot 81
#     sequence B,  3 tokens    block table [0]
#
#     pool:   [ B B B . ... ]  [ free ]  [ A A A A ... ]  [ free ]  [ free ]  [ A A A A . ... ]
#              block 0                    block 2                              block 5
#
# So no sequence needs its maximum length reserved in one piece, and two sequences that begin
# alike can share blocks (lesson 14). Inside a block V lies as `[kv_heads, 16 tokens, head_dim]`
# and K as `[kv_heads, head_dim / 4, 16 tokens, 4]`: turned, so that lanes that hold neighbouring
# *tokens* read neighbouring addresses. Lesson 12 shows why.

# %%
layout = KvLayout(num_blocks=6, block_size=16, kv_heads=1, head_dim=HEAD_DIM)
numbers = np.arange(6 * 16 * HEAD_DIM, dtype=np.float32).reshape(
    -1, 1, HEAD_DIM
)  # token * 64 + dim
where = layout.unpack_k(np.arange(layout.nbytes // 2))  # [96 slots, 1, 64]: element of the K pool
table(
    ("slot", "dims 0 1 2 3 4 5 6 7 of its key lie at element"),
    [(slot, " ".join(map(str, where[slot, 0, :8]))) for slot in (0, 1, 2, 16)],
)

# %% [markdown]
# ## The naive version
#
# The original had a dispatch each: norm of Q, norm of K, rotate Q, rotate K, write K, write V;
# and it made tables of cosines on the host in every step and uploaded them. In numpy:

# %%
ROWS, HEADS, KV_HEADS = 5, 9, 3  # SmolLM2-135M
layout = KvLayout(num_blocks=4, block_size=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
q = rng.standard_normal((ROWS, HEADS, HEAD_DIM)).astype(np.float32)
k, v = rng.standard_normal((2, ROWS, KV_HEADS, HEAD_DIM)).astype(np.float32)
positions = np.array([14, 15, 16, 17, 0])  # four tokens of one sequence, one of another
block_tables = np.array([[2, 3], [0, 0]])  # [sequences, blocks]
sequence = np.array([0, 0, 0, 0, 1])
slots = block_tables[sequence, positions // 16] * 16 + positions % 16
print("slots:", *slots)

turned_q, turned_k = q.astype(np.float64), k.astype(np.float64)
turns = rope_table(positions, frequencies)
rotate(turned_q, turns, interleaved=True)
rotate(turned_k, turns, interleaved=True)
keys, values = np.zeros((2, 4 * 16, KV_HEADS, HEAD_DIM))
keys[slots], values[slots] = turned_k, v

# %% [markdown]
# ## The engine's version
#
# One dispatch. A simdgroup has one head of one row; a lane has pairs 0 + lane, 32 + lane, ...;
# each lane touches only its own pairs, which is what makes turning Q in place safe without a
# barrier.


# %%
def on(gpu):
    """The launch, and the buffers that it writes: Q, K's pool, V's pool."""
    places = [whole(gpu.from_numpy(array)) for array in (q, k, v, rope.turns(frequencies))]
    steps = [whole(gpu.from_numpy(x.astype(np.int32))) for x in (positions, slots)]
    pools = [whole(gpu.buffer(layout.nbytes)) for _ in range(2)]
    strides = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
    launch = rope.rope_and_store(
        *places, *steps, *pools, layout, ROWS, HEADS, HEAD_DIM, True, strides
    )
    return launch, places[0].buffer, *(span.buffer for span in pools)


launch, q_buffer, k_pool, v_pool = on(gpu)
run(gpu, launch)
agree("Q, turned in place", q_buffer.numpy(np.float32, q.shape), turned_q)
agree("K in its slots, half", layout.unpack_k(k_pool.numpy(np.float16)), keys, 1e-3)
agree("V in its slots, half", layout.unpack_v(v_pool.numpy(np.float16)), values, 1e-3)

# %% [markdown]
# Who wrote what? Here is block 2 of K's pool, head 0 (the first sequence's tokens 14 and 15, the
# last of that block): two rows of the picture are four dimensions of 16 tokens.

# %%
checking = checking_device()
(log,) = pictures.watch(checking, on(checking)[0])
block = HEAD_DIM * 16 * 2  # bytes of a block of one head
mine = [
    a._replace(offset=a.offset - 2 * KV_HEADS * block)
    for a in log.accesses("k_pool")
    if 0 <= a.offset - 2 * KV_HEADS * block < block // 4
]
log.rows = mine
pictures.save("10_rope_k_pool", pictures.owners(log, "k_pool", columns=64 // 2, element=2))

# %% [markdown]
# ## What it costs
#
# Next to nothing in bytes, and that is the point: six dispatches that depend on one another would
# cost more in waiting than in work.

# %%
cost = launch.cost
table(
    ("", "bytes read", "bytes written", "dispatches", "barriers"),
    [
        ("naive", 2 * cost.bytes_read, 2 * cost.bytes_written, 4, 0),
        ("engine", cost.bytes_read, cost.bytes_written, 1, cost.barriers),
    ],
)

# %% [markdown]
# ## What breaks without care: large positions
#
# The angle is position * frequency. In float32 the product of 131,071 and a frequency near 1 has a
# rounding error of up to 0.004 radians, and the cosine of it is as wrong. The engine counts in
# *turns*, with the frequency as two floats, high and low; `fma` takes the whole turns off the
# exact product, before anything is rounded:

# %%
position = np.float32(131_071)
exact = np.cos(131_071 * frequencies)
plain = np.cos((position * frequencies.astype(np.float32)).astype(np.float32))
high, low = rope.turns(frequencies).T
whole_turns = np.rint(position * high)
rest = (position.astype(np.float64) * high - whole_turns).astype(np.float32)  # what fma gives
fraction = rest + position * low
careful = np.cos(fraction * np.float32(2 * np.pi))
print(f"plain float32: off by up to {np.abs(plain - exact).max():.1e}")
print(f"in turns:      off by up to {np.abs(careful - exact).max():.1e}")

# %% [markdown]
# ## What breaks without care: padding
#
# A recorded program runs with a fixed number of rows; when the batch has fewer, the others are
# padding with slot -1. A kernel that forgets to look computes an address far outside the pool.
# `soft` says so at once where it is asked to check. Here the engine's kernel with its check taken
# out:

# %%
slots[4] = -1
text = splice(SHADERS / "rope.metal").replace("slots[row] < 0 || ", "")
launch = on(checking)[0]
pipeline = checking.library_from_source(text, "rope.metal").pipeline(
    launch.kernel, dict(launch.constants)
)
try:
    with checking.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(
            pipeline,
            launch.groups,
            launch.threads,
            [(a.span.buffer, a.span.offset) for a in launch.arguments],
            launch.parameters,
        )
except MetalError as error:
    print("\n".join(str(error).splitlines()[:4]))

# %% [markdown]
# ## Exercise
#
#     python -m lessons.check 10 rope --hint 0
#
# Turn the pairs, find the slots. Your kernel then runs in the engine, in place of ours.

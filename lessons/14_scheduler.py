"""# 14 Continuous batching and the prefix cache

When you have read this you can say what an engine decides before each step: who runs, with how
many tokens, in which blocks. The engine's files are `engine/scheduler.py`, `engine/block_pool.py`
and `engine/core.py`. No shader is new: this lesson is about time and memory.
"""

# %% [markdown]
# ## Why batches
#
# A decode step reads all weights, for one row or for eight. Eight sequences in one step cost
# little more than one: that is where the throughput of a server comes from. But requests come
# when they come, and end when they end.
#
# **Static batching** waits for a batch to end before the next begins: everybody waits for the
# longest. **Continuous batching** (Orca, Yu et al., 2022) decides anew at every step.

# %%
import charts
import numpy as np
import pictures
from lesson import device_name, small_model, table

from tinyrvllm import SamplingParams
from tinyrvllm.engine.block_pool import BlockPool, PoolError, chain
from tinyrvllm.engine.core import Engine
from tinyrvllm.engine.request import Request
from tinyrvllm.engine.scheduler import Limits, Scheduler
from tinyrvllm.model import load
from tinyrvllm.runner import open_runner
from tinyrvllm.runner.options import Options

model, name = load(small_model()), device_name()
print("device:", name)
rng = np.random.default_rng(0)
BLOCK = 16
# name: (tokens of the prompt, tokens to generate, the step at which it comes)
REQUESTS = {
    "a": (9, 12, 0),
    "b": (20, 3, 0),
    "c": (5, 4, 0),
    "d": (70, 6, 2),
    "e": (12, 8, 5),
    "f": (8, 3, 8),
}
PROMPTS = {who: rng.integers(0, 256, count).tolist() for who, (count, _, _) in REQUESTS.items()}


def engine(num_blocks: int = 64, token_budget: int = 32, **limits) -> Engine:
    """An engine of its own, on the lesson's device."""
    runner = open_runner(
        model, name, num_blocks, BLOCK, Options(batch_invariant=True), max_seqs=9, max_context=512
    )
    pool = BlockPool(num_blocks, BLOCK)
    return Engine(
        runner, Scheduler(pool, Limits(8, token_budget, batch_invariant=True, chunk=16, **limits))
    )


def request(who: str, prompt: list[int], tokens: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return Request(who, prompt, params, model.tokenizer, 512)


# %% [markdown]
# ## The naive version: static batches
#
# The first three, until the last of them has ended; then whoever has come meanwhile.


# %%
def run(serving: Engine, may_join) -> dict[str, list[int]]:
    """Serves all REQUESTS; may_join(serving): may one that has come enter? Tokens by name."""
    coming, entered, step = dict(REQUESTS), {}, 0
    while coming or serving.has_work:
        here = [who for who, (_, _, at) in coming.items() if at <= step]
        if may_join(serving):
            for who in here:
                entered[who] = request(who, PROMPTS[who], coming.pop(who)[1])
                serving.add(entered[who])
        serving.step()
        serving.check()  # no block owned twice, none lost
        step += 1
    return {who: one.ids[one.num_prompt :] for who, one in entered.items()}


static = engine()
static_tokens = run(static, lambda serving: not serving.has_work)
print(static.scheduler.totals.steps, "steps")
pictures.save("14_static", charts.schedule(static.snapshot().state["recent_steps"]))

# %% [markdown]
# ## The engine's version: continuous batching, chunked prefill
#
# Dark squares are pieces of prompts. A step takes at most 32 tokens here; those that decode go
# first, with one each, and what is left goes to prompts: d's 70 tokens come in pieces, and
# nobody's decoding waits for them.

# %%
continuous = engine()
tokens = run(continuous, lambda serving: True)
print(continuous.scheduler.totals.steps, "steps")
pictures.save("14_continuous", charts.schedule(continuous.snapshot().state["recent_steps"]))
print("the same tokens:", tokens == static_tokens)

# %% [markdown]
# "The same tokens" is not a matter of course: how a row is computed may depend on what else is in
# the step (another kernel for 5 rows than for 4, another order of summation). This engine was
# opened with `batch_invariant=True`, which pins one kernel and fixed places to cut prompts.
#
# ## The cost
#
# What each request waited for its first token, counted in steps, and how full the steps were:


# %%
def first_token(steps) -> dict[str, int]:
    """Steps from a request's coming to the end of its prompt."""
    left = {who: count for who, (count, _, _) in REQUESTS.items()}
    done = {}
    for number, work in steps:
        for who, rows in work:
            left[who] -= rows
            if left[who] <= 0 and who not in done:
                done[who] = number - REQUESTS[who][2]
    return done


both = [first_token(e.snapshot().state["recent_steps"]) for e in (static, continuous)]
table(
    ("request", *REQUESTS),
    [
        ("steps to the first token, static", *(both[0][who] for who in REQUESTS)),
        ("continuous", *(both[1][who] for who in REQUESTS)),
    ],
)

# %% [markdown]
# ## The prefix cache
#
# Chats begin alike: a system prompt, then all earlier turns. A whole block is known by a hash of
# its tokens *and of the block before it*, so equal hashes mean equal texts from the first token
# on:

# %%
system = rng.integers(0, 256, 48).tolist()  # three blocks
one, other = chain([], system + [1] * 20, BLOCK), chain([], system + [2] * 20, BLOCK)
print("blocks:", len(one), "- equal:", [a == b for a, b in zip(one, other, strict=True)])

serving = engine()
rows = []
for number, question in enumerate(([1] * 20, [2] * 20, [1] * 20)):
    serving.add(request(f"chat {number}", system + question, 4))
    computed = 0
    while serving.has_work:
        serving.step()
        computed += serving.snapshot().state["rows"]
    hits = serving.scheduler.totals.prefix_hits
    rows.append((f"chat {number}", len(system + question), hits, computed))
table(("request", "prompt tokens", "found so far", "tokens computed"), rows)

# %% [markdown]
# Blocks that nobody holds stay findable until they are needed for something else, the least
# recently used first. Never is the *last* token of a prompt taken from the cache: something must
# be computed to have logits.
#
# ## When the pool is full: preemption
#
# Two requests of 20 + 50 tokens need 5 blocks each in the end; here are 7 for both. When none is
# left, the youngest gives its own back and is computed again later, its prompt and what it had
# said so far. It costs steps; it changes nothing:


# %%
def two(num_blocks: int) -> tuple[Engine, list[list[int]]]:
    serving = engine(num_blocks)
    pair = [request(who, PROMPTS["b"], 50) for who in ("old", "young")]
    for each in pair:
        serving.add(each)
    while serving.has_work:
        serving.step()
        serving.check()
    return serving, [each.ids for each in pair]


(roomy, expected), (tight, squeezed) = two(64), two(7)
print(
    f"{roomy.scheduler.totals.steps} steps with room for both, "
    f"{tight.scheduler.totals.steps} without"
)
print("the same tokens:", squeezed == expected)
for step, kind, who, detail in tight.scheduler.events:
    print(f"  step {step}: {kind} {who}: {detail}")

# %% [markdown]
# ## What breaks without care: a block given back twice
#
# The worst defect of an engine is a block with two owners: one sequence reads the other's
# thoughts. So the pool keeps books, and `check` audits them; our tests call it after every step
# of random requests (`tests/engine`). Give a block back twice:

# %%
pool = BlockPool(4, BLOCK)
mine = pool.allocate(2)
try:
    pool.release(mine)
    pool.release(mine)
    pool.check([])
except PoolError as error:
    print(error)

# %% [markdown]
# The original, in some versions, lost the token that is sampled at the end of the prefill: its
# first answer token never counted. Here, `tokens` has exactly what was asked for:

# %%
print({who: (len(tokens[who]), REQUESTS[who][1]) for who in REQUESTS})

# %% [markdown]
# ## Exercises
#
#     python -m lessons.check 14 step --hint 0
#     python -m lessons.check 14 prefix --hint 0

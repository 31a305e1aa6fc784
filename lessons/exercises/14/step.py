"""Exercise 14, step: who runs in the next step, with how many tokens.

Complete steps 1 to 3 and keep the names of the variables. Check:  python -m lessons.check 14 step
"""


def step(running, waiting, budget):
    """running, waiting: [(name, pending tokens)] -> [(name, tokens)], budget tokens in all."""
    work = []

    # 1. Who is asked, in this order: decoding, then running prompts, then those that wait.
    decoding = []
    prompts = []
    order = running

    for name, pending in order:
        # 2. How many tokens it gets; the step is full when that is none.
        tokens = pending

        # 3. What is left for the others.
        work.append((name, tokens))
        budget = 0
    return work

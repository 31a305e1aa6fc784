"""Exercise 14, step, another right answer: a stable sort, and a running total."""


def step(running, waiting, budget):
    """running, waiting: [(name, pending tokens)] -> [(name, tokens)], budget tokens in all."""
    chosen, used = [], 0
    for name, pending in sorted(running, key=lambda request: request[1] > 1) + waiting:
        if used < budget:
            chosen.append((name, min(pending, budget - used)))
            used += chosen[-1][1]
    return chosen

"""Exercise 14, step."""


def step(running, waiting, budget):
    """running, waiting: [(name, pending tokens)] -> [(name, tokens)], budget tokens in all."""
    work = []
    decoding = [request for request in running if request[1] == 1]
    prompts = [request for request in running if request[1] > 1]
    order = decoding + prompts + waiting
    for name, pending in order:
        tokens = min(pending, budget)
        if tokens == 0:
            break
        work.append((name, tokens))
        budget = budget - tokens
    return work

"""Exercise 14, prefix."""


def prefix(ids, block_size, cache, digest):
    """ids: token ids; cache: {name: block}; digest(parent, tokens) -> name. Returns blocks."""
    blocks = []
    parent = ""
    most = (len(ids) - 1) // block_size
    for number in range(most):
        tokens = ids[number * block_size : (number + 1) * block_size]
        name = digest(parent, tokens)
        if name not in cache:
            break
        blocks.append(cache[name])
        parent = name
    return blocks

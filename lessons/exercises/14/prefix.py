"""Exercise 14, prefix: the blocks of the cache that hold the beginning of a text.

Complete steps 1 to 3 and keep the names of the variables. Check:  python -m lessons.check 14 prefix
"""


def prefix(ids, block_size, cache, digest):
    """ids: token ids; cache: {name: block}; digest(parent, tokens) -> name. Returns blocks."""
    blocks = []
    parent = ""

    # 1. How many blocks may be shared: whole ones, without the last token.
    most = 0

    for number in range(most):
        # 2. The block's tokens and name; the first that is not there is the end.
        tokens = ids[number:]
        name = digest(parent, tokens)

        # 3. It is there; the next one follows it.
        blocks.append(cache[name])
        parent = ""
    return blocks

"""Exercise 14, prefix, another right answer: one block, then the rest of the text."""


def prefix(ids, block_size, cache, digest):
    """ids: token ids; cache: {name: block}; digest(parent, tokens) -> name. Returns blocks."""

    def rest(start, parent):
        if start + block_size >= len(ids):
            return []
        here = digest(parent, ids[start : start + block_size])
        return [cache[here], *rest(start + block_size, here)] if here in cache else []

    return rest(0, "")

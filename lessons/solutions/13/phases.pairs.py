"""Exercise 13, phases, another right answer: each dispatch of the phase is asked."""


def phases(dispatches):
    """Dispatches in order, cut into lists with no conflict inside."""
    result = []
    for new in dispatches:
        if not result or any(conflict(old, new) for old in result[-1]):
            result.append([])
        result[-1].append(new)
    return result


def conflict(old, new):
    """Whether one writes what the other touches."""

    def meet(some, others):
        return any(a.overlaps(b) for a in some for b in others)

    return meet(old.writes, new.reads + new.writes) or meet(old.reads, new.writes)

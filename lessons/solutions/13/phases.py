"""Exercise 13, phases."""


def phases(dispatches):
    """Dispatches in order, cut into lists with no conflict inside."""
    found = []
    read = []
    written = []
    for dispatch in dispatches:
        raw = any(span.overlaps(other) for span in dispatch.reads for other in written)
        war = any(span.overlaps(other) for span in dispatch.writes for other in read)
        waw = any(span.overlaps(other) for span in dispatch.writes for other in written)
        conflict = raw or war or waw
        if conflict or not found:
            found.append([])
            written = []
            read = []
        read = read + list(dispatch.reads)
        written = written + list(dispatch.writes)
        found[-1].append(dispatch)
    return found

"""Exercise 13, phases: where a recorded program needs barriers.

Complete steps 1 to 4 and keep the names of the variables. Check:  python -m lessons.check 13
"""


def phases(dispatches):
    """Dispatches in order (.reads, .writes: spans), cut into lists with no conflict inside."""
    found = []
    read = []  # spans that the current phase reads
    written = []  # and writes
    for dispatch in dispatches:
        # 1. Does it read what the phase writes? Does it write what the phase reads, or writes?
        raw = False
        war = False
        waw = False

        conflict = False

        # 2. If it conflicts, or is the first of all, a new phase begins: nothing read or written.
        if conflict:
            pass

        # 3. What the phase now reads and writes.
        read = []
        written = []

        # 4. The dispatch joins the last phase.
        found.append([dispatch])
    return found

"""The front end: Metal source, as tokens, to C++ that clang compiles for this CPU."""


class MSLError(Exception):
    """Metal source that does not compile; the text is the diagnostics in Apple's manner.

    One or more lines `name.metal:LINE:COL: error: what is wrong`, each with the source line and a
    caret below it where the source is known.
    """

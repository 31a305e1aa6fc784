"""The one exception family that users meet."""


class TinyrvllmError(Exception):
    """A mistake that the reader of the message can mend.

    Its text is one sentence or two: what was expected, what was found, what to do. The command
    lines print it without a traceback and exit with status 2.
    """

"""Runs the preprocessor over Metal source: macros, the user's own includes, conditions.

With MSL_PREPROCESS our metal_stdlib is empty: the front end sees the user's tokens and nothing
else, and the translated code includes the whole of it by itself.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

DEFINES = (
    "MSL_PREPROCESS",
    "__METAL__=1",
    "__METAL_VERSION__=320",
    "__METAL_MACOS__=1",
    "__HAVE_BFLOAT__=1",
    "__HAVE_SIMDGROUP_REDUCTION__=1",
    "__HAVE_SIMDGROUP_MATRIX__=1",
)


def preprocess(
    source: str,
    filename: str,
    run: Callable[[str, Sequence[Path], Sequence[str]], str],
    include: Sequence[Path] = (),
    defines: Sequence[str] = (),
) -> str:
    """`run` is the compiler's preprocessor (Compiler.preprocess). Raises MSLError."""
    name = filename.replace("\\", "/").replace('"', "'")
    return run(f'#line 1 "{name}"\n{source}', include, [*DEFINES, *defines])

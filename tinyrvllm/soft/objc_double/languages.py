"""Versions of the Metal language, as far as one source compiles differently in two of them."""

from .engine import CompileError

# MTLLanguageVersion (major << 16 | minor), oldest first -> the macOS that brought it, the value of
# __METAL_VERSION__, and words that came with it.
LANGUAGES = {
    3 << 16: ((13, 0), 300, ()),
    3 << 16 | 1: ((14, 0), 310, ("bfloat",)),
    3 << 16 | 2: ((15, 0), 320, ("os_log", "os_log_default")),
    4 << 16: ((26, 0), 400, ()),
}


def in_language(source: str, version: int | None, system: tuple[int, int]) -> str:
    """The source, told its language version, without the words of newer ones.

    None is the newest that the system has. Raises CompileError for one that it has not.
    """
    known = [v for v, (since, *_) in LANGUAGES.items() if since <= system]
    version = known[-1] if version is None and known else version
    if version not in known:
        found = f"{(version or 0) >> 16}.{(version or 0) & 0xFFFF}"
        raise CompileError(f"language version {found} is not supported on macOS {system[0]}")
    number = LANGUAGES[version][1]
    lines = ["#undef __METAL_VERSION__", f"#define __METAL_VERSION__ {number}"]
    for since, _, words in (LANGUAGES[v] for v in LANGUAGES if v > version):
        lines += [f"#define {word} {word}_came_with_macOS_{since[0]}" for word in words]
    return "\n".join([*lines, '#line 1 "program_source"', source])

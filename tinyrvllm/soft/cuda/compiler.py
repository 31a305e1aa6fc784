"""NVRTC: from translated source to machine code for one GPU. Needs no GPU and no CUDA toolkit."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyrvllm.soft.msl import MSLError

HERE = Path(__file__).parent
INCLUDE = (HERE / "include", HERE.parent / "include")
MISSING = (
    "the cuda device needs the packages of its extra, and {} is missing: "
    'pip install "tinyrvllm[cuda]"'
)
# No fast maths and no contraction, as on every device: a*b+c rounds twice. -dc would keep
# functions apart; whole programs are inlined.
FLAGS = (
    "--std=c++20", "--device-as-default-execution-space", "--device-int128", "--fmad=false",
    "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
    "--display-error-number", "-diag-suppress=177,550,1675,161,1097,20012,1444,940",
    *(f"--include-path={folder}" for folder in INCLUDE),
)  # fmt: skip
_ERROR = re.compile(
    r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)"
)
_NAMESPACES = re.compile(r"\b(?:msl_user|metal::detail|msl)::|\bmsl_(?=[a-z]+[234]\b)")


@dataclass(frozen=True)
class Code:
    """A kernel's machine code; `log` has the compiler's warnings."""

    cubin: bytes
    log: str


def nvrtc() -> Any:
    """cuda.bindings.nvrtc. Raises MSLError where it, or the library, is not installed."""
    try:
        from cuda.bindings import nvrtc as module

        module.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MSLError(MISSING.format(f"NVRTC ({error})")) from None
    return module


@functools.cache
def identity() -> str:
    """Everything outside a source file that its machine code hangs on, for the cache."""
    _, major, minor = nvrtc().nvrtcVersion()
    headers = sorted(p for folder in INCLUDE for p in folder.rglob("*") if p.is_file())
    code = [*sorted((HERE.parent / "msl").glob("*.py")), *sorted(HERE.glob("*.py"))]
    return repr((major, minor, FLAGS, [p.read_text("utf-8") for p in [*headers, *code]]))


def compile(source: str, architecture: str, flags: Sequence[str] = ()) -> Code:
    """`architecture`: "sm_90". Raises MSLError with diagnostics `file:line:1: error: ...`."""
    rtc = nvrtc()
    error, program = rtc.nvrtcCreateProgram(source.encode(), b"program_source", 0, [], [])
    _check(error)
    try:
        options = [f"--gpu-architecture={architecture}", *FLAGS, *flags]
        (failed,) = rtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _bytes(program, rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog)
        text = log.decode("utf-8", "replace").rstrip("\0\n")
        if int(failed):
            raise MSLError(diagnostics(text))
        if "--fdevice-syntax-only" in flags:
            return Code(b"", text)
        return Code(_bytes(program, rtc.nvrtcGetCUBINSize, rtc.nvrtcGetCUBIN), text)
    finally:
        rtc.nvrtcDestroyProgram(program)


def _bytes(program: Any, size: Any, get: Any) -> bytes:
    error, count = size(program)
    _check(error)
    out = bytearray(count)
    _check(*get(program, out))
    return bytes(out)


def _check(error: Any) -> None:
    if int(error):
        _, text = nvrtc().nvrtcGetErrorString(error)
        raise RuntimeError(f"NVRTC: {text.decode()}")


def diagnostics(log: str) -> str:
    """NVRTC's errors, one a line, in the form of clang's; its whole text where it has none."""
    found = []
    for line in log.splitlines():
        match = _ERROR.match(line)
        if match:
            text = _NAMESPACES.sub("", match["text"]).replace('"', "'")
            found.append(f"{match['file']}:{match['line']}:1: error: {text}")
    return "\n".join(found) or log

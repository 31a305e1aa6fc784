"""The C++ compiler: which one, its flags, and how to call it.

`zig clang` and `zig ld.lld` of the `ziglang` wheel are the plain tools: unlike `zig c++` they do
not first build a libc and compiler-rt (46 s on a new machine). What the objects leave undefined
(memcpy, expf and their like) comes from the process that loads them.
"""

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyrvllm.soft.cpu import linker
from tinyrvllm.soft.msl import MSLError

HERE = Path(__file__).parent
INCLUDE = HERE.parent / "include"

_MISSING = (
    "the software device needs clang 19 or newer, and found none: "
    'pip install "tinyrvllm[soft]", or set TINYRVLLM_CLANG to a clang'
)
FRAME_BYTES = 48_000  # of a fiber's 64 KiB stack (AVX-512 spills more); the rest is for what it calls
LANGUAGE = ("-x", "c++", "-std=c++20")
# No fast maths and no contraction: a*b+c rounds twice, and half rounds after each operation.
FLAGS = (
    *LANGUAGE,
    *shlex.split("""-O2 -fPIC -fno-exceptions -fno-rtti -fno-math-errno -fno-trapping-math -ffp-contract=off
    -fno-lax-vector-conversions -fno-sanitize=undefined -fvisibility=hidden -fno-stack-protector
    -fno-strict-aliasing -fdeclspec -fno-threadsafe-statics -fsigned-char -Xclang -ffloat16-excess-precision=none
    -Wall -Wno-unused -Wno-unknown-pragmas -Wno-unknown-attributes -Wno-vla-cxx-extension
    -Wno-undefined-internal -Wno-undefined-inline"""),
    f"-Wframe-larger-than={FRAME_BYTES}",
    # A third less to compile for a large kernel, and no slower: tiles are unrolled whole anyway.
    "-fno-slp-vectorize",
    *("-mllvm", "-unroll-runtime=false", "-mllvm", "-unroll-allow-partial=false"),
)
CHECK_FLAGS = ("-DMSL_CHECK",)


# Cygwin's ABI is that of Windows with a long of 64 bits, which Metal has too.
WINDOWS_TARGET = "x86_64-pc-windows-cygnus"
SYSTEMS = {"win32": "windows", "darwin": "macos"}


@dataclass(frozen=True, slots=True)
class Compiler:
    clang: tuple[str, ...]  # the command
    version: str
    zig: str | None  # the program that has linkers; None: a system's clang
    target: str | None = None  # None: this machine
    system: str = SYSTEMS.get(sys.platform, "linux")

    @property
    def machine_flags(self) -> tuple[str, ...]:
        """Flags that hang on the processor and the system."""
        processor = self.target or platform.machine().lower()
        flags = []
        if self.target or self.system == "windows":
            flags += ["-target", self.target or WINDOWS_TARGET]
        if self.target is None:
            flags.append("-mcpu=native" if processor in ("arm64", "aarch64") else "-march=native")
        elif processor.startswith("x86_64"):
            flags.append("-march=x86-64-v3")  # AVX2 and conversions of half
        if processor.startswith(("x86_64", "amd64")):
            flags.append("-mno-red-zone")  # fiber.h pushes onto the stack
            # The instructions from float to bfloat take subnormals for zeros.
            flags += ["-mno-avx512bf16", "-mno-avxneconvert"]
        if self.system == "windows":
            flags += ["-D_WIN32", "-mno-stack-arg-probe"]  # a fiber's stack needs no probing
        return tuple(flags)

    @property
    def narrow_flags(self) -> tuple[str, ...]:
        """For kernels whose vectors are Metal's float4: a compiler that joins four of them for
        AVX-512 makes matvec at 4 rows slower (0.70 against 0.41 ms). Matrix tiles gain by it."""
        is_x86 = (self.target or platform.machine().lower()).startswith(("x86_64", "amd64"))
        return ("-mprefer-vector-width=256",) if is_x86 else ()

    def run(
        self, arguments: Sequence[str], sent: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """`sent` goes to the compiler's standard input."""
        return subprocess.run(
            [*self.clang, *arguments],
            input=sent,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )

    def preprocess(self, source: str, include: Sequence[Path], defines: Sequence[str]) -> str:
        """The preprocessed text of a user's source. Raises MSLError."""
        flags = [f"-I{p}" for p in [*include, INCLUDE]] + [f"-D{d}" for d in defines]
        result = self.run(["-E", *LANGUAGE, *flags, "-"], source)
        if result.returncode:
            raise MSLError(result.stderr)
        return result.stdout

    def compile(
        self, source: Path, output: Path, flags: Sequence[str], to: Sequence[str] = ("-c",)
    ) -> str:
        """Makes an object file; returns the warnings. Raises MSLError with the raw diagnostics."""
        arguments = [*FLAGS, *self.machine_flags, f"-I{HERE}", f"-I{INCLUDE}"]
        result = self.run([*to, *arguments, *flags, str(source), "-o", str(output)])
        if result.returncode:
            raise MSLError(result.stderr)
        return result.stderr

    def precompile(self, header: Path, output: Path, flags: Sequence[str]) -> None:
        """Makes a precompiled header; it may only be used with the same flags."""
        arguments = [*FLAGS, *self.machine_flags, f"-I{HERE}", f"-I{INCLUDE}", *flags]
        arguments += ["-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp"]
        result = self.run([*arguments, "-x", "c++-header", str(header), "-o", str(output)])
        if result.returncode:
            raise MSLError(result.stderr)

    def compile_instrumented(
        self, source: Path, output: Path, flags: Sequence[str], instrument: Callable[[str], str]
    ) -> str:
        """Like `compile`, with a change to the LLVM IR on the way."""
        ir = output.with_suffix(".ll")
        warnings = self.compile(source, ir, flags, to=("-S", "-emit-llvm"))
        ir.write_text(instrument(ir.read_text(encoding="utf-8")), encoding="utf-8")
        rest = ["-x", "ir", "-O1", "-fPIC", "-Xclang", "-disable-llvm-passes", *self.machine_flags]
        result = self.run(["-c", *rest, str(ir), "-o", str(output)])
        if result.returncode:
            raise RuntimeError(f"instrumented code does not compile: {result.stderr}")
        return warnings + result.stderr

    def check_syntax(self, source: Path, flags: Sequence[str]) -> str:
        """All diagnostics of a compilation that makes nothing."""
        arguments = [*FLAGS, *self.machine_flags, f"-I{HERE}", f"-I{INCLUDE}"]
        return self.run(["-fsyntax-only", *arguments, *flags, str(source)]).stderr

    def link(self, objects: Sequence[Path], output: Path) -> None:
        """Makes a library that this process can load."""
        linker.link(self.zig, self.clang[0], self.system, objects, output)


@functools.cache
def find() -> Compiler:
    """$TINYRVLLM_CLANG, else the ziglang wheel's, else the system's. Raises MSLError."""
    chosen = os.environ.get("TINYRVLLM_CLANG")
    if chosen:
        return _system(chosen)
    if importlib.util.find_spec("ziglang"):
        import ziglang

        zig = str(Path(ziglang.__file__).parent / ("zig.exe" if sys.platform == "win32" else "zig"))
        version = "ziglang " + importlib.metadata.version("ziglang")
        return Compiler((zig, "clang"), version, zig)
    names = ("clang", *(f"clang-{n}" for n in range(30, 18, -1)))
    for path in filter(None, map(shutil.which, names)):
        if _major(path) >= 19:
            return _system(path)
    raise MSLError(_MISSING)


def _system(clang: str) -> Compiler:
    if shutil.which(clang) is None:
        raise MSLError(f"TINYRVLLM_CLANG names {clang}, which is no program; {_MISSING}")
    major = _major(clang)
    if major < 19:
        raise MSLError(f"{clang} is clang {major}; {_MISSING}")
    return Compiler((clang,), f"{clang} {major}", None)


def _major(clang: str) -> int:
    text = subprocess.run([clang, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"clang version (\d+)", text)
    return int(match[1]) if match else 0


def identity() -> str:
    """Everything outside a source file that its machine code hangs on, for the cache."""
    return _identity(find())


@functools.cache
def _identity(compiler: Compiler) -> str:
    headers = sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp"), *INCLUDE.rglob("*")])
    front_end = sorted((HERE.parent / "msl").glob("*.py")) + sorted(HERE.glob("*.py"))
    texts = [p.read_text() for p in [*headers, *front_end] if p.is_file()]
    return repr((compiler, _processor(), texts))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        return next((x for x in lines if x.lower().startswith(("flags", "features"))), "")
    return platform.processor() + platform.machine()

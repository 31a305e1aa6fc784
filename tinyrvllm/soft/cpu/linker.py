"""Object files -> a library that this process can load, on each system.

Kernels call a few functions of the C library (expf, memcpy). Linux and macOS look them up in the
process; Windows wants to know at link time which DLL has them.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

WINDOWS_DLLS = {  # what our code calls there
    "kernel32.dll": """SwitchToThread AcquireSRWLockExclusive ReleaseSRWLockExclusive
        SleepConditionVariableSRW WakeAllConditionVariable""",
    "ucrtbase.dll": """memcpy memmove memset memcmp calloc free
        acosf acoshf asinf asinhf atan2f atanf atanhf ceilf copysignf cosf coshf erff exp2f expf
        expm1f fabsf fdimf floorf fmaf fmaxf fminf fmodf frexpf ilogbf ldexpf log10f log1pf log2f
        logf nextafterf powf rintf roundf scalbnf sinf sinhf sqrtf tanf tanhf truncf
        cos exp exp2 frexp ldexp log pow sin sqrt""",
    "msvcrt.dll": "printf fflush",  # inline functions in the newer ucrtbase.dll
}


def link(zig: str | None, clang: str, system: str, objects: Sequence[Path], output: Path) -> None:
    """Links with zig's linkers, or with `clang` where `zig` is None. Raises RuntimeError."""
    names = list(map(str, objects))
    if system == "windows":
        if zig is None:
            raise RuntimeError('on Windows the software device needs zig: pip install "ziglang"')
        _run([zig, "lld-link", "/dll", "/noentry", f"/out:{output}", *names,
              *windows_imports(zig, output.parent)])  # fmt: skip
    elif system == "macos" and zig is not None:
        # Zig's own linker, which signs what it makes; Apple silicon runs nothing unsigned.
        _run([zig, "build-lib", "-dynamic", *names, "-fno-compiler-rt", "-fno-ubsan-rt",
              "-fallow-shlib-undefined", f"-femit-bin={output}"])  # fmt: skip
    elif system == "macos":
        _run([clang, "-dynamiclib", "-Wl,-undefined,dynamic_lookup", *names, "-o", str(output)])
    elif zig is not None:
        _run([zig, "ld.lld", "-shared", *names, "-o", str(output)])
    else:
        _run([clang, "-shared", "-nostdlib", *names, "-o", str(output)])


def windows_imports(
    zig: str, folder: Path, dlls: Mapping[str, str] = WINDOWS_DLLS
) -> list[str]:
    """Import libraries, made in `folder`."""
    made = []
    for dll, symbols in dlls.items():
        definition, library = folder / f"{dll}.def", folder / f"{dll}.lib"
        definition.write_text(f"LIBRARY {dll}\nEXPORTS\n" + "\n".join(symbols.split()) + "\n")
        _run([zig, "dlltool", "-m", "i386:x86-64", "-d", str(definition), "-l", str(library)])
        made.append(str(library))
    return made


def _run(arguments: Sequence[str]) -> None:
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"linking failed: {' '.join(arguments)}\n{result.stderr}")

"""From translated source to machine code: the steps that run the compiler.

The shared library of a kernel holds that kernel alone, with its function constants as constant
expressions. One with simdgroup matrices is compiled twice at once: lane 0's code does the matrix
work, in the code of the other lanes a matrix operation is nothing (simdgroup_matrix.h).
"""

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tinyrvllm.soft.cpu import cache, compiler, native
from tinyrvllm.soft.cpu.instrument import INSTRUMENT_FLAGS, instrument
from tinyrvllm.soft.cpu.single_flight import SingleFlight
from tinyrvllm.soft.msl import MSLError
from tinyrvllm.soft.msl.calls import Level
from tinyrvllm.soft.msl.constants import as_macros
from tinyrvllm.soft.msl.translate import KernelUnit, Unit

Constants = Mapping[int, int | float | bool]

LEAD, REST, SPACES = ("-DMSL_LEAD=1",), ("-DMSL_LEAD=0",), ("-DMSL_LEAD=1", "-DMSL_AS")
# A program for code counts the threadgroup memory of its one kernel.
_MANY_KERNELS = "#undef MSL_STATIC_BYTES\n#define MSL_STATIC_BYTES(kernel, count)\n"
# A source may have several instances of a kernel, of which each would state its size.
_NO_SIZES = "#undef MSL_STATIC_BYTES\n#define MSL_STATIC_BYTES(kernel, count)\n"
_POOL = ThreadPoolExecutor(4, thread_name_prefix="tinyrvllm-compile")
_HEADERS: SingleFlight[Path] = SingleFlight()


def warm_up() -> None:
    """Starts to precompile what the first kernel of a new installation will need."""
    _POOL.submit(_header, LEAD)


def syntax_diagnostics(unit: Unit, flags: tuple[str, ...]) -> str:
    """Diagnostics of the whole source, all kernels instantiated, no code made.

    With SPACES, device, constant and threadgroup are address spaces. That pass is mandatory: a
    threadgroup variable that the rewriting missed would silently become private.
    """
    with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
        path = Path(folder) / "syntax.cpp"
        functions = (k.kernel.function for k in unit.kernels.values())
        kernels = (f"constexpr auto msl_kernel{i} = &{f};" for i, f in enumerate(functions))
        values = _MANY_KERNELS + as_macros(unit.constants, {})
        path.write_text(_program(unit, values, "\n".join(kernels)), encoding="utf-8")
        flags = (*flags, *_mode_flags(unit))
        return compiler.find().check_syntax(path, [*flags, *_including(_header(flags))])


def kernel(whole: Unit, unit: KernelUnit, constants: Constants, check: bool) -> bytes:
    """The shared library of one kernel. Raises MSLError with clang's own text."""
    flags = [*_mode_flags(whole), *(compiler.CHECK_FLAGS if check else ())]
    jobs, objects = [], []
    with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
        sides = {"lead": LEAD, "rest": REST} if has_two_sides(whole, unit) else {"lead": LEAD}
        for side, defines in sides.items():
            path, output = Path(folder) / f"{side}.cpp", Path(folder) / f"{side}.o"
            text = _program(whole, as_macros(whole.constants, constants), _entry(unit, side, check or bool(whole.steps)))
            path.write_text(text, encoding="utf-8")
            checks = functools.partial(instrument, side=side, alone=len(sides) == 1)
            code = (*defines, *flags)
            narrow = () if unit.matrices else compiler.find().narrow_flags
            jobs.append(_POOL.submit(_object, path, output, code, narrow, checks if check else None))
            objects.append(output)
        warnings = "".join([job.result() for job in jobs])
        if "stack frame size" in warnings:
            file, line = unit.kernel.place
            raise MSLError(
                f"{file}:{line}:1: error: kernel '{unit.kernel.name}' needs more private memory "
                f"than the {compiler.FRAME_BYTES} bytes that a thread has on this device"
            )
        if check:
            objects.append(native.check_object())
        library = Path(folder) / ("kernel" + native.SUFFIX)
        compiler.find().link(objects, library)
        return library.read_bytes()


def has_two_sides(whole: Unit, unit: KernelUnit) -> bool:
    return unit.matrices and not whole.per_lane


def _object(
    source: Path,
    output: Path,
    flags: tuple[str, ...],
    more: tuple[str, ...],
    checks: Callable[[str], str] | None,
) -> str:
    """`more`: flags that the precompiled header need not share."""
    if checks is None:
        return compiler.find().compile(source, output, [*flags, *more, *_including(_header(flags))])
    flags = (*flags, *INSTRUMENT_FLAGS)
    including = _including(_header(flags))
    return compiler.find().compile_instrumented(source, output, [*flags, *including], checks)


def _header(flags: tuple[str, ...]) -> Path:
    """metal_stdlib and entry.h, precompiled with these flags: made once and cached."""

    def make() -> Path:
        source = compiler.HERE / "precompiled.h"
        name = cache.key("header", flags, str(source), compiler.identity()) + ".pch"
        path = cache.get(name)
        if path is None:
            with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
                output = Path(folder) / "header.pch"
                compiler.find().precompile(source, output, flags)
                path = cache.put(name, output.read_bytes())
        return path

    return _HEADERS.get((compiler.find(), flags), make)


def _including(header: Path) -> Sequence[str]:
    """Its key in the cache vouches for it: clang need not compare sizes and flags once more."""
    return ("-include-pch", str(header), "-Xclang", "-fno-validate-pch")


def _program(whole: Unit, values: str = "", entry: str = "") -> str:
    """The translation unit: the user's code, then the entry points.

    Internal linkage keeps lane 0's code and that of the other lanes apart in one library. A
    namespace would not do: some sources add overloads to namespace metal.
    """
    return (
        f"{values}#pragma clang attribute push(__attribute__((internal_linkage)), "
        "apply_to = any(function, record, variable(is_global)))\n"
        f'{whole.code}\n#pragma clang attribute pop\n# 1 "msl_entries"\n{entry}\n'
    )


def _entry(unit: KernelUnit, side: str, fibers: bool) -> str:
    """`fibers`: the threads need stacks of their own, even where a loop would do."""
    arguments = [f"&{unit.kernel.function}"]
    for p in unit.kernel.params:
        slots = {"buffer": f"Buffer<{p.index}>", "threadgroup": f"Threadgroup<{p.index}>"}
        arguments.append("msl::" + slots.get(p.kind, p.kind))
    how = "loop_entry" if unit.level == Level.LOOP and not fibers else "fiber_entry"
    text = f"MSL_ENTRY({side}, msl::{how}<{', '.join(arguments)}>)"
    return text + (f"\nMSL_ENTRY_BYTES({unit.kernel.frame})" if side == "lead" else "")


def _mode_flags(whole: Unit) -> tuple[str, ...]:
    per_lane = ("-DMSL_MATRIX_PER_LANE",) if whole.per_lane else ()
    return (*per_lane, "-DMSL_FOLLOW") if whole.steps else per_lane

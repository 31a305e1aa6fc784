"""A compiled Metal library on this CPU: what MTLLibrary and MTLComputePipelineState stand on.

compile_library translates a source and checks it whole; SoftLibrary.kernel makes machine code for
one kernel with one set of function constants. Both come from the cache on disk where they can.
"""

import math
import pickle
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tinyrvllm.soft.cpu import cache, compiler, native
from tinyrvllm.soft.msl import MSLError, diagnostics
from tinyrvllm.soft.msl.calls import Level
from tinyrvllm.soft.msl.constants import FunctionConstant
from tinyrvllm.soft.msl.kernels import Param
from tinyrvllm.soft.msl.preprocess import preprocess
from tinyrvllm.soft.msl.translate import KernelUnit, Unit, translate

MAX_THREADS = 1024  # of a threadgroup, on every Apple GPU since A11
_COMPILES = ThreadPoolExecutor(4, thread_name_prefix="tinyrvllm-compile")


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What a host may know about a kernel before it is compiled."""

    name: str
    params: tuple[Param, ...]
    max_total_threads: int | None  # [[max_total_threads_per_threadgroup(n)]]
    function_constants: dict[int, FunctionConstant]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class SoftKernel:
    """A kernel's machine code, loaded."""

    info: KernelInfo
    level: Level
    check: bool
    static_threadgroup_bytes: int
    entry: int  # address of the code for lane 0, or for all lanes
    entry_rest: int
    library: object  # keeps the code loaded
    path: Path  # of the shared library, for debug information

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def max_total_threads(self) -> int:
        return self.info.max_total_threads or MAX_THREADS


class SoftLibrary:
    """All kernels of one source. Machine code is made per kernel, by `kernel`."""

    def __init__(self, unit: Unit, key: str, filename: str, source: str, check: bool) -> None:
        self.filename, self.source, self.check = filename, source, check
        self._unit, self._key = unit, key
        self._kernels: dict[tuple[object, ...], Future[SoftKernel]] = {}
        self._lock = threading.Lock()
        self.functions = {name: _info(k) for name, k in unit.kernels.items()}

    def kernel(
        self, name: str, constants: Mapping[int, int | float | bool] | None = None
    ) -> SoftKernel:
        """The kernel with these function constants, compiled or from the cache.

        Raises MSLError where it does not compile, KeyError for an unknown name, and ValueError
        where a function constant that the kernel needs is missing. Safe to call from threads.
        """
        if name not in self.functions:
            known = ", ".join(self.functions) or "none"
            raise KeyError(f"{self.filename} has no kernel '{name}'; it has: {known}")
        given = dict(constants or {})
        for index, constant in self.functions[name].function_constants.items():
            if constant.required and index not in given:
                raise ValueError(
                    f"kernel '{name}' needs function constant {index} "
                    f"('{constant.name}', {constant.type}): give it a value"
                )
        used = {i: v for i, v in given.items() if i in self.functions[name].function_constants}
        wanted = (name, *sorted(used.items()))
        with self._lock:
            if wanted not in self._kernels:
                self._kernels[wanted] = Future()
                mine = True
            else:
                mine = False
            future = self._kernels[wanted]
        if mine:
            try:
                future.set_result(self._build(self._unit.kernels[name], used))
            except BaseException as error:
                with self._lock:
                    del self._kernels[wanted]
                future.set_exception(error)
        return future.result()

    def _build(self, unit: KernelUnit, constants: Mapping[int, int | float | bool]) -> SoftKernel:
        name = cache.key(self._key, unit.kernel.name, sorted(constants.items()), self.check)
        path = cache.get(name + native.SUFFIX)
        if path is None:
            content = _compile(self._unit, unit, constants, self.check, self._sources())
            path = cache.put(name + native.SUFFIX, content)
        loaded = native.load_kernel(path, unit.matrices and not self._unit.per_lane)
        return SoftKernel(
            self.functions[unit.kernel.name],
            unit.level,
            self.check,
            loaded.static_bytes,
            loaded.lead,
            loaded.rest,
            loaded.library,
            path,
        )

    def _sources(self) -> dict[str, str]:
        return {self.filename: self.source}


def compile_library(
    source: str,
    *,
    filename: str,
    check: bool = False,
    include: Sequence[Path] = (),
    defines: Sequence[str] = (),
) -> SoftLibrary:
    """Translates Metal source and checks it as a whole. Raises MSLError with Apple-like diagnostics.

    `filename` is what diagnostics call it; `defines` are "NAME=VALUE". With `check`, the kernels
    report what goes wrong while they run (check.py).
    """
    cc = compiler.find()
    key = cache.key(source, filename, tuple(defines), compiler.identity())
    if include:  # the key must tell what the included files say
        text = preprocess(source, filename, cc.preprocess, include, defines)
        key = cache.key(text, filename, compiler.identity())
    path = cache.get(key + ".unit")
    if path is not None:
        unit: Unit = pickle.loads(path.read_bytes())
        return SoftLibrary(unit, key, filename, source, check)
    try:
        if not include:
            text = preprocess(source, filename, cc.preprocess, include, defines)
        unit = translate(text, filename)
    except MSLError as error:
        lines = diagnostics.errors(str(error)) or str(error).splitlines()
        raise MSLError(diagnostics.render(lines, {filename: source})) from None
    found = diagnostics.address_space_errors(_check_address_spaces(unit))
    if found:
        raise MSLError(diagnostics.render(found, {filename: source}))
    cache.put(key + ".unit", pickle.dumps(unit))
    return SoftLibrary(unit, key, filename, source, check)


def _info(unit: KernelUnit) -> KernelInfo:
    k = unit.kernel
    return KernelInfo(k.name, k.params, k.max_total_threads, unit.constants, *k.place)


def _check_address_spaces(unit: Unit) -> str:
    """Diagnostics of the whole source with device, constant and threadgroup as address spaces.

    Mandatory: a threadgroup variable that the rewriting missed would silently become private.
    """
    with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
        path = Path(folder) / "spaces.cpp"
        path.write_text(_program(unit.code, ()), encoding="utf-8")
        return compiler.find().check_syntax(path, ["-DMSL_AS", "-DMSL_LEAD=1", *_matrix_flags(unit)])


def _program(code: str, entries: Sequence[str]) -> str:
    """The translation unit: our metal_stdlib, the user's code in a namespace of its own, entries."""
    return (
        '#include <metal_stdlib>\n#include "entry.h"\nnamespace msl_user { namespace {\n'
        f'{code}\n}} }}\n# 1 "msl_entries"\n' + "\n".join(entries)
    )


def _compile(
    whole: Unit,
    unit: KernelUnit,
    constants: Mapping[int, int | float | bool],
    check: bool,
    sources: dict[str, str],
) -> bytes:
    """The shared library of one kernel: lane 0's and the other lanes' code are compiled at once."""
    flags = [*_matrix_flags(whole), *_constant_flags(whole, constants)]
    if check:
        flags += [*compiler.CHECK_FLAGS, *compiler.SANITIZE_FLAGS]
    apart = unit.matrices and not whole.per_lane
    with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
        jobs, objects = [], []
        for side, lead in (("lead", 1), ("rest", 0))[: 1 + apart]:
            path, output = Path(folder) / f"{side}.cpp", Path(folder) / f"{side}.o"
            path.write_text(_program(whole.code, [_entry(unit, side, check)]), encoding="utf-8")
            options = [*flags, f"-DMSL_LEAD={lead}"]
            jobs.append(_COMPILES.submit(compiler.find().compile, path, output, options))
            objects.append(output)
        try:
            warnings = [job.result() for job in jobs]
        except MSLError as error:
            lines = diagnostics.errors(str(error)) or str(error).splitlines()
            raise MSLError(diagnostics.render(lines, sources)) from None
        for line in "".join(warnings).splitlines():
            if "stack frame size" in line:  # a fiber's stack has 64 KiB
                raise MSLError(
                    f"{unit.kernel.place[0]}:{unit.kernel.place[1]}:1: error: kernel "
                    f"'{unit.kernel.name}' needs too much private memory: {line}"
                )
        if check:
            objects.append(native.check_object())
        library = Path(folder) / ("kernel" + native.SUFFIX)
        compiler.find().link(objects, library)
        return library.read_bytes()


def _entry(unit: KernelUnit, side: str, check: bool) -> str:
    kinds = [f"&msl_user::{unit.kernel.function}"]
    for p in unit.kernel.params:
        slot = {"buffer": f"Buffer<{p.index}>", "threadgroup": f"Threadgroup<{p.index}>"}
        kinds.append("msl::" + slot.get(p.kind, p.kind))
    how = "loop_entry" if unit.level == Level.LOOP and not check else "fiber_entry"
    text = f"MSL_ENTRY({side}, msl::{how}<{', '.join(kinds)}>)"
    return text + (f"\nMSL_ENTRY_BYTES({unit.kernel.frame})" if side == "lead" else "")


def _matrix_flags(whole: Unit) -> list[str]:
    return ["-DMSL_MATRIX_PER_LANE"] if whole.per_lane else []


def _constant_flags(whole: Unit, constants: Mapping[int, int | float | bool]) -> list[str]:
    flags = []
    for index in whole.constants:
        value = constants.get(index, 0)
        text = _float(value) if isinstance(value, float) else str(int(value))
        flags += [f"-DMSL_FC_{index}={text}", f"-DMSL_FC_DEFINED_{index}={int(index in constants)}"]
    return flags


def _float(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    return f"({'-' * (value < 0)}INFINITY)" if math.isinf(value) else f"({value.hex()})"

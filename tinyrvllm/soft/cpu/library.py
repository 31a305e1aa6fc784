"""A compiled Metal library on this CPU: what MTLLibrary and MTLComputePipelineState stand on.

compile_library translates a source and checks it whole; SoftLibrary.kernel makes machine code for
one kernel with one set of function constants. Both come from the cache on disk where they can.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyrvllm.soft.cpu import build, cache, compiler, native
from tinyrvllm.soft.cpu.build import Constants
from tinyrvllm.soft.cpu.single_flight import SingleFlight
from tinyrvllm.soft.msl import MSLError, diagnostics
from tinyrvllm.soft.msl.calls import Level
from tinyrvllm.soft.msl.constants import FunctionConstant
from tinyrvllm.soft.msl.follow import Step
from tinyrvllm.soft.msl.kernels import Param
from tinyrvllm.soft.msl.preprocess import preprocess
from tinyrvllm.soft.msl.translate import KernelUnit, Unit, translate

MAX_THREADS = 1024  # of a threadgroup, on every Apple GPU since A11


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
    steps: tuple[Step, ...]  # what a followed thread may note
    static_threadgroup_bytes: int
    entry: int  # address of the code for lane 0, or for all lanes
    entry_rest: int
    library: object  # keeps the code loaded
    filename: str
    source: str  # what the user wrote, for reports

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
        self.steps = unit.steps
        self._kernels: SingleFlight[SoftKernel] = SingleFlight()
        self.functions = {name: _info(k) for name, k in unit.kernels.items()}

    def kernel(self, name: str, constants: Constants | None = None) -> SoftKernel:
        """The kernel with these function constants, compiled or from the cache.

        Raises MSLError where it does not compile, KeyError for an unknown name, and ValueError
        where a function constant that the kernel needs is missing. Safe to call from threads.
        """
        if name not in self.functions:
            known = ", ".join(self.functions) or "none"
            raise KeyError(f"{self.filename} has no kernel '{name}'; it has: {known}")
        used: dict[int, int | float | bool] = {}
        for index, constant in self.functions[name].function_constants.items():
            if constants and index in constants:
                used[index] = constants[index]
            elif constant.required:
                raise ValueError(
                    f"kernel '{name}' needs function constant {index} "
                    f"('{constant.name}', {constant.type}): give it a value"
                )
        unit = self._unit.kernels[name]
        return self._kernels.get((name, *sorted(used.items())), lambda: self._build(unit, used))

    def _build(self, unit: KernelUnit, constants: Constants) -> SoftKernel:
        key = cache.key(self._key, unit.kernel.name, sorted(constants.items()), self.check)
        path = cache.get(key + native.SUFFIX)
        if path is None:
            try:
                content = build.kernel(self._unit, unit, constants, self.check)
            except MSLError as error:
                raise _in_apples_manner(error, self.filename, self.source) from None
            path = cache.put(key + native.SUFFIX, content)
        code = native.load_kernel(path, build.has_two_sides(self._unit, unit))
        info = self.functions[unit.kernel.name]
        return SoftKernel(
            info,
            Level.THREADGROUP if self.check or self.steps else unit.level,
            self.check,
            self.steps,
            code.static_bytes,
            code.lead,
            code.rest,
            code.library,
            self.filename,
            self.source,
        )


def compile_library(
    source: str,
    *,
    filename: str,
    check: bool = False,
    follow: bool = False,
    include: Sequence[Path] = (),
    defines: Sequence[str] = (),
) -> SoftLibrary:
    """Translates Metal source and checks it as a whole. Raises MSLError with Apple-like diagnostics.

    `filename` is what diagnostics call it; `include` are folders of the user's own headers;
    `defines` are "NAME=VALUE". With `check`, the kernels report what goes wrong while they run
    (check.py); with `follow`, what one thread does (execute.follow).
    """
    cc = compiler.find()
    text = None
    if include:  # what the included files say decides, so they are read before the cache is asked
        text = _preprocess(source, filename, cc, include, defines)
    key = cache.key(text or source, filename, tuple(defines), follow, compiler.identity())
    path = cache.get(key + ".unit")
    if path is not None:
        return SoftLibrary(pickle.loads(path.read_bytes()), key, filename, source, check)
    build.warm_up()
    try:
        if text is None:
            text = _preprocess(source, filename, cc, include, defines)
        unit = translate(text, filename, follow)
    except MSLError as error:
        raise _in_apples_manner(error, filename, source) from None
    spaces = build.syntax_diagnostics(unit, build.SPACES)
    found = diagnostics.address_space_errors(spaces)
    if not found and diagnostics.parse(spaces):  # doubtful ones: ask without address spaces
        found = diagnostics.parse(build.syntax_diagnostics(unit, build.LEAD))
    found = [d for d in found if not d.at_pipeline]
    if found:
        raise MSLError(diagnostics.render(found, {filename: source}))
    cache.put(key + ".unit", pickle.dumps(unit))
    return SoftLibrary(unit, key, filename, source, check)


def _info(unit: KernelUnit) -> KernelInfo:
    k = unit.kernel
    return KernelInfo(k.name, k.params, k.max_total_threads, unit.constants, *k.place)


def _preprocess(
    source: str,
    filename: str,
    cc: compiler.Compiler,
    include: Sequence[Path],
    defines: Sequence[str],
) -> str:
    try:
        return preprocess(source, filename, cc.preprocess, include, defines)
    except MSLError as error:
        raise _in_apples_manner(error, filename, source) from None


def _in_apples_manner(error: MSLError, filename: str, source: str) -> MSLError:
    found = diagnostics.parse(str(error))
    return MSLError(diagnostics.render(found, {filename: source})) if found else error

"""A Metal library compiled for an NVIDIA GPU: what MTLLibrary and its pipelines stand on.

compile_library translates a source and has NVRTC look at all of it; CudaLibrary.code makes the
machine code of one kernel with one set of function constants. Both come from the cache on disk
where they can.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path

from tinyrvllm.soft.cpu import cache
from tinyrvllm.soft.cpu.library import KernelInfo
from tinyrvllm.soft.cpu.single_flight import SingleFlight
from tinyrvllm.soft.cuda import compiler, program
from tinyrvllm.soft.cuda import preprocess as preprocessor
from tinyrvllm.soft.cuda.program import Constants
from tinyrvllm.soft.cuda.translate import for_nvrtc
from tinyrvllm.soft.msl import MSLError, diagnostics
from tinyrvllm.soft.msl.preprocess import preprocess
from tinyrvllm.soft.msl.translate import Unit, translate

SYNTAX_ONLY = ("--fdevice-syntax-only",)


class CudaLibrary:
    """All kernels of one source, for one architecture ("sm_90")."""

    def __init__(self, unit: Unit, code: str, key: str, architecture: str) -> None:
        self._unit, self._code, self._key = unit, code, key
        self.architecture = architecture
        self._made: SingleFlight[bytes] = SingleFlight()
        self.functions = {
            name: KernelInfo(name, k.params, k.max_total_threads, u.constants, *k.place)
            for name, u in unit.kernels.items()
            for k in (u.kernel,)
        }

    def code(self, name: str, constants: Constants) -> bytes:
        """The cubin of a kernel, whose entry is program.ENTRY. Raises MSLError. Thread-safe."""
        info = self.functions[name]
        used = {i: constants[i] for i in sorted(info.function_constants) if i in constants}
        key = cache.key(self._key, self.architecture, name, sorted(used.items())) + ".cubin"

        def make() -> bytes:
            path = cache.get(key)
            if path is None:
                unit = self._unit.kernels[name]
                source = program.kernel(self._unit, self._code, unit, used)
                path = cache.put(key, compiler.compile(source, self.architecture).cubin)
            return path.read_bytes()

        return self._made.get(key, make)


def compile_library(
    source: str,
    *,
    filename: str,
    architecture: str,
    include: Sequence[Path] = (),
    defines: Sequence[str] = (),
) -> CudaLibrary:
    """Translates Metal source and checks it as a whole. Raises MSLError, diagnostics as Apple's."""
    try:
        text = preprocess(source, filename, preprocessor.run, include, defines)
        key = cache.key("cuda", text, filename, compiler.identity())
        path = cache.get(key + ".unit")
        if path is not None:
            unit, code = pickle.loads(path.read_bytes())
            return CudaLibrary(unit, code, key, architecture)
        unit = translate(text, filename)
        if unit.per_lane:
            raise MSLError(
                f"{filename}:1:1: error: thread_elements() is not supported by the cuda device, "
                "whose lanes own other elements of a matrix than Apple's"
            )
        code = for_nvrtc(unit.code, filename)
        compiler.compile(program.syntax(unit, code), architecture, SYNTAX_ONLY)
    except MSLError as error:
        found = diagnostics.parse(str(error))
        text = diagnostics.render(found, {filename: source}) if found else str(error)
        raise MSLError(text) from None
    cache.put(key + ".unit", pickle.dumps((unit, code)))
    return CudaLibrary(unit, code, key, architecture)

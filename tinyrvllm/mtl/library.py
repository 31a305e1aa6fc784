"""Shader text -> library -> pipeline.

Metal compiles at run time, from text, and finds no files that the text includes: `splice` puts
them in place, with #line so that a diagnostic names the file and line that its author sees.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import api
from .api import MetalError, declare, ffi
from .objc import Handle, Owned

if TYPE_CHECKING:
    from .device import Device

MESSAGES = declare(
    new_library="MTLDevice newLibraryWithSource:options:error:",
    fast_math="MTLCompileOptions setFastMathEnabled:",
    math_mode="MTLCompileOptions setMathMode:",
    math_functions="MTLCompileOptions setMathFloatingPointFunctions:",
    language="MTLCompileOptions setLanguageVersion:",
    names="MTLLibrary functionNames",
    count="NSArray count",
    at="NSArray objectAtIndex:",
    function="MTLLibrary newFunctionWithName:constantValues:error:",
    constant_at="MTLFunctionConstantValues setConstantValue:type:atIndex:",
    constant_named="MTLFunctionConstantValues setConstantValue:type:withName:",
    set_function="MTLComputePipelineDescriptor setComputeFunction:",
    set_indirect="MTLComputePipelineDescriptor setSupportIndirectCommandBuffers:",
    new_pipeline=("MTLDevice newComputePipelineStateWithDescriptor:options:reflection:error:"),
    max_threads="MTLComputePipelineState maxTotalThreadsPerThreadgroup",
    simd_width="MTLComputePipelineState threadExecutionWidth",
    threadgroup_memory="MTLComputePipelineState staticThreadgroupMemoryLength",
)
SHADERS = Path(__file__).parent.parent / "shaders"

# Metal fuses a*b+c into one rounding whatever its options say; only this pragma stops it (measured
# on an M4 with the macOS 15 compiler, which is the first that knows it).
PRELUDE = """\
#if __METAL_VERSION__ >= 320
#pragma METAL fp contract(off)
#endif
"""
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)

Size = tuple[int, int, int]
Constant = bool | int | float | np.generic
_NUMPY_TYPES = {  # numpy scalar type -> MSL scalar type
    "bool": "bool", "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort",
    "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong",
    "float16": "half", "float32": "float",
}  # fmt: skip


def splice(path: Path, seen: set[Path] | None = None) -> str:
    """The text of a shader with each `#include "file"` replaced by that file, once.

    A file is looked for beside the one that includes it, then among our shaders.
    Raises MetalError when a file does not exist, naming who included it.
    """
    seen = set() if seen is None else seen
    seen.add(path.resolve())
    if not path.is_file():
        raise MetalError(f"expected a shader at {path}, found no file")
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        include = INCLUDE.match(line)
        if include:
            beside = path.parent / include[1]
            target = beside if beside.is_file() else SHADERS / include[1]
            if not target.is_file():
                raise MetalError(f"{path.name}:{number}: no file {include[1]!r} beside it")
            if target.resolve() not in seen:
                lines.append(splice(target, seen))
            lines.append(f'#line {number + 1} "{path.name}"')
        else:
            lines.append("" if PRAGMA_ONCE.match(line) else line)
    return "\n".join(lines) + "\n"


def typed_constant(value: Constant) -> np.generic:
    """A Python value as the MSL scalar it stands for: bool, uint or float; numpy as it is."""
    if isinstance(value, np.generic):
        if value.dtype.name not in _NUMPY_TYPES:
            raise MetalError(f"expected a scalar type of MSL, found {value.dtype}")
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        if not 0 <= value < 1 << 32:
            raise MetalError(f"expected a uint constant, found {value}; say np.int32({value})")
        return np.uint32(value)
    return np.float32(value)


class Pipeline(Owned):
    """A kernel compiled for this device: what a dispatch runs."""

    def __init__(self, device: "Device", handle: Handle, name: str) -> None:
        super().__init__(device.objc, handle)
        send = device.objc.messages(MESSAGES)
        self.name = self.label = name
        self._memory_limit = device.limits.max_threadgroup_memory
        self.max_threads: int = send.max_threads(handle)  # per threadgroup, of this kernel
        self.simd_width: int = send.simd_width(handle)
        self.static_threadgroup_memory: int = send.threadgroup_memory(handle)  # bytes

    def check(self, threads: Size, threadgroup_memory: Sequence[int] = ()) -> None:
        """Raises MetalError for a launch that Metal would drop without a word, or abort on."""
        if not 0 < threads[0] * threads[1] * threads[2] <= self.max_threads:
            raise MetalError(
                f"kernel {self.name!r}: expected 1 to {self.max_threads} threads in a "
                f"threadgroup, found {threads}; dispatch more, smaller threadgroups"
            )
        if not threadgroup_memory:
            return
        total = self.static_threadgroup_memory + sum(threadgroup_memory)
        if total > self._memory_limit or any(nbytes % 16 for nbytes in threadgroup_memory):
            raise MetalError(
                f"kernel {self.name!r}: expected multiples of 16 bytes of threadgroup memory, up "
                f"to {self._memory_limit} with the kernel's own {self.static_threadgroup_memory}; "
                f"found {list(threadgroup_memory)}"
            )


class Library(Owned):
    """A compiled shader file. Its pipelines are made on first use and kept."""

    def __init__(self, device: "Device", source: str, name: str) -> None:
        """Raises MetalError with the compiler's diagnostics when the source does not compile."""
        objc = device.objc
        self.device = device
        self.label = name
        self.send = objc.messages(MESSAGES)
        self._pipelines: dict[tuple, Pipeline] = {}
        text = source if source.startswith("#line") else f'#line 1 "{name}"\n{source}'
        with objc.pool(), Owned(objc, objc.new("MTLCompileOptions")) as options:
            self._set_options(options.handle, needs_metal_4="<metal_tensor>" in text)
            error = ffi.new("id *")
            handle = self.send.new_library(
                device.handle, objc.string(PRELUDE + text), options.handle, error
            )
            if not handle:  # the object decides: Metal also sets the error for mere warnings
                raise MetalError(f"{name} does not compile:\n{objc.error(error[0])}")
            super().__init__(objc, handle)

    def _set_options(self, options: Handle, needs_metal_4: bool) -> None:
        """Safe maths, exact functions, and one language version for each macOS."""
        system = self.device.limits.os_version
        if system >= (15, 0):
            self.send.math_mode(options, api.MTLMathModeSafe)
            self.send.math_functions(options, api.MTLMathFloatingPointFunctionsPrecise)
        else:
            self.send.fast_math(options, False)
        # MTLLanguageVersion is major << 16 | minor: 3.0 came with macOS 13, 3.1 (bfloat) with 14
        minor = 2 if system >= (15, 0) else 1 if system >= (14, 0) else 0
        # Tensors are Metal 4's. Older systems keep their version: the compiler then says what it
        # misses.
        newest = needs_metal_4 and system >= (26, 0)
        self.send.language(options, 4 << 16 if newest else 3 << 16 | minor)

    @property
    def kernel_names(self) -> list[str]:
        """The kernels in this library, sorted."""
        with self.objc.pool():
            names = self.send.names(self.handle)
            count = self.send.count(names)
            return sorted(self.objc.text(self.send.at(names, i)) for i in range(count))

    def pipeline(
        self,
        name: str,
        constants: Mapping[str | int, Constant] | None = None,
        indirect: bool = False,
    ) -> Pipeline:
        """The pipeline of a kernel with these function constants (by name or index).

        A Python bool, int or float is a bool, uint or float of MSL; numpy scalars keep their type.
        indirect: may be recorded into an indirect command buffer. Raises MetalError when there is
        no such kernel, a constant is missing or has the wrong type, or the device refuses.
        """
        given = (constants or {}).items()
        # with the type: 1, 1.0 and True are the same key of a dict, and different constants
        key = (name, indirect, *((constant, type(value), value) for constant, value in given))
        if key not in self._pipelines:
            values = {constant: typed_constant(value) for constant, value in given}
            self._pipelines[key] = self._build(name, values, indirect)
        return self._pipelines[key]

    def _build(self, name: str, values: dict[str | int, np.generic], indirect: bool) -> Pipeline:
        objc, send = self.objc, self.send
        error = ffi.new("id *")
        with (
            objc.pool(),
            Owned(objc, objc.new("MTLFunctionConstantValues")) as constants,
            Owned(objc, objc.new("MTLComputePipelineDescriptor")) as descriptor,
        ):
            for key, value in values.items():
                memory = ffi.new("char[]", value.tobytes())
                kind = api.MTLDataTypes[_NUMPY_TYPES[value.dtype.name]]
                if isinstance(key, int):
                    send.constant_at(constants.handle, memory, kind, key)
                else:
                    send.constant_named(constants.handle, memory, kind, objc.string(key))
            function = send.function(self.handle, objc.string(name), constants.handle, error)
            if not function:
                raise MetalError(
                    f"{self.label}: no kernel {name!r} with constants {values}: "
                    f"{objc.error(error[0])}; this library has {', '.join(self.kernel_names)}"
                )
            with Owned(objc, function):
                send.set_function(descriptor.handle, function)
                send.set_indirect(descriptor.handle, indirect)
                pipeline = send.new_pipeline(
                    self.device.handle,
                    descriptor.handle,
                    api.MTLPipelineOptionNone,
                    ffi.NULL,
                    error,
                )
            if not pipeline:
                raise MetalError(f"{self.label}: kernel {name!r}: {objc.error(error[0])}")
            return Pipeline(self.device, pipeline, name)

    def close(self) -> None:
        """Releases the library and its pipelines."""
        for pipeline in self._pipelines.values():
            pipeline.close()
        self._pipelines.clear()
        super().close()

"""Shader text -> library -> pipeline.

Metal compiles at run time, from text, and finds no files that the text includes: `splice` puts
them in place, with #line so that a diagnostic names the file and line that its author sees.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import api
from .api import MetalError, declare, ffi
from .objc import Handle, Owned

if TYPE_CHECKING:
    from .device import Device

declare(
    "MTLDevice newLibraryWithSource:options:error:",
    "MTLDevice newComputePipelineStateWithDescriptor:options:reflection:error:",
    "MTLCompileOptions setMathMode: setMathFloatingPointFunctions: setFastMathEnabled:",
    "MTLCompileOptions setLanguageVersion:",
    "MTLLibrary functionNames newFunctionWithName:constantValues:error:",
    "MTLFunctionConstantValues setConstantValue:type:withName:",
    "MTLComputePipelineDescriptor setComputeFunction: setSupportIndirectCommandBuffers:",
    "MTLComputePipelineState maxTotalThreadsPerThreadgroup threadExecutionWidth",
    "MTLComputePipelineState staticThreadgroupMemoryLength",
    "NSArray count objectAtIndex:",
)
SHADERS = Path(__file__).parent.parent / "shaders"

# Metal fuses a*b+c into one rounding whatever its options say; only this pragma stops it (measured
# on an M4 with the macOS 15 compiler, which is the first that knows it).
PRELUDE = """\
#if __METAL_VERSION__ >= 320
#pragma METAL fp contract(off)
#endif
"""
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*\n', re.MULTILINE)
PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)

Size = tuple[int, int, int]
Constant = bool | int | float | np.generic


def splice(path: Path, seen: set[Path] | None = None) -> str:
    """The text of a shader with each `#include "file"` replaced by that file, once.

    A file is looked for beside the one that includes it, then among our shaders; MetalError when
    there is none.
    """
    if not path.is_file():
        raise MetalError(f"expected a shader at {path}, found no file")
    seen = set() if seen is None else seen
    seen.add(path.resolve())
    text = PRAGMA_ONCE.sub("", path.read_text(encoding="utf-8").rstrip("\n") + "\n")

    def included(found: re.Match[str]) -> str:
        line = text.count("\n", 0, found.start()) + 1
        places = (path.parent / found[1], SHADERS / found[1])
        if not (target := next(filter(Path.is_file, places), None)):
            raise MetalError(f"{path.name}:{line}: no file {found[1]!r} beside it")
        body = "" if target.resolve() in seen else splice(target, seen)
        return f'{body}#line {line + 1} "{path.name}"\n'

    return f'#line 1 "{path.name}"\n' + INCLUDE.sub(included, text)


def typed_constant(value: Constant) -> np.generic:
    """A Python value as the MSL scalar it stands for: bool, uint or float; numpy as it is."""
    if isinstance(value, int) and not 0 <= value < 1 << 32:
        raise MetalError(f"expected a uint constant, found {value}; say np.int32({value})")
    if not isinstance(value, np.generic):
        kind = np.uint32 if isinstance(value, int) else np.float32
        value = np.bool_(value) if isinstance(value, bool) else kind(value)
    if value.dtype.name not in api.MTLDataTypes:
        raise MetalError(f"expected a scalar type of MSL, found {value.dtype}")
    return value


class Library(Owned):
    """A compiled shader file. Its pipelines are made on first use and kept."""

    def __init__(self, device: "Device", source: str, name: str) -> None:
        """Raises MetalError with the compiler's diagnostics when the source does not compile."""
        self.device = device
        self._pipelines: dict[tuple, Pipeline] = {}
        objc, send = device.objc, device.objc.send
        text = source if source.startswith("#line") else f'#line 1 "{name}"\n{source}'
        with objc.pool(), objc.new("MTLCompileOptions") as options:
            self._set(options.handle, needs_metal_4="<metal_tensor>" in text)
            handle = objc.made(
                f"{name} does not compile:\n", send.newLibraryWithSource_options_error_,
                device.handle, objc.string(PRELUDE + text), options.handle,
            )  # fmt: skip
            super().__init__(objc, handle, name)

    def _set(self, options: Handle, needs_metal_4: bool) -> None:
        """Safe maths, exact functions, and one language version for each macOS."""
        send, system = self.device.objc.send, self.device.limits.os_version
        if system >= (15, 0):
            send.setMathMode_(options, api.MTLMathModeSafe)
            send.setMathFloatingPointFunctions_(options, api.MTLMathFloatingPointFunctionsPrecise)
        else:
            send.setFastMathEnabled_(options, False)
        # MTLLanguageVersion is major << 16 | minor: 3.0 came with macOS 13, 3.1 (bfloat) with 14.
        # Tensors are Metal 4's; an older system keeps its version, and its compiler says so.
        minor = 2 if system >= (15, 0) else 1 if system >= (14, 0) else 0
        newest = needs_metal_4 and system >= (26, 0)
        send.setLanguageVersion_(options, 4 << 16 if newest else 3 << 16 | minor)

    @cached_property
    def kernel_names(self) -> list[str]:
        """The kernels in this library, sorted."""
        send = self.objc.send
        with self.objc.pool():
            names = send.functionNames(self.handle)
            each = (send.objectAtIndex_(names, i) for i in range(send.count(names)))
            return sorted(map(self.objc.text, each))

    def pipeline(
        self, name: str, constants: Mapping[str, Constant] | None = None, indirect: bool = False
    ) -> "Pipeline":
        """The pipeline of a kernel with these function constants.

        A Python bool, int or float is a bool, uint or float of MSL; numpy scalars keep their type.
        indirect: for indirect command buffers. Raises MetalError when there is no such kernel, a
        constant is missing or has the wrong type, or the device refuses.
        """
        given = (constants or {}).items()
        # with the type: 1, 1.0 and True are the same key of a dict, and different constants
        key = (name, indirect, *((constant, type(value), value) for constant, value in given))
        if key not in self._pipelines:
            values = {constant: typed_constant(value) for constant, value in given}
            self._pipelines[key] = self._build(name, values, indirect)
        return self._pipelines[key]

    def _build(self, name: str, values: dict[str, np.generic], indirect: bool) -> "Pipeline":
        objc, send = self.objc, self.objc.send
        with (
            objc.pool(),
            objc.new("MTLFunctionConstantValues") as constants,
            objc.new("MTLComputePipelineDescriptor") as descriptor,
        ):
            for constant, value in values.items():
                memory, kind = ffi.new("char[]", value.tobytes()), value.dtype.name
                send.setConstantValue_type_withName_(
                    constants.handle, memory, api.MTLDataTypes[kind], objc.string(constant)
                )
            function = objc.made(
                f"{self.label}: no kernel {name!r} with {values} among {self.kernel_names}: ",
                send.newFunctionWithName_constantValues_error_,
                self.handle, objc.string(name), constants.handle,
            )  # fmt: skip
            with Owned(objc, function):
                send.setComputeFunction_(descriptor.handle, function)
                send.setSupportIndirectCommandBuffers_(descriptor.handle, indirect)
                handle = objc.made(
                    f"{self.label}: kernel {name!r}: ",
                    send.newComputePipelineStateWithDescriptor_options_reflection_error_,
                    self.device.handle, descriptor.handle, api.MTLPipelineOptionNone, ffi.NULL,
                )  # fmt: skip
            return Pipeline(self.device, handle, name)

    def close(self) -> None:
        """Releases the library and its pipelines."""
        for pipeline in self._pipelines.values():
            pipeline.close()
        super().close()


class Pipeline(Owned):
    """A kernel compiled for this device: what a dispatch runs."""

    def __init__(self, device: "Device", handle: Handle, name: str) -> None:
        super().__init__(device.objc, handle, name)
        send = device.objc.send
        self.max_threads: int = send.maxTotalThreadsPerThreadgroup(handle)  # of this kernel
        self.simd_width: int = send.threadExecutionWidth(handle)
        self.static_threadgroup_memory: int = send.staticThreadgroupMemoryLength(handle)  # bytes
        self._memory_limit = device.limits.max_threadgroup_memory

    def check(self, threads: Size, threadgroup_memory: Sequence[int] = ()) -> None:
        """Raises MetalError for a launch that Metal would drop without a word, or abort on."""
        if not 0 < threads[0] * threads[1] * threads[2] <= self.max_threads:
            raise MetalError(
                f"kernel {self.label!r}: expected 1 to {self.max_threads} threads in a "
                f"threadgroup, found {threads}; dispatch more, smaller threadgroups"
            )
        own, limit = self.static_threadgroup_memory, self._memory_limit
        if own + sum(threadgroup_memory) > limit or any(n % 16 for n in threadgroup_memory):
            raise MetalError(
                f"kernel {self.label!r}: expected multiples of 16 bytes of threadgroup memory, up "
                f"to {limit} with the kernel's own {own}; found {list(threadgroup_memory)}"
            )

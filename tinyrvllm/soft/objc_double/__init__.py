"""An Objective-C runtime with Metal's classes in it, in Python.

    runtime("soft")        runs kernels on this CPU
    runtime("soft:check")  the same with every check on
    runtime("cuda")        runs kernels on an NVIDIA GPU

The program's messages arrive by selector with C-typed arguments, as on a Mac. Read runtime.py
(what Objective-C does), then the metal_*.py: device, library, commands, encoder, indirect.
"""

from .engine import CompileError, CpuEngine, Engine, Memory, Run, Unavailable
from .foundation import NSArray, NSError, NSProcessInfo, NSString
from .metal_commands import MTLCommandBuffer, MTLCommandQueue
from .metal_device import Machine, MTLBuffer, MTLDevice, SoftRuntime
from .metal_encoder import MTLComputeCommandEncoder
from .metal_indirect import (
    MTLIndirectCommandBuffer,
    MTLIndirectCommandBufferDescriptor,
    MTLIndirectComputeCommand,
    MTLResidencySet,
    MTLResidencySetDescriptor,
)
from .metal_library import (
    MTLCompileOptions,
    MTLComputePipelineDescriptor,
    MTLComputePipelineState,
    MTLFunction,
    MTLFunctionConstantValues,
    MTLLibrary,
)
from .runtime import ObjCObject
from .signatures import ObjCError

__all__ = [
    "CompileError",
    "Engine",
    "Machine",
    "Memory",
    "ObjCError",
    "Run",
    "SoftRuntime",
    "Unavailable",
    "metal",
    "runtime",
]

CLASSES: dict[str, type[ObjCObject]] = {
    cls.__name__: cls
    for cls in (
        NSArray, NSError, NSProcessInfo, NSString, MTLBuffer, MTLCommandBuffer, MTLCommandQueue,
        MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineDescriptor,
        MTLComputePipelineState, MTLDevice, MTLFunction, MTLFunctionConstantValues,
        MTLIndirectCommandBuffer, MTLIndirectCommandBufferDescriptor, MTLIndirectComputeCommand,
        MTLLibrary, MTLResidencySet, MTLResidencySetDescriptor,
    )
}  # fmt: skip


def metal(
    engine: Engine, name: str = "soft", machine: Machine | None = None, check: bool = False
) -> SoftRuntime:
    """A runtime over any engine and with any machine's limits: for tests, and for `runtime`."""
    return SoftRuntime(name, CLASSES, engine, machine, check)


def runtime(name: str) -> SoftRuntime:
    """The runtime behind a device name. Raises Unavailable, which says why."""
    if name == "cuda":
        from tinyrvllm.soft import cuda

        try:
            engine = cuda.open_engine()
        except cuda.NoDriver as error:
            raise Unavailable(str(error)) from None
        # Apple's limits, but for how much memory there is.
        memory = engine.card.memory
        return metal(engine, name, Machine(max_buffer_length=memory, working_set=memory * 9 // 10))
    if name not in ("soft", "soft:check"):
        raise Unavailable(f"expected device 'metal', 'soft' or 'cuda', found {name!r}")
    check = name == "soft:check"
    return metal(CpuEngine(check), name, check=check)

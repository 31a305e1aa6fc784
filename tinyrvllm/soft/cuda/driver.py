"""The CUDA driver, in the few calls that a Metal command queue needs."""

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyrvllm.soft.cuda.compiler import MISSING

Size = tuple[int, int, int]
PIECE = 32 << 20  # bytes of a large upload at a time


class CudaError(Exception):
    """A call that failed; the text has the call and the driver's words."""


class NoDriver(Exception):
    """Why this machine has no CUDA device, and what to do."""


class BrokenDriver(NoDriver):
    """A driver is installed and does not work: nothing that a test may skip."""


@functools.cache
def cuda() -> Any:
    """cuda.bindings.driver, initialised. Raises NoDriver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise NoDriver(MISSING.format(f"cuda-bindings ({error})")) from None
    try:
        (failed,) = driver.cuInit(0)
    except RuntimeError as reason:  # the library is missing
        raise NoDriver(
            f"no NVIDIA driver: {str(reason).splitlines()[0]}; --device cuda needs an NVIDIA GPU "
            "with its driver, --device soft runs everywhere"
        ) from None
    if int(failed):
        none = failed.name in ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY")
        raise (NoDriver if none else BrokenDriver)(
            f"no NVIDIA driver that works: cuInit says {failed.name}"
        )
    return driver


def call(name: str, *arguments: Any) -> Any:
    """Calls a driver function; returns its result, a tuple of several or None. Raises CudaError."""
    error, *results = getattr(cuda(), name)(*arguments)
    if int(error):
        _, text = cuda().cuGetErrorString(error)
        words = text.decode() if text else ""
        raise CudaError(f"{name}: {error.name}: {words}")
    return results[0] if len(results) == 1 else tuple(results) or None


@dataclass(frozen=True)
class Launch:
    """One kernel launch: parameters are addresses of buffers, then offsets (see program.entry)."""

    function: Any
    groups: Size
    threads: Size
    dynamic_bytes: int
    pointers: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def parameters(self) -> tuple[tuple[int, ...], tuple[type, ...]]:
        kinds = (ctypes.c_void_p,) * len(self.pointers) + (ctypes.c_uint,) * len(self.offsets)
        return self.pointers + self.offsets, kinds


class Card:
    """The first GPU: its context, one stream, and what the driver says about it."""

    def __init__(self) -> None:
        """Raises NoDriver."""
        driver = cuda()
        if call("cuDeviceGetCount") == 0:
            raise NoDriver("the NVIDIA driver lists no GPU (CUDA_VISIBLE_DEVICES may hide them)")
        self._device = call("cuDeviceGet", 0)
        self._context = call("cuDevicePrimaryCtxRetain", self._device)
        self._thread = threading.local()
        self._pieces: list[tuple[int, Any]] = []
        self.lock = threading.RLock()  # for what threads share: buffers' states, spare events
        self.enter()
        attribute = driver.CUdevice_attribute
        major, minor = (
            call("cuDeviceGetAttribute", kind, self._device)
            for kind in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.architecture = f"sm_{major}{minor}"
        self.capability = (major, minor)
        self.memory = call("cuDeviceTotalMem", self._device)  # bytes
        self.name = call("cuDeviceGetName", 96, self._device).decode().split("\0")[0]
        self.stream = call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def enter(self) -> None:
        """Makes the context this thread's."""
        if not getattr(self._thread, "entered", False):
            call("cuCtxSetCurrent", self._context)
            self._thread.entered = True

    # ---- memory

    def allocate(self, nbytes: int) -> int:
        """Zeroed device memory. Raises MemoryError."""
        try:
            address = int(call("cuMemAlloc", nbytes))
        except CudaError as error:
            raise MemoryError(f"{error} ({nbytes:,} bytes on {self.name})") from None
        call("cuMemsetD8Async", address, 0, nbytes, self.stream)
        return address

    def free(self, address: int) -> None:
        self.enter()
        call("cuMemFree", address)

    def upload(self, device: int, host: int, nbytes: int) -> None:
        call("cuMemcpyHtoDAsync", device, host, nbytes, self.stream)

    def upload_much(self, device: int, host: np.ndarray) -> None:
        """Through two pinned pieces, of which one is filled while the other is on its way."""
        if not self._pieces:
            self._pieces = [(self.pinned(PIECE), self.event()) for _ in range(2)]
            for _, sent in self._pieces:
                self.record(sent)
        for number, start in enumerate(range(0, len(host), PIECE)):
            piece, sent = self._pieces[number % 2]
            part = host[start : start + PIECE]
            self.wait_for(sent)
            ctypes.memmove(piece, part.ctypes.data, len(part))
            self.upload(device + start, piece, len(part))
            self.record(sent)

    def download(self, host: int, device: int, nbytes: int) -> None:
        call("cuMemcpyDtoHAsync", host, device, nbytes, self.stream)

    def wait(self) -> None:
        call("cuStreamSynchronize", self.stream)

    def pinned(self, nbytes: int) -> int:
        """Host memory that the card copies to while the CPU goes on."""
        return int(call("cuMemHostAlloc", nbytes, 0))

    # ---- kernels

    def function(self, cubin: bytes, name: str) -> tuple[Any, Any, int]:
        """(module, function, bytes of static shared memory)."""
        self.enter()
        module = call("cuModuleLoadData", cubin)
        function = call("cuModuleGetFunction", module, name.encode())
        kind = cuda().CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        return module, function, call("cuFuncGetAttribute", kind, function)

    def launch(self, launch: Launch) -> None:
        call(
            "cuLaunchKernel", launch.function, *launch.groups, *launch.threads,
            launch.dynamic_bytes, self.stream, launch.parameters, 0,
        )  # fmt: skip

    # ---- time

    def event(self) -> Any:
        return call("cuEventCreate", 0)

    def record(self, event: Any) -> None:
        call("cuEventRecord", event, self.stream)

    def wait_for(self, event: Any) -> None:
        call("cuEventSynchronize", event)

    def seconds(self, start: Any, end: Any) -> float:
        """Between two events that the card has passed."""
        return call("cuEventElapsedTime", start, end) / 1000


class Graph:
    """Launches recorded as a CUDA graph: phases follow one another, launches of one may overlap."""

    def __init__(self, card: Card, phases: Sequence[Sequence[Launch]]) -> None:
        self._card = card
        graph = call("cuGraphCreate", 0)
        before: list[Any] = []
        for phase in phases:
            before = [self._add(graph, launch, before) for launch in phase]
        self._executable = call("cuGraphInstantiate", graph, 0)
        call("cuGraphDestroy", graph)
        call("cuGraphUpload", self._executable, card.stream)

    def _add(self, graph: Any, launch: Launch, before: list[Any]) -> Any:
        node = cuda().CUDA_KERNEL_NODE_PARAMS()
        node.func = launch.function
        node.gridDimX, node.gridDimY, node.gridDimZ = launch.groups
        node.blockDimX, node.blockDimY, node.blockDimZ = launch.threads
        node.sharedMemBytes = launch.dynamic_bytes
        node.kernelParams = launch.parameters
        return call("cuGraphAddKernelNode", graph, before, len(before), node)

    def launch(self) -> None:
        call("cuGraphLaunch", self._executable, self._card.stream)

    def close(self) -> None:
        if self._executable is not None:
            self._card.enter()
            call("cuGraphExecDestroy", self._executable)
        self._executable = None

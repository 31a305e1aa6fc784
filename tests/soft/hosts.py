"""A host program below the bridge: raw messages, so that tests can send wrong ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.soft.fake_engine import SOURCE, FakeEngine
from tinyrvllm.mtl.api import ffi
from tinyrvllm.mtl.objc import ObjC
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double.signatures import signatures

GROUPS, THREADS = (4, 1, 1), (32, 1, 1)


class Host:
    """A device with a queue, three buffers and every kernel of the fake engine."""

    def __init__(self, check: bool = True, machine: objc_double.Machine | None = None) -> None:
        self.runtime = objc_double.metal(FakeEngine(), machine=machine, check=check)
        self.objc = ObjC(self.runtime)
        self.pool = self.objc.pool
        self.device = self.runtime.default_device()
        self.queue = self("MTLDevice newCommandQueue", self.device)
        with self.pool():
            self.library = self(
                "MTLDevice newLibraryWithSource:options:error:",
                self.device, self.objc.string(SOURCE), ffi.NULL, ffi.new("id *"),
            )  # fmt: skip
        self.a, self.b, self.c = (self.buffer(512) for _ in range(3))

    def __call__(self, message: str, receiver: Any, *arguments: Any) -> Any:
        """Sends "Owner selector"."""
        signature = signatures()[message.partition(" ")[2]]
        bound = self.runtime.bind(signature.selector, signature.returns, signature.arguments)
        return bound(receiver, *arguments)

    def new(self, class_name: str) -> Any:
        return self("NSObject new", self.runtime.class_named(class_name))

    def raw(self, selector: str, returns: str, arguments: str, receiver: Any, *values: Any) -> Any:
        """Sends any selector with any claimed types."""
        bound = self.runtime.bind(selector, returns, tuple(arguments.split()))
        return bound(receiver, *values)

    def buffer(self, nbytes: int, options: int = 0) -> Any:
        return self("MTLDevice newBufferWithLength:options:", self.device, nbytes, options)

    def array(self, buffer: Any) -> np.ndarray:
        """The buffer's memory as floats, with no check at all: what a bad bridge would do."""
        length = self("MTLBuffer length", buffer)
        return np.frombuffer(ffi.buffer(self("MTLBuffer contents", buffer), length), np.float32)

    def function(self, name: str) -> Any:
        none = self.new("MTLFunctionConstantValues")
        with self.pool():
            text = self.objc.string(name)
            return self(
                "MTLLibrary newFunctionWithName:constantValues:error:",
                self.library, text, none, ffi.new("id *"),
            )  # fmt: skip

    def pipeline(self, name: str) -> Any:
        descriptor = self.new("MTLComputePipelineDescriptor")
        self("MTLComputePipelineDescriptor setComputeFunction:", descriptor, self.function(name))
        with self.pool():
            return self(
                "MTLDevice newComputePipelineStateWithDescriptor:options:reflection:error:",
                self.device, descriptor, 0, ffi.NULL, ffi.new("id *"),
            )  # fmt: skip

    def commands(self) -> Any:
        return self("MTLCommandQueue commandBuffer", self.queue)

    def encoder(self, commands: Any, concurrent: bool = False) -> Any:
        message = "MTLCommandBuffer computeCommandEncoderWithDispatchType:"
        return self(message, commands, int(concurrent))

    @contextmanager
    def encoding(self, concurrent: bool = False) -> Iterator[tuple[Any, Any]]:
        """A command buffer and its encoder, ended, committed and waited for."""
        with self.pool():
            commands = self.commands()
            encoder = self.encoder(commands, concurrent)
            try:
                yield commands, encoder
            finally:
                self.end(encoder)
            self.commit(commands)
            self.wait(commands)

    def set_pipeline(self, encoder: Any, name: str) -> None:
        message = "MTLComputeCommandEncoder setComputePipelineState:"
        self(message, encoder, self.pipeline(name))

    def set_buffer(self, encoder: Any, buffer: Any, offset: int, slot: int) -> None:
        self("MTLComputeCommandEncoder setBuffer:offset:atIndex:", encoder, buffer, offset, slot)

    def set_bytes(self, encoder: Any, data: bytes, slot: int, length: int | None = None) -> None:
        message = "MTLComputeCommandEncoder setBytes:length:atIndex:"
        self(message, encoder, ffi.from_buffer(data), length or len(data), slot)

    def dispatch(self, encoder: Any, groups: Any = GROUPS, threads: Any = THREADS) -> None:
        message = "MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:"
        self(message, encoder, groups, threads)

    def add(self, encoder: Any, a: Any, b: Any, c: Any) -> None:
        """A correct dispatch of c = a + b."""
        self.set_pipeline(encoder, "vector_add")
        for slot, buffer in enumerate((a, b, c)):
            self.set_buffer(encoder, buffer, 0, slot)
        self.set_bytes(encoder, np.uint32(128).tobytes(), 3)
        self.dispatch(encoder)

    def end(self, encoder: Any) -> None:
        self("MTLCommandEncoder endEncoding", encoder)

    def commit(self, commands: Any) -> None:
        self("MTLCommandBuffer commit", commands)

    def wait(self, commands: Any) -> None:
        self("MTLCommandBuffer waitUntilCompleted", commands)

    def release(self, obj: Any) -> None:
        self("NSObject release", obj)

    def failure(self, commands: Any) -> str:
        """The text of a finished command buffer's error."""
        with self.pool():
            return self.objc.error(self("MTLCommandBuffer error", commands))

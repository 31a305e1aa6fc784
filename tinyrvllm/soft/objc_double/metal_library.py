"""MTLLibrary and what it makes: functions with their constants, and pipelines."""

import struct
from typing import Any

from .foundation import NSArray, NSString, fail, warn
from .metal_device import SoftObject
from .runtime import DoubleRuntime, ObjCObject, message
from .signatures import ObjCError, ffi

# MTLDataType -> (MSL type, the letter of Python's struct)
DATA_TYPES = {
    53: ("bool", "?"), 45: ("char", "b"), 49: ("uchar", "B"), 37: ("short", "h"),
    41: ("ushort", "H"), 29: ("int", "i"), 33: ("uint", "I"), 81: ("long", "q"),
    85: ("ulong", "Q"), 16: ("half", "e"), 3: ("float", "f"),
}  # fmt: skip
SYNONYMS = {
    "int8_t": "char", "uint8_t": "uchar", "int16_t": "short", "uint16_t": "ushort",
    "int32_t": "int", "uint32_t": "uint", "int64_t": "long", "uint64_t": "ulong",
    "size_t": "ulong",
}  # fmt: skip


class MTLCompileOptions(SoftObject):
    """How to compile. Metal's defaults: fast maths, newest language."""

    fast_math = True
    math_mode: int | None = None
    math_functions: int | None = None
    language: int | None = None

    @message("setFastMathEnabled:")
    def set_fast_math(self, enabled: bool) -> None:
        self.fast_math = enabled

    @message("setMathMode:")
    def set_math_mode(self, mode: int) -> None:
        self.math_mode, self.fast_math = mode, mode == 2  # MTLMathModeFast

    @message("setMathFloatingPointFunctions:")
    def set_math_functions(self, functions: int) -> None:
        self.math_functions = functions

    @message("setLanguageVersion:")
    def set_language(self, version: int) -> None:
        self.language = version


class MTLFunctionConstantValues(SoftObject):
    """Values for function constants, by index or by name."""

    def __init__(self, runtime: DoubleRuntime) -> None:
        super().__init__(runtime)
        self.values: dict[int | str, tuple[str, Any]] = {}  # -> (MSL type, value)

    @message("setConstantValue:type:atIndex:")
    def set_at(self, value: Any, kind: int, index: int) -> None:
        self.values[index] = self._read(value, kind)

    @message("setConstantValue:type:withName:")
    def set_named(self, value: Any, kind: int, name: Any) -> None:
        self.values[self.runtime.object(name).text] = self._read(value, kind)

    def _read(self, value: Any, kind: int) -> tuple[str, Any]:
        if kind not in DATA_TYPES:
            raise ObjCError(f"MTLDataType {kind} is not a scalar type of function constants")
        msl, letter = DATA_TYPES[kind]
        (number,) = struct.unpack(letter, ffi.buffer(value, struct.calcsize(letter)))
        return msl, number


class MTLLibrary(SoftObject):
    """A compiled source."""

    def __init__(self, runtime: DoubleRuntime, compiled: Any, options: Any) -> None:
        super().__init__(runtime)
        self.compiled = compiled
        options = options or MTLCompileOptions
        self.fast_math = options.fast_math
        # from macOS 15 on the functions (exp, rsqrt, ...) have a switch of their own; 1 is precise
        new = options.math_mode is not None
        self.exact_functions = options.math_functions == 1 if new else not options.fast_math
        self.language = options.language

    @message("functionNames")
    def names(self) -> ObjCObject:
        names = [NSString(self.runtime, name) for name in self.compiled.functions]
        array = NSArray(self.runtime, names).autorelease()
        for name in names:  # the array holds them now
            name.release()
        return array

    @message("newFunctionWithName:constantValues:error:")
    def constant_function(self, name: Any, constants: Any, error: Any) -> ObjCObject | None:
        values = self.runtime.object(constants).values
        return self._function(self.runtime.object(name).text, values, error)

    def _function(self, name: str, values: dict, error: Any) -> ObjCObject | None:
        info = self.compiled.functions.get(name)
        if info is None:
            text = f"Function {name} was not found in the library"
            fail(self.runtime, error, text)
            return None
        constants = {}
        for index, constant in info.function_constants.items():
            found = values.get(index, values.get(constant.name))
            if found is None and constant.required:
                text = f"function constant {constant.name} (index {index}) of {name} has no value"
                fail(self.runtime, error, text)
                return None
            if found is not None and found[0] != SYNONYMS.get(constant.type, constant.type):
                text = (
                    f"function constant {constant.name} of {name} is {constant.type}, "
                    f"its value was set as {found[0]}"
                )
                fail(self.runtime, error, text)
                return None
            if found is not None:
                constants[index] = found[1]
        warn(self.runtime, error)
        return MTLFunction(self.runtime, self, info, constants)


class MTLFunction(SoftObject):
    """A kernel of a library, with its constants."""

    def __init__(
        self, runtime: DoubleRuntime, library: MTLLibrary, info: Any, constants: dict[int, Any]
    ) -> None:
        super().__init__(runtime)
        self.hold(library)
        self.library, self.info, self.constants = library, info, constants
        self.label = info.name


class MTLComputePipelineDescriptor(SoftObject):
    """What a pipeline is made of."""

    function: MTLFunction | None = None
    indirect = False

    @message("setComputeFunction:")
    def set_function(self, function: Any) -> None:
        self.function = self.runtime.object(function)
        if self.function is not None:
            self.hold(self.function)

    @message("setSupportIndirectCommandBuffers:")
    def set_indirect(self, supported: bool) -> None:
        self.indirect = supported


class MTLComputePipelineState(SoftObject):
    """A kernel ready to run."""

    def __init__(
        self, runtime: DoubleRuntime, function: MTLFunction, kernel: Any, indirect: bool
    ) -> None:
        super().__init__(runtime)
        info = function.info
        self.label = info.name
        self.kernel, self.indirect = kernel, indirect
        limit = self.soft.machine.max_pipeline_threads
        self.thread_limit = min(limit, info.max_total_threads or limit)
        given = {c.name: function.constants.get(i) for i, c in info.function_constants.items()}
        # an argument with [[function_constant(name)]] exists only where that constant is true
        self.params = [
            param
            for param in info.params
            if param.function_constant is None or given.get(param.function_constant)
        ]

    @message("maxTotalThreadsPerThreadgroup")
    def max_threads(self) -> int:
        return self.thread_limit

    @message("threadExecutionWidth")
    def width(self) -> int:
        return 32

    @message("staticThreadgroupMemoryLength")
    def threadgroup_memory(self) -> int:
        return self.kernel.static_threadgroup_bytes

"""Buffers, the device, libraries and pipelines of the double, each by itself."""

import struct
from typing import Any

import pytest

from tests.soft.fake_engine import KERNELS, SOURCE, FunctionConstant, KernelInfo, Param
from tests.soft.hosts import Host
from tinyrvllm.mtl.api import ffi
from tinyrvllm.soft.objc_double import Machine, ObjCError
from tinyrvllm.soft.objc_double.engine import pages
from tinyrvllm.soft.objc_double.metal_library import MTLLibrary


@pytest.fixture
def host() -> Host:
    return Host()


# ---- buffers and the device


@pytest.mark.parametrize(("options", "storage"), [(0, 0), (1, 0), (1 << 8, 0), (2 << 4, 2)])
def test_storage_is_one_of_the_options(host: Host, options: int, storage: int) -> None:
    assert host.runtime.object(host.buffer(16, options)).storage == storage


@pytest.mark.parametrize("mode", [1, 3])  # managed is of Intel's Macs, memoryless of textures
def test_storage_that_there_is_not(host: Host, mode: int) -> None:
    with pytest.raises(ObjCError, match=f"storage mode {mode} does not exist"):
        host.buffer(16, mode << 4)


def test_memory_of_the_program_s_own() -> None:
    host = Host(machine=Machine(max_buffer_length=32768))
    message = "MTLDevice newBufferWithBytesNoCopy:length:options:deallocator:"
    memory = pages(65536)

    def wrap(start: int, length: int) -> Any:
        pointer = ffi.cast("void *", memory.address + start)
        return host(message, host.device, pointer, length, 0, ffi.NULL)

    whole = wrap(4096, 32768)
    assert host("MTLBuffer gpuAddress", whole) == memory.address + 4096
    assert host("MTLBuffer length", whole) == 32768
    assert wrap(0, 0) == ffi.NULL and wrap(0, 36864) == ffi.NULL
    for start, length in ((1, 4096), (0, 4095), (2048, 4096), (0, 2048)):
        with pytest.raises(ObjCError, match="must be multiples of the page size"):
            wrap(start, length)
    with pytest.raises(ObjCError, match="a deallocator block would be called"):
        host(message, host.device, ffi.cast("void *", 4096), 4096, 0, ffi.cast("void *", 1))


def test_what_the_device_says_of_itself() -> None:
    machine = Machine(max_threadgroup_memory=4096, max_buffer_length=5, working_set=6, family=1007)
    host = Host(machine=machine)
    ask = ("maxThreadgroupMemoryLength", "maxBufferLength", "recommendedMaxWorkingSetSize")
    assert [host(f"MTLDevice {x}", host.device) for x in ask] == [4096, 5, 6]
    with host.pool():
        name = host.objc.text(host("MTLDevice name", host.device))
    assert name == "Software Metal on Python (limits of Apple7)"


# ---- libraries, functions and pipelines

# MSL type -> MTLDataType, letter of struct
TYPES = {
    "bool": (53, "?"), "char": (45, "b"), "uchar": (49, "B"), "short": (37, "h"), "ushort": (41, "H"),
    "int": (29, "i"), "uint": (33, "I"), "long": (81, "q"), "ulong": (85, "Q"), "half": (16, "e"),
    "float": (3, "f"),
}  # fmt: skip


@pytest.mark.parametrize("msl", TYPES)
@pytest.mark.parametrize("named", [False, True])
def test_a_function_constant_of_each_type(host: Host, msl: str, named: bool) -> None:
    """The largest that fits, so that a wrong width or sign is seen."""
    kind, letter = TYPES[msl]
    bits = 8 * struct.calcsize(letter)
    value = {"bool": True, "half": 0.5, "float": -2.25}.get(msl)
    if value is None:
        value = 2**bits - 1 if msl.startswith("u") else -(2 ** (bits - 1))
    constants = host.new("MTLFunctionConstantValues")
    memory = ffi.from_buffer(struct.pack(letter, value))
    with host.pool():
        where: Any = host.objc.string("FLAG") if named else 7
        message = "MTLFunctionConstantValues setConstantValue:type:"
        message += "withName:" if named else "atIndex:"
        host(message, constants, memory, kind, where)
        with pytest.raises(ObjCError, match="MTLDataType 54 is not a scalar type"):
            host(message, constants, memory, 54, where)
    assert host.runtime.object(constants).values == {"FLAG" if named else 7: (msl, value)}


def test_constants_that_a_function_wants(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    info = KernelInfo(
        "tuned",
        (Param("a", "buffer", 0), Param("b", "buffer", 1, function_constant="ON")),
        max_total_threads=2000,
        function_constants={
            0: FunctionConstant("WIDTH", "uint32_t"),
            1: FunctionConstant("ON", "bool", required=False),
        },
    )
    monkeypatch.setitem(KERNELS, "tuned", (KERNELS["fault"][0], info))
    message = "MTLDevice newLibraryWithSource:options:error:"
    error = ffi.new("id *")
    with host.pool():
        text = host.objc.string("kernel void tuned();")
        library = host(message, host.device, text, ffi.NULL, error)

    def function(name: str = "tuned", **given: Any) -> Any:
        constants = host.new("MTLFunctionConstantValues")
        found = host.runtime.object(constants)
        found.values.update({{"width": 0, "on": 1}.get(k, k): v for k, v in given.items()})
        make = "MTLLibrary newFunctionWithName:constantValues:error:"
        with host.pool():
            made = host(make, library, host.objc.string(name), constants, error)
            return host.runtime.object(made) or host.objc.error(error[0])

    assert function("other") == "Function other was not found in the library"
    assert function() == "function constant WIDTH (index 0) of tuned has no value"
    assert "is uint32_t, its value was set as int" in function(width=("int", 3))
    error[0] = ffi.NULL
    plain = function(width=("uint", 3))
    assert error[0] != ffi.NULL  # beside the function: only the result tells failure
    assert plain.constants == {0: 3}
    assert function(WIDTH=("uint", 4), on=("bool", False)).constants == {0: 4, 1: False}
    both = function(width=("uint", 3), ON=("bool", True))
    for made, params in ((plain, ["a"]), (both, ["a", "b"])):
        device = host.runtime.object(host.device)
        pipeline = device._pipeline(made, False, ffi.NULL)
        assert [p.name for p in pipeline.params] == params
        assert pipeline.thread_limit == 1024  # the device's; its own would be 2000
        assert host("MTLComputePipelineState threadExecutionWidth", pipeline.handle) == 32


def test_static_memory_and_threads_of_a_pipeline() -> None:
    host = Host(machine=Machine(max_pipeline_threads=512))
    for name, threads, nbytes in (("tile", 512, 1024), ("geometry", 64, 0)):
        pipeline = host.pipeline(name)
        owner = "MTLComputePipelineState"
        assert host(f"{owner} maxTotalThreadsPerThreadgroup", pipeline) == threads
        assert host(f"{owner} staticThreadgroupMemoryLength", pipeline) == nbytes
    with host.pool():
        names = host("MTLLibrary functionNames", host.library)
        found = [host("NSArray objectAtIndex:", names, i) for i in range(host("NSArray count", names))]
        assert [host.objc.text(name) for name in found] == list(KERNELS)
        assert {host("NSObject retainCount", name) for name in found} == {1}  # the array's


def test_reflection_is_refused(host: Host) -> None:
    descriptor, error = host.new("MTLComputePipelineDescriptor"), ffi.new("id *")
    message = "MTLDevice newComputePipelineStateWithDescriptor:options:reflection:error:"
    for options, reflection in ((1, ffi.NULL), (0, ffi.new("id *"))):
        with host.pool(), pytest.raises(ObjCError, match="reflection is not supported"):
            host(message, host.device, descriptor, options, reflection, error)


def test_metal_s_own_settings_are_fast_maths(host: Host) -> None:
    def library(**settings: int) -> MTLLibrary:
        options = host.new("MTLCompileOptions")
        for name, value in settings.items():
            host(f"MTLCompileOptions {name}:", options, value)
        with host.pool():
            text, error = host.objc.string(SOURCE), ffi.new("id *")
            message = "MTLDevice newLibraryWithSource:options:error:"
            return host.runtime.object(host(message, host.device, text, options, error))

    def exact(**settings: int) -> tuple[bool, bool]:
        made = library(**settings)
        return made.fast_math, made.exact_functions

    assert exact() == (True, False)
    assert exact(setFastMathEnabled=0) == (False, True)
    assert exact(setMathMode=2) == (True, False)
    assert exact(setMathMode=0) == (False, False)
    assert exact(setMathMode=0, setMathFloatingPointFunctions=0) == (False, False)
    assert exact(setMathMode=0, setMathFloatingPointFunctions=1) == (False, True)
    assert library(setLanguageVersion=3 << 16).language == 3 << 16


@pytest.mark.parametrize(("text", "units"), [("", 0), ("ü", 1), ("🙂", 2)])
def test_strings_are_measured_in_utf_16(host: Host, text: str, units: int) -> None:
    with host.pool():
        assert host("NSString length", host.objc.string(text)) == units


def test_by_default_an_m3_with_16_gb(host: Host) -> None:
    machine = host.runtime.machine
    assert (machine.os_version, machine.family, machine.max_pipeline_threads) == ((15, 0), 1009, 1024)
    ask = ("maxThreadgroupMemoryLength", "maxBufferLength", "recommendedMaxWorkingSetSize")
    found = [host(f"MTLDevice {x}", host.device) for x in ask]
    assert found == [32768, 9_534_832_640, 12_713_115_648]  # as such a machine reports them

"""The language version that a program asks for: what it can use, and which macOS has it."""

import numpy as np
import pytest

from tinyrvllm import mtl
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double.engine import CompileError, CpuEngine
from tinyrvllm.soft.objc_double.languages import in_language

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void version(device int *out [[buffer(0)]]) { out[0] = __METAL_VERSION__; }
"""
BFLOAT = SOURCE + "kernel void narrow(device bfloat *x [[buffer(0)]]) { x[0] = bfloat(1.0f); }\n"


@pytest.mark.parametrize(("system", "version"), [((13, 0), 300), ((14, 2), 310), ((15, 0), 320)])
def test_each_macos_has_its_version(system: tuple[int, int], version: int) -> None:
    runtime = objc_double.metal(CpuEngine(), machine=objc_double.Machine(os_version=system))
    with mtl.Device(runtime) as device, device.buffer(4) as out:
        with device.commands() as commands, commands.encoder() as encoder:
            pipeline = device.library_from_source(SOURCE).pipeline("version")
            encoder.dispatch(pipeline, (1, 1, 1), (1, 1, 1), [out])
        assert out.numpy(np.int32)[0] == version
        if version < 310:
            with pytest.raises(mtl.MetalError, match=r"(?s)program_source:5:.*bfloat.*macOS_14"):
                device.library_from_source(BFLOAT)
        else:
            device.library_from_source(BFLOAT)


def test_a_version_that_the_system_does_not_have() -> None:
    with pytest.raises(CompileError, match=r"version 4\.0 is not supported on macOS 15"):
        in_language(SOURCE, 4 << 16, (15, 4))
    with pytest.raises(CompileError, match=r"version 9\.9"):
        in_language(SOURCE, 9 << 16 | 9, (26, 0))
    assert "__METAL_VERSION__ 400" in in_language(SOURCE, None, (26, 1))

"""What the checking mode tells a program through the double: errors, warnings, hazards."""

import warnings

import numpy as np
import pytest

from tests.soft.fake_engine import KERNELS, FakeEngine, KernelInfo, Param
from tests.soft.hosts import Host
from tinyrvllm import mtl
from tinyrvllm.soft.objc_double.engine import CpuEngine

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void some(device uint *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane < 8) out[lane] = simd_sum(1u);
}
kernel void origin(device uint *out [[buffer(0)]], uint3 first [[grid_origin]]) {
    out[0] = first.x + 2 * first.y + 4 * first.z;
}
kernel void past(device uint *out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = i; }
"""


@pytest.mark.parametrize("check", [True, False])
def test_a_warning_is_no_error(check: bool) -> None:
    """A simd operation of some lanes only is allowed, and often a mistake."""
    with mtl.open_device("soft:check" if check else "soft") as device, device.buffer(128) as out:
        some = device.library_from_source(SOURCE, "some.metal").pipeline("some")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with device.commands() as commands, commands.encoder() as encoder:
                encoder.dispatch(some, (1, 1, 1), (32, 1, 1), [out])
        assert out.numpy(np.uint32).tolist() == [8] * 8 + [0] * 24
        texts = [str(warning.message) for warning in told]
        assert len(texts) == check
        assert all("simd_sum by 8 lanes of a simdgroup only" in text for text in texts)


def test_a_report_is_the_error_of_its_command_buffer() -> None:
    with mtl.open_device("soft:check") as device, device.buffer(64) as out:
        past = device.library_from_source(SOURCE, "past.metal").pipeline("past")
        failure = pytest.raises(mtl.MetalError, match="failed: out of bounds: write of 4 bytes")
        with failure, device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(past, (1, 1, 1), (17, 1, 1), [out])


def test_a_grid_begins_at_0() -> None:
    with mtl.open_device("soft") as device, device.from_numpy(np.uint32([9])) as out:
        origin = device.library_from_source(SOURCE, "origin.metal").pipeline("origin")
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(origin, (1, 1, 1), (1, 1, 1), [out])
        assert out.numpy(np.uint32)[0] == 0


def test_checking_is_asked_for() -> None:
    assert not CpuEngine().check and CpuEngine(True).check
    assert "checking" in CpuEngine(True).description and "checking" not in CpuEngine().description


def test_threadgroup_memory_is_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index 0 of both: two dispatches read the buffer, and each has threadgroup memory of its own."""
    info = KernelInfo(
        "reads", (Param("x", "buffer", 0), Param("shared", "threadgroup", 0, "read_write"))
    )
    monkeypatch.setitem(KERNELS, "reads", (lambda run, constants: None, info))
    monkeypatch.setattr("tests.soft.hosts.SOURCE", "kernel void reads();")
    host = Host()
    assert isinstance(host.runtime.engine, FakeEngine)
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands, concurrent=True)
        host.set_pipeline(encoder, "reads")
        host.set_buffer(encoder, host.a, 0, 0)
        message = "MTLComputeCommandEncoder setThreadgroupMemoryLength:atIndex:"
        host(message, encoder, 16, 0)
        for _ in range(2):
            host.dispatch(encoder)
        host.end(encoder)
        host.commit(commands)
        host.wait(commands)
        assert host("MTLCommandBuffer status", commands) == 4

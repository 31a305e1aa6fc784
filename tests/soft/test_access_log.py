"""The log of accesses: who, what, where, in which phase, at which line."""

import numpy as np

from tinyrvllm.soft.cpu import access_log
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.following import follow
from tinyrvllm.soft.cpu.library import compile_library

SOURCE = """\
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
kernel void reverse(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                    uint i [[thread_position_in_threadgroup]],
                    uint group [[threadgroup_position_in_grid]]) {
    threadgroup float other[16], tile[64];
    other[i % 16] = 0;
    tile[i] = a[group * 64 + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[group * 64 + i] = tile[63 - i];
}
kernel void turn(device float *a [[buffer(0)]]) {
    simdgroup_float8x8 m;
    simdgroup_load(m, a, 8, ulong2(0, 0), true);
    simdgroup_store(m, a, 8);
}
"""


def log_of(kernel: str, groups: int, *arrays: np.ndarray) -> access_log.DispatchLog:
    library = compile_library(SOURCE, filename="log.metal", check=True)
    bound = {slot: (array.ctypes.data, array.nbytes) for slot, array in enumerate(arrays)}
    threads = 64 if kernel == "reverse" else 32
    dispatch = Dispatch(library.kernel(kernel), bound, (groups * threads, 1, 1), (threads, 1, 1))
    with access_log.record() as log:
        run([dispatch])
    run([dispatch])  # nobody wants to see this one
    (found,) = log.dispatches
    return found


def test_each_access_has_its_thread_place_phase_and_line():
    found = log_of("reverse", 3, np.zeros(192, np.float32), np.zeros(192, np.float32))
    assert (found.kernel, found.grid, found.group) == ("reverse", (192, 1, 1), (64, 1, 1))
    assert found.missed == 0
    reads = found.accesses("tile", group=2)[64:]
    assert {access.verb for access in reads} == {"read"}
    assert sorted((access.thread, access.offset) for access in reads) == [
        (thread, 4 * (63 - thread)) for thread in range(64)
    ]
    assert {(access.memory, access.size, access.step, access.line) for access in reads} == {
        ("threadgroup", 4, 1, 11)
    }
    writes = found.accesses("out")
    assert [access.group for access in writes] == sorted([0, 1, 2] * 64)
    assert {(access.memory, access.verb, access.step) for access in writes} == {
        ("device", "write", 1)
    }
    assert {access.step for access in found.accesses("a")} == {0}
    assert (found.barriers, found.simd_operations) == (3, 0)


def test_a_simdgroup_loads_as_a_whole():
    found = log_of("turn", 1, np.zeros(64, np.float32))
    assert {access.whole_simdgroup for access in found.rows} == {True}
    assert (found.barriers, found.simd_operations) == (0, 2)
    for verb, line in (("read", 15), ("write", 16)):
        accesses = [access for access in found.rows if access.verb == verb]
        touched = {access.offset + i for access in accesses for i in range(access.size)}
        assert touched == set(range(256))
        assert {access.line for access in accesses} == {line}


def test_a_full_log_says_how_much_it_missed():
    array = np.zeros(64, np.float32)
    library = compile_library(SOURCE, filename="log.metal", check=True)
    bound = {slot: (array.ctypes.data, array.nbytes) for slot in (0, 1)}
    with access_log.record(most=100) as log:
        run([Dispatch(library.kernel("reverse"), bound, (64, 1, 1), (64, 1, 1))])
    assert len(log.dispatches[0].rows) == 100
    assert log.dispatches[0].missed == 5 * 64 - 100


def test_a_checked_thread_can_be_followed_too():
    """Up to the access that ends it, and without reports of the notes themselves."""
    source = SOURCE.replace("out[group * 64 + i]", "uint at = i < 63 ? i : 99;\n    out[at]")
    library = compile_library(source, filename="log.metal", check=True, follow=True)
    array = np.zeros(64, np.float32)
    bound = {slot: (array.ctypes.data, array.nbytes) for slot in (0, 1)}
    dispatch = Dispatch(library.kernel("reverse"), bound, (64, 1, 1), (64, 1, 1))
    values = [event.value for event in follow(dispatch, (63, 0, 0)) if event.label == "at"]
    assert values == [(99,)]

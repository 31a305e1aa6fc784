"""Metal 4's matmul2d: the probe, its language version, and the software device's tensors."""

import dataclasses

import numpy as np
import pytest

from tinyrvllm.kernels import gemm, gemm_tensor, shapes
from tinyrvllm.kernels.launch import Launch
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.mtl import MetalError
from tinyrvllm.mtl.device import Device
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double.engine import CpuEngine

# c [32, 64] = a [32, 40] b [40, 64] by one threadgroup; `BODY` is what a test changes.
SOURCE = """\
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_stdlib>
using namespace metal;
using namespace mpp::tensor_ops;

using Floats = tensor<device float, dextents<int32_t, 2>, tensor_inline>;
constant constexpr auto multiply = matmul2d_descriptor::mode::multiply;
constant constexpr auto accumulate = matmul2d_descriptor::mode::multiply_accumulate;

kernel void product(device float *a [[buffer(0)]], device float *b [[buffer(1)]],
                    device float *c [[buffer(2)]],
                    uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float tile[32 * 64];
    Floats left(a, dextents<int32_t, 2>(40, 32)), right(b, dextents<int32_t, 2>(64, 40));
    Floats out(c, dextents<int32_t, 2>(64, 32));
    BODY
}
"""
COOPERATIVE = """
    constexpr auto shape = matmul2d_descriptor(32, 64, 40, false, false, false, accumulate);
    matmul2d<shape, execution_simdgroups<4>> op;
    auto sums = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) sums[i] = 0.0f;
    }
    op.run(left, right, sums);
"""
BODIES = {
    "stored": COOPERATIVE + "sums.store(out);",
    "by coordinates": COOPERATIVE
    + """
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        auto at = sums.get_multidimensional_index(i);
        if (sums.is_valid_element(i)) c[at[1] * 64 + at[0]] = sums[i];
    }
""",
    "into memory": """
    constexpr auto shape = matmul2d_descriptor(32, 64, static_cast<int>(dynamic_extent), false,
                                               false, false, multiply);
    matmul2d<shape, execution_simdgroups<4>>().run(left, right, out);
""",
    "slices": """
    constexpr auto shape = matmul2d_descriptor(16, 32, 40, false, false, false, multiply);
    matmul2d<shape, execution_simdgroup> op;
    int x = thread_index / 32 % 2 * 32, y = thread_index / 64 * 16;
    auto my_left = left.slice(0, y), my_right = right.slice(x, 0), my_out = out.slice(x, y);
    op.run(my_left, my_right, my_out);
""",
    "static slices": """
    constexpr auto shape = matmul2d_descriptor(16, 32, 8, false, false, false, accumulate);
    matmul2d<shape, execution_simdgroup> op;
    int x = thread_index / 32 % 2 * 32, y = thread_index / 64 * 16;
    auto my_out = out.slice<32, 16>(x, y);
    auto first_left = left.slice<8, 16>(0, y), first_right = right.slice<32, 8>(x, 0);
    auto sums = op.get_destination_cooperative_tensor<decltype(first_left), decltype(first_right),
                                                      float>();
    for (ushort i = 0; i < sums.get_capacity(); i++) sums.set(i, 0.0f);
    for (int k = 0; k < 40; k += 8) {
        auto my_left = left.slice<8, 16>(k, y), my_right = right.slice<32, 8>(x, k);
        op.run(my_left, my_right, sums);
    }
    sums.store(my_out);
""",
    "staged": """
    tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline> staged(
        tile, dextents<int32_t, 2>(40, 32), array<int32_t, 2>{1, 41});
    for (uint e = thread_index; e < 32 * 40; e += 128) tile[e / 40 * 41 + e % 40] = a[e];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    constexpr auto shape = matmul2d_descriptor(32, 64, 40, false, false, false, multiply);
    matmul2d<shape, execution_simdgroups<4>>().run(staged, right, out);
""",
}


def product(device: Device, body: str, threads: int = 128) -> float:
    """The worst difference from numpy's product; NaN where an element is NaN."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((32, 40), (40, 64)))
    buffers = [device.from_numpy(x) for x in (a, b, np.zeros((32, 64), np.float32))]
    pipeline = device.library_from_source(SOURCE.replace("BODY", body)).pipeline("product")
    with device.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(pipeline, groups=(1, 1, 1), threads=(threads, 1, 1), buffers=buffers)
    return float(np.abs(buffers[2].numpy(np.float32, (32, 64)) - a @ b).max())


def test_the_software_device_passes_the_probe(checking_device: Device) -> None:
    assert gemm_tensor.why_not(checking_device) == ""


@pytest.mark.parametrize("body", BODIES)
def test_tensors(checking_device: Device, body: str) -> None:
    assert product(checking_device, BODIES[body]) < 1e-5


def test_a_device_without_metal_4_says_so(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    def refuse(name: str) -> None:
        raise MetalError(f"{name} does not compile:\nno file <metal_tensor>")

    monkeypatch.setattr(device, "library", refuse)
    assert "needs Metal 4 (macOS 26 or newer)" in gemm_tensor.why_not(device)
    table = shapes.runnable(shapes.TABLE, device)
    assert {c.kernel for c in shapes.TABLE} - {c.kernel for c in table} == {"gemm_tensor"}


def test_a_wrong_product_is_no_lack_but_a_reason(
    monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    monkeypatch.setattr(gemm_tensor, "launch", gemm.launch)
    assert gemm_tensor.why_not(device) == ""
    monkeypatch.setattr(gemm_tensor, "launch", twice)
    assert "expected x W^T, found a product that is off by" in gemm_tensor.why_not(device)
    assert shapes.runnable(shapes.TABLE, device) == shapes.TABLE


def twice(matmul: Matmul) -> Launch:
    """A kernel that computes something else: x W^T plus the first numbers of x."""
    return gemm.launch(dataclasses.replace(matmul, bias=matmul.x))


def test_elements_are_nan_until_they_are_set(checking_device: Device) -> None:
    body = BODIES["stored"].replace("sums[i] = 0.0f", "(void)0")
    assert np.isnan(product(checking_device, body))


def test_a_launch_of_other_than_the_scopes_threads_is_nan(checking_device: Device) -> None:
    assert np.isnan(product(checking_device, BODIES["stored"], threads=64))


@pytest.mark.parametrize(
    ("body", "change", "finding"),
    [
        ("staged", ("threadgroup_barrier(mem_flags::mem_threadgroup);", ""), "race"),
        ("by coordinates", ("if (sums.is_valid_element(i)) c[", "c["), "out of bounds"),
    ],
)  # fmt: skip
def test_what_apple_leaves_undefined_is_reported(
    checking_device: Device, body: str, change: tuple[str, str], finding: str
) -> None:
    with pytest.raises(MetalError, match=f"(?i){finding}"):
        product(checking_device, BODIES[body].replace(*change))


@pytest.mark.parametrize(
    ("body", "change", "message"),
    [
        ("stored", ("right), float>", "right), half>"), "combination of element types"),
        ("stored", ("(32, 64, 40", "(8, 64, 40"), "refuses tiles of 8"),
    ],
)  # fmt: skip
def test_what_apples_compiler_refuses_is_refused(
    device: Device, body: str, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(MetalError, match=message):
        product(device, BODIES[body].replace(*change))


@pytest.mark.parametrize(("system", "version"), [((15, 0), (3, 2)), ((26, 0), (4, 0))])
def test_only_tensors_ask_for_metal_4(system: tuple[int, int], version: tuple[int, int]) -> None:
    runtime = objc_double.metal(CpuEngine(False), machine=objc_double.Machine(os_version=system))
    with Device(runtime) as device:
        language = runtime.object(device.library("gemm_tensor").handle).language
        assert divmod(language, 1 << 16) == version
        language = runtime.object(device.library("elementwise").handle).language
        assert divmod(language, 1 << 16) == (3, 2)

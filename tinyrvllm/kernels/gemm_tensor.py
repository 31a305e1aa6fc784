"""y = x W^T for many rows by Metal 4's matmul2d: shaders/gemm_tensor.metal. Off unless asked for."""

from typing import TYPE_CHECKING

import numpy as np
from gguf import GGMLQuantizationType

from ..mtl.api import MetalError
from . import gemm
from .launch import Launch, run, whole
from .matmul import Matmul
from .quant import Matrix

if TYPE_CHECKING:
    from ..mtl.device import Device

PROBE = 33, 65, 40  # rows, outputs, inputs: more than a tile each way, and a ragged step of K


def launch(matmul: Matmul) -> Launch:
    """Takes every shape without a fused norm, on a device for which `why_not` says nothing."""
    return gemm.tiled("gemm_tensor", matmul, half_bytes=8_192, float_bytes=12_288)


def missing(device: "Device") -> str:
    """Why this device's compiler does not take the shader; "" where it does."""
    try:
        device.library("gemm_tensor")
    except MetalError as error:
        lines = str(error).splitlines()
        told = next((line for line in lines[1:] if "error:" in line), lines[-1])
        return f"gemm_tensor needs Metal 4 (macOS 26 or newer); this device says: {told}"
    return ""


def why_not(device: "Device") -> str:
    """Why this device should not run gemm_tensor; "" where it can.

    Beside `missing`: is one small product right? (Apple documents neither the order of a tensor's
    dimensions nor the modes of matmul2d exactly.)
    """
    if reason := missing(device):
        return reason
    rows, outputs, inputs = PROBE
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    w = rng.normal(size=(outputs, inputs)).astype(np.float16)
    with (
        device.from_numpy(x) as left,
        device.from_numpy(w) as right,
        device.buffer(4 * rows * outputs) as result,
    ):
        weight = Matrix(whole(right), GGMLQuantizationType.F16, outputs, inputs)
        run(device, launch(Matmul(whole(left), weight, whole(result), rows)))
        y = result.numpy(np.float32, (rows, outputs))
        difference = float(np.abs(y - x @ w.astype(np.float32).T).max())
    if not difference < 0.1:  # numbers are near 6, and 0.01 is what a tenth mantissa bit is worth
        return f"gemm_tensor: expected x W^T, found a product that is off by {difference:.2g}"
    return ""

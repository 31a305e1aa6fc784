"""Buffers that a kernel reaches through addresses in another one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from tests.mtl.test_bridge import KERNELS
from tinyrvllm import mtl
from tinyrvllm.mtl.replay import ResidencySet, gpu_address, use

N = 64


@dataclass
class Tables:
    order: mtl.Buffer
    values: mtl.Buffer
    out: mtl.Buffer
    addresses: mtl.Buffer


@contextmanager
def made(device: mtl.Device) -> Iterator[Tables]:
    order = np.random.default_rng(3).permutation(N).astype(np.uint32)
    with (
        device.from_numpy(order, "order") as a,
        device.from_numpy(np.arange(N, dtype=np.float32), "values") as b,
        device.buffer(4 * N, "out") as out,
        device.buffer(24, "tables") as addresses,
    ):
        addresses.numpy(np.uint64)[:] = gpu_address(a), gpu_address(b), N
        yield Tables(a, b, out, addresses)


def run(device: mtl.Device, tables: Tables, used: tuple[mtl.Buffer, ...], names: list[str]) -> None:
    library = device.library(KERNELS)
    with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
        use(encoder, *used)
        for name in names:
            buffers = [tables.addresses, tables.out][: 2 if name == "permute" else 1]
            encoder.dispatch(library.pipeline(name), (2, 1, 1), (32, 1, 1), buffers)


def test_kernels_follow_addresses(device: mtl.Device) -> None:
    with made(device) as tables:
        run(device, tables, (tables.order, tables.values), ["permute"])
        np.testing.assert_array_equal(tables.out.numpy(np.float32), tables.order.numpy(np.uint32))
        run(device, tables, (tables.values,), ["fill"])
        assert (tables.values.numpy(np.float32) == 7).all()


def test_with_a_residency_set(device: mtl.Device) -> None:
    if device.limits.os_version < (15, 0):
        pytest.skip("residency sets came with macOS 15; this system is older")
    with made(device) as tables, ResidencySet(device, [tables.order, tables.values]):
        run(device, tables, (), ["permute"])
        np.testing.assert_array_equal(tables.out.numpy(np.float32), tables.order.numpy(np.uint32))


def test_the_checks_follow_them_too() -> None:
    with mtl.open_device("soft:check") as device, made(device) as tables:
        with pytest.raises(mtl.MetalError, match="out of bounds.*\n.*\n.*tables.values"):
            run(device, tables, (tables.order,), ["permute"])  # without use(values)
        used = (tables.order, tables.values)
        with pytest.raises(mtl.MetalError, match=r"missing barrier.*'values'.*by its address"):
            run(device, tables, used, ["permute", "fill"])
        tables.order.numpy(np.uint32)[5] = 1 << 28  # far from every other buffer
        with pytest.raises(mtl.MetalError, match="out of bounds: read of 4 bytes"):
            run(device, tables, used, ["permute"])

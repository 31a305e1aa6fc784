"""The whole bridge on every device: buffers, libraries, pipelines, command buffers."""

import gc
import mmap
import platform
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.mtl import scenario
from tinyrvllm import mtl

KERNELS = Path(__file__).with_name("kernels.metal")


def test_scenario_on_the_double() -> None:
    scenario.run(mtl)


def test_device_says_what_it_is(device: mtl.Device) -> None:
    limits = device.limits
    assert device.name and limits.families and limits.os_version >= (13, 0)
    assert limits.max_threads_per_threadgroup[0] >= 512
    assert limits.max_threadgroup_memory >= 32768
    assert limits.max_buffer_length >= 1 << 28 and limits.recommended_working_set >= 1 << 28


def test_vector_add(device: mtl.Device) -> None:
    a, b = (np.random.default_rng(s).standard_normal(1000, np.float32) for s in (1, 2))
    pipeline = device.library(KERNELS).pipeline("vector_add")
    n = np.uint32(1000).tobytes()
    with device.from_numpy(a, "a") as x, device.from_numpy(b) as y, device.buffer(4000) as z:
        with device.commands("add") as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, (8, 1, 1), (128, 1, 1), [x, y, z], n)
        np.testing.assert_array_equal(z.numpy(np.float32), a + b)
        assert 0 < commands.gpu_seconds < 60 and commands.dispatches == 1


def test_asymmetric_grid(device: mtl.Device) -> None:
    pipeline = device.library(KERNELS).pipeline("geometry")
    assert pipeline.max_threads == 64 and pipeline.simd_width == 32
    with device.buffer(24) as out:
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, (2, 3, 5), (7, 1, 2), [out])
        assert out.numpy(np.uint32).tolist() == [2, 3, 5, 7, 1, 2]


def test_function_constants(device: mtl.Device) -> None:
    names = ("FACTOR", "BIAS", "NEGATE")
    x = np.arange(32, dtype=np.float32)
    library = device.library(KERNELS)
    with device.from_numpy(x) as source, device.buffer(128) as target:
        for values in ((3, 0.5, True), (np.uint32(4), np.float32(-2), np.bool_(False))):
            pipeline = library.pipeline("affine", dict(zip(names, values, strict=True)))
            with device.commands() as commands, commands.encoder() as encoder:
                encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), [source, target])
            factor, bias, negate = values
            expected = (-1 if negate else 1) * np.float32(factor) * x + np.float32(bias)
            np.testing.assert_array_equal(target.numpy(np.float32), expected)


def test_pipelines_and_libraries_are_kept(device: mtl.Device) -> None:
    library = device.library(KERNELS)
    assert device.library(KERNELS) is library
    constants = {"FACTOR": 1, "BIAS": 1.0, "NEGATE": True}
    first = library.pipeline("affine", constants)
    assert library.pipeline("affine", dict(constants)) is first
    assert library.pipeline("affine", constants | {"FACTOR": 2}) is not first
    assert {"vector_add", "affine", "geometry"} <= set(library.kernel_names)


def test_threadgroup_memory(device: mtl.Device) -> None:
    x = np.arange(64, dtype=np.float32)
    pipeline = device.library(KERNELS).pipeline("reversed")
    assert pipeline.static_threadgroup_memory >= 16
    with device.from_numpy(x) as source, device.buffer(256) as target:
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(
                pipeline, (1, 1, 1), (64, 1, 1), [source, target], threadgroup_memory=[256]
            )
        np.testing.assert_array_equal(target.numpy(np.float32), 2 * x[::-1])


def test_products_are_not_fused(device: mtl.Device) -> None:
    x = np.array([1 + 2**-12, 1 + 2**-12, -1 - 2**-11], np.float32)
    with device.from_numpy(x) as source, device.buffer(128) as target:
        with device.commands() as commands, commands.encoder() as encoder:
            pipeline = device.library(KERNELS).pipeline("unfused")
            encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), [source, target])
        assert target.numpy(np.float32)[0] == x[0] * x[1] + x[2] == 0  # fused it is 2**-24


def test_concurrent_dispatches_with_barriers(device: mtl.Device) -> None:
    pipeline = device.library(KERNELS).pipeline("vector_add")
    n = np.uint32(64).tobytes()
    with device.from_numpy(np.ones(64, np.float32)) as one, device.buffer(256) as total:
        with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
            for step in range(10):
                encoder.dispatch(pipeline, (1, 1, 1), (64, 1, 1), [one, total, total], n)
                encoder.barrier(*([total] if step % 2 else []))
        assert (total.numpy(np.float32) == 10).all()


def test_offsets(device: mtl.Device) -> None:
    pipeline = device.library(KERNELS).pipeline("vector_add")
    x = np.arange(100, dtype=np.float32)
    with device.from_numpy(x) as source, device.buffer(1024) as target:
        with device.commands() as commands, commands.encoder() as encoder:
            buffers = [(source, 40), (source, 80), (target, 512)]
            encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), buffers, np.uint32(20).tobytes())
        found = target.numpy(np.float32, (20,), offset=512)
        np.testing.assert_array_equal(found, x[10:30] + x[20:40])
        assert not target.numpy(np.float32, (128,)).any()


def test_wrapped_file(device: mtl.Device, tmp_path: Path) -> None:
    """A memory-mapped file is read with no copy, to its last byte, and cannot be written."""
    x = np.arange(5000, dtype=np.float32)
    (tmp_path / "weights").write_bytes(x.tobytes())
    mapped = np.memmap(tmp_path / "weights", np.float32, "r")
    with device.wrap(mapped, "weights") as weights, device.buffer(20000) as target:
        assert weights.nbytes == 20000 and not weights.numpy().flags.writeable
        pipeline = device.library(KERNELS).pipeline("vector_add")
        with device.commands() as commands, commands.encoder() as encoder:
            buffers, n = [weights, weights, target], np.uint32(5000).tobytes()
            encoder.dispatch(pipeline, (40, 1, 1), (128, 1, 1), buffers, n)
        np.testing.assert_array_equal(target.numpy(np.float32), 2 * x)


def test_wrapped_memory_is_shared(device: mtl.Device) -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as pages, device.wrap(pages) as buffer:
        buffer.numpy()[7] = 42
        assert pages[7] == 42


def test_worker_threads(device: mtl.Device) -> None:
    """Threads record and run at the same time, with no pool of their own."""
    pipeline = device.library(KERNELS).pipeline("vector_add")
    wrong: list[object] = []
    shared = device.from_numpy(np.ones(256, np.float32), "shared")

    def work(number: int) -> None:
        x = np.full(256, number, np.float32)
        with device.from_numpy(x) as source, device.buffer(1024) as target:
            for _ in range(20):
                commands = device.commands(f"thread {number}")
                with commands, commands.encoder() as encoder:
                    buffers, n = [source, shared, target], np.uint32(256).tobytes()
                    encoder.dispatch(pipeline, (2, 1, 1), (128, 1, 1), buffers, n)
                if not (target.numpy(np.float32) == number + 1).all():
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and not shared.in_flight
    shared.close()


@pytest.mark.filterwarnings("ignore:when the device was released")  # nobody waits
def test_work_that_nobody_waits_for_goes_quietly(
    device: mtl.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Ctrl-C ends a program: its buffers are released, and nothing is said."""
    said: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", said.append)
    pipeline = device.library(KERNELS).pipeline("geometry")
    out, commands = device.buffer(24, "forgotten"), device.commands()
    with commands.encoder() as encoder:
        encoder.dispatch(pipeline, (1, 1, 1), (1, 1, 1), [out])
    commands.commit()
    del out, commands, encoder
    gc.collect()
    assert said == []


def test_diagnostics_name_file_and_line(device: mtl.Device, tmp_path: Path) -> None:
    (tmp_path / "bad.metal").write_text('#include "part.h"\nkernel void f() { int x = y; }\n')
    (tmp_path / "part.h").write_text("#pragma once\n\ninline int g() { return 1; }\n")
    with pytest.raises(mtl.MetalError, match=r"bad.metal:2:\d+: error: .*'y'"):
        device.library(tmp_path / "bad.metal")
    (tmp_path / "part.h").write_text("\n\ninline int g() { return z; }\n")
    with pytest.raises(mtl.MetalError, match=r"part.h:3:\d+: error: .*'z'"):
        device.library(tmp_path / "bad.metal")


def test_missing_files(device: mtl.Device, tmp_path: Path) -> None:
    with pytest.raises(mtl.MetalError, match="nowhere.metal, found no file"):
        device.library("nowhere")
    (tmp_path / "a.metal").write_text('// a\n#include "b.h"\n')
    with pytest.raises(mtl.MetalError, match="a.metal:2: no file 'b.h' beside it"):
        device.library(tmp_path / "a.metal")


def test_what_metal_is_not_asked(device: mtl.Device) -> None:
    pipeline = device.library(KERNELS).pipeline("geometry")
    out = device.buffer(24, "out")
    with out, device.commands() as commands, commands.encoder() as encoder:  # noqa: SIM117
        with pytest.raises(mtl.MetalError, match="'geometry': expected 1 to 64 threads"):
            encoder.dispatch(pipeline, (1, 1, 1), (65, 1, 1), [out])
    with pytest.raises(mtl.MetalError, match="'out' is closed"):
        out.numpy()
    with pytest.raises(mtl.MetalError, match=r"say np.int32\(-1\)"):
        device.library(KERNELS).pipeline("affine", {"FACTOR": -1})
    with pytest.raises(mtl.MetalError, match="no kernel 'other'"):
        device.library(KERNELS).pipeline("other")


def test_metal_is_refused_where_there_is_none() -> None:
    if platform.system() == "Darwin":
        pytest.skip("this machine has Metal")
    with pytest.raises(mtl.MetalError, match="expected macOS.*choose 'soft' or 'cpu'"):
        mtl.open_device("metal")

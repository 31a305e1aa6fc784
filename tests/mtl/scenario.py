"""One run through the whole bridge, on the double with kernels in Python.

`run` takes the bridge as a package, so that the same lines judge the real one and changed ones.
"""

import gc
import importlib
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest

from tests.soft.fake_engine import SOURCE, FakeEngine
from tinyrvllm.mtl.objc import Runtime
from tinyrvllm.soft import objc_double


def run(
    mtl: ModuleType,
    wrap: Callable[[objc_double.SoftRuntime], Runtime] = lambda runtime: runtime,
) -> None:
    """Raises when the bridge breaks a rule, computes something else, or leaks.

    wrap: another runtime over the double's classes.
    """
    for machine in (  # maths options are set in two ways, and replays prepared in two
        objc_double.Machine(os_version=(15, 0), family=1009),
        objc_double.Machine(os_version=(14, 0), family=1007),
    ):
        runtime = objc_double.metal(FakeEngine(), machine=machine, check=True)
        with mtl.Device(wrap(runtime)) as device:
            _compute(mtl, device)
            _refuse(mtl, device)
            _late(mtl, device)
            _thread(device)
            _indirect(mtl, device, runtime)
            _lifetimes(mtl, device, runtime)
            _options(device, runtime)
        gc.collect()
        assert runtime.leaks() == [] and runtime.faults == []


def _add(mtl: ModuleType, encoder: object, device: object, *buffers: object) -> None:
    pipeline = device.library_from_source(SOURCE, "fake.metal").pipeline("vector_add")
    n = np.uint32(100).tobytes()
    encoder.dispatch(pipeline, (4, 1, 1), (32, 1, 1), buffers, n)


def _compute(mtl: ModuleType, device: object) -> None:
    numbers = np.arange(100, dtype=np.float32)
    library = device.library_from_source(SOURCE, "fake.metal")
    with device.from_numpy(numbers, "a") as a, device.buffer(1000, "c") as c:
        assert a.nbytes == 400 and not c.numpy().any()
        with device.commands("add") as commands, commands.encoder() as encoder:
            _add(mtl, encoder, device, a, a, (c, 8))
        assert np.array_equal(c.numpy(np.float32, (100,), offset=8), numbers * 2)
        assert commands.gpu_seconds > 0
        with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
            _add(mtl, encoder, device, a, a, c)
            encoder.barrier(c)
            _add(mtl, encoder, device, a, c, c)
            encoder.barrier()
            _add(mtl, encoder, device, a, c, c)
        assert np.array_equal(c.numpy(np.float32, (100,)), numbers * 4)
    with device.buffer(64) as out, device.from_numpy(numbers[:16]) as x:
        for factor in (3.0, np.float32(0.5)):
            scale = library.pipeline("scale", {"FACTOR": factor})
            with device.commands() as commands, commands.encoder() as encoder:
                encoder.dispatch(scale, (1, 1, 1), (16, 1, 1), [x, out])
            assert np.array_equal(out.numpy(np.float32), numbers[:16] * factor)
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(library.pipeline("geometry"), (2, 3, 5), (7, 1, 2), [out])
        assert out.numpy(np.uint32)[:6].tolist() == [14, 3, 10, 7, 1, 2]
        tile = library.pipeline("tile")
        assert tile.static_threadgroup_memory == 1024 and tile.simd_width == 32
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(tile, (1, 1, 1), (1, 1, 1), [out], threadgroup_memory=[48])
        assert out.numpy(np.uint32)[0] == 48
    with mmap.mmap(-1, 100) as pages:
        pages[:4] = b"\1\2\3\4"
        with device.wrap(pages, "mapped") as wrapped:
            assert wrapped.numpy()[:4].tolist() == [1, 2, 3, 4] and wrapped.nbytes == 100


def _refuse(mtl: ModuleType, device: object) -> None:
    library = device.library_from_source(SOURCE, "fake.metal")
    geometry = library.pipeline("geometry")
    assert geometry.max_threads == 64
    with pytest.raises(mtl.MetalError, match="1 to 64 threads in a threadgroup"):
        _dispatch(device, geometry, (1, 1, 1), (65, 1, 1))
    with pytest.raises(mtl.MetalError, match="4096 bytes of constants, found 4097"):
        _dispatch(device, library.pipeline("fault"), (1, 1, 1), (1, 1, 1), constants=bytes(4097))
    for lengths in ([100], [32000]):  # not a multiple of 16; too much with the kernel's own 1024
        with pytest.raises(mtl.MetalError, match="multiples of 16 bytes of threadgroup memory"):
            tile = library.pipeline("tile")
            _dispatch(device, tile, (1, 1, 1), (1, 1, 1), threadgroup_memory=lengths)
    with pytest.raises(mtl.MetalError, match="'fault': thread .7, 0, 0. read past buffer.0."):
        _dispatch(device, library.pipeline("fault"), (1, 1, 1), (1, 1, 1))
    with pytest.raises(mtl.MetalError, match="bad.metal does not compile:\nprogram_source:1:1"):
        device.library_from_source("nothing", "bad.metal")
    with pytest.raises(mtl.MetalError, match="no kernel 'nope'.*vector_add"):
        library.pipeline("nope")
    with pytest.raises(mtl.MetalError, match="is float, its value was set as uint"):
        library.pipeline("scale", {"FACTOR": 3})
    with pytest.raises(mtl.MetalError, match="FACTOR .index 0. of scale has no value"):
        library.pipeline("scale")
    with pytest.raises(mtl.MetalError, match="expected 1 to 9534832640 bytes"):
        device.buffer(1 << 40)
    with pytest.raises(mtl.MetalError, match="starts on a page"):
        device.wrap(np.zeros(10000, np.uint8)[1:])
    small = device.buffer(16, "small")
    assert small.numpy(np.float32, (0,)).size == 0 and small.numpy(np.float32, offset=16).size == 0
    with small, pytest.raises(mtl.MetalError, match="inside its 16 bytes, found float32 .5,. from byte 0"):
        small.numpy(np.float32, (5,))
    with pytest.raises(mtl.MetalError, match="'small' is closed"):
        small.numpy()
    with device.commands() as commands, commands.encoder():
        with pytest.raises(mtl.MetalError, match="open in an encoder; it cannot take"):
            commands.encoder().__enter__()
        with pytest.raises(mtl.MetalError, match="open in an encoder; it cannot be committed"):
            commands.commit()
    with pytest.raises(ZeroDivisionError), device.commands() as commands, commands.encoder():
        raise ZeroDivisionError  # the encoder is ended and nothing is committed
    assert not commands.committed


def _dispatch(device: object, pipeline: object, *arguments: object, **named: object) -> None:
    out = device.buffer(64)
    with out, device.commands("one") as commands, commands.encoder() as encoder:
        encoder.dispatch(pipeline, *arguments, buffers=[out], **named)


def _late(mtl: ModuleType, device: object) -> None:
    """Two command buffers in flight; the buffer may be seen only after the second."""
    with device.from_numpy(np.ones(100, np.float32)) as a, device.buffer(400, "c") as c:
        first, second = device.commands("first"), device.commands("second")
        for commands in (first, second):
            with commands.encoder() as encoder:
                _add(mtl, encoder, device, a, a, c)
            with pytest.raises(mtl.MetalError, match="commit it before you wait"):
                commands.wait()
            with pytest.raises(mtl.MetalError, match="Encoder .* is closed"):
                encoder.barrier()
            commands.commit()
            with pytest.raises(mtl.MetalError, match="is committed already; it cannot take"):
                commands.encoder().__enter__()
            with pytest.raises(mtl.MetalError, match="committed already; it cannot be committed"):
                commands.commit()
        for commands in (first, second):
            with pytest.raises(mtl.MetalError, match="'c' is in use"):
                c.numpy()
            with pytest.raises(mtl.MetalError, match="before you look at it or close it"):
                c.close()
            commands.wait()
            commands.wait()  # once more does nothing
        assert (c.numpy(np.float32) == 2).all()


def _thread(device: object) -> None:
    """A worker thread needs no pool of its own."""
    pipeline = device.library_from_source(SOURCE, "fake.metal").pipeline("geometry")

    def work() -> list[int]:
        out = device.buffer(64)
        with out, device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, (1, 1, 1), (9, 1, 1), [out])
            commands.device.buffer(4, "made while encoding")
        return [commands.dispatches]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == [1]


def _indirect(mtl: ModuleType, device: object, runtime: objc_double.SoftRuntime) -> None:
    library = device.library_from_source(SOURCE, "fake.metal")
    add, geometry = (library.pipeline(name, indirect=True) for name in ("vector_add", "geometry"))
    replay = importlib.import_module(f"{mtl.__name__}.replay")
    with (
        device.from_numpy(np.ones(100, np.float32)) as a,
        device.from_numpy(np.zeros(108, np.float32)) as c,
        device.from_numpy(np.array([100], np.uint32)) as n,
        replay.IndirectCommands(device, capacity=4, slots=4) as program,
    ):
        program.record(add, (4, 1, 1), (32, 1, 1), [(a, 0), (a, 0), (c, 32), (n, 0)], barrier=False)
        program.record(add, (4, 1, 1), (32, 1, 1), [(a, 0), (c, 32), (c, 32), (n, 0)])
        program.record(geometry, (2, 3, 5), (7, 1, 2), [(c, 0)])
        if device.limits.os_version >= (15, 0):
            alive = len(runtime.live())
            replay.ResidencySet(device, [a, c]).close()
            assert len(runtime.live()) == alive, "the set lives on"
        for _ in range(2):
            with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
                program.execute(encoder)
            assert (c.numpy(np.float32, (100,), offset=32) == 3).all()
            assert c.numpy(np.uint32)[0] == 14 and commands.dispatches == 3
        commands = device.commands()
        with commands.encoder() as encoder:
            program.execute(encoder)
        commands.commit()
        with pytest.raises(mtl.MetalError, match="is in use"):
            c.numpy()
        commands.wait()


def _lifetimes(mtl: ModuleType, device: object, runtime: objc_double.SoftRuntime) -> None:
    alive = len(runtime.live())
    buffer = device.from_numpy(np.arange(4, dtype=np.uint32))
    view = buffer.numpy(np.uint32)
    buffer.close()
    assert len(runtime.live()) == alive + 1 and view.tolist() == [0, 1, 2, 3]
    del view
    device.buffer(16)  # collected at once
    assert len(runtime.live()) == alive
    objects = len(runtime._objects)
    for _ in range(3):
        out = device.buffer(64)
        with out, device.commands("loop") as commands, commands.encoder() as encoder:
            pipeline = device.library_from_source(SOURCE, "fake.metal").pipeline("geometry")
            encoder.dispatch(pipeline, (1, 1, 1), (1, 1, 1), [out])
    assert len(runtime._objects) == objects, "objects grow with the number of command buffers"


def _options(device: object, runtime: objc_double.SoftRuntime) -> None:
    libraries = [obj for obj in runtime.live() if type(obj).__name__ == "MTLLibrary"]
    assert libraries and not any(library.fast_math for library in libraries)
    assert all(library.exact_functions for library in libraries)
    newest = 3 << 16 | (2 if runtime.os_version >= (15, 0) else 1)
    assert {library.language for library in libraries} == {newest}

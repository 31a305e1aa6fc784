"""The bridge at its limits, on an engine of Python functions: what is allowed last, and what is not."""

import gc
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.soft.fake_engine import SOURCE, FakeEngine
from tinyrvllm import mtl
from tinyrvllm.mtl.library import PRELUDE, SHADERS, splice, typed_constant
from tinyrvllm.mtl.profile import Profile, Timing, Work
from tinyrvllm.mtl.replay import IndirectCommands, Recording, ResidencySet
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double import Machine
from tinyrvllm.soft.objc_double.engine import Run


def opened(machine: Machine | None = None) -> mtl.Device:
    return mtl.Device(objc_double.metal(FakeEngine(), machine=machine, check=True))


@pytest.fixture
def device() -> Iterator[mtl.Device]:
    with opened() as made:
        yield made


# ---- devices and buffers


@pytest.mark.filterwarnings("error")
def test_limits_are_the_machine_s() -> None:
    machine = Machine(
        os_version=(14, 3), family=1008, max_threadgroup_memory=4096, max_buffer_length=65536, working_set=9
    )  # fmt: skip
    with opened(machine) as device:
        assert device.limits == mtl.Limits(
            max_threads_per_threadgroup=(1024, 1024, 1024),
            max_threadgroup_memory=4096,
            max_buffer_length=65536,
            recommended_working_set=9,
            families=("Apple5", "Apple6", "Apple7", "Apple8", "Metal3"),
            os_version=(14, 3),
        )
        assert device.name == "Software Metal on Python (limits of Apple8)" == device.label
        device.buffer(65536).close()
        device.buffer(1).close()
        for nbytes in (0, 65537):
            with pytest.raises(mtl.MetalError, match=f"expected 1 to 65536 bytes.*found {nbytes}"):
                device.buffer(nbytes)
        gc.collect()  # an object that was not made goes without a word
        assert device.buffers_made == 2


def test_views_of_a_buffer(device: mtl.Device) -> None:
    with device.from_numpy(np.arange(10, dtype=np.uint16), "ten") as ten:
        assert ten.numpy().tolist()[:4] == [0, 0, 1, 0]
        assert ten.numpy(np.uint16, offset=4).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
        assert ten.numpy(np.uint32, offset=2).tolist()[0] == 1 | 2 << 16
        assert ten.numpy(np.uint16, (2, 2), 12).tolist() == [[6, 7], [8, 9]]
        for shape, offset in (((11,), 0), ((10,), 2), ((1,), 20), ((1,), -2)):
            with pytest.raises(mtl.MetalError, match="'ten': expected a view inside its 20 bytes"):
                ten.numpy(np.uint16, shape, offset)
        view = ten.numpy(np.uint16)
    assert view.tolist() == list(range(10))  # it keeps the memory
    assert ten.closed
    ten.close()


def test_wrapped_memory_is_whole_pages(device: mtl.Device) -> None:
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as pages:
        whole = np.frombuffer(pages, np.uint8)
        for nbytes, length in ((1, 1), (mmap.PAGESIZE, 1), (mmap.PAGESIZE + 1, 2)):
            with device.wrap(whole[:nbytes], "part") as part:
                assert part.nbytes == nbytes
                found = device.objc.runtime.object(part.handle)  # type: ignore[attr-defined]
                assert found.nbytes == length * mmap.PAGESIZE
        for wrong in (whole[1:], whole[::2]):
            with pytest.raises(mtl.MetalError, match="'part': expected contiguous memory"):
                device.wrap(wrong, "part")
        del whole, wrong, part, found


# ---- libraries and pipelines


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bool"), (0, "uint32"), (2**32 - 1, "uint32"), (1.5, "float32"), (np.int8(-1), "int8"),
        (np.float16(2), "float16"), (np.uint64(2**63), "uint64"),
    ],
)  # fmt: skip
def test_constants_have_a_type(value: object, kind: str) -> None:
    made = typed_constant(value)  # type: ignore[arg-type]
    assert (made.dtype.name, made.item()) == (kind, value)


def test_constants_that_have_none() -> None:
    for number in (-1, 2**32):
        with pytest.raises(mtl.MetalError, match=rf"found {number}; say np.int32\({number}\)"):
            typed_constant(number)
    with pytest.raises(mtl.MetalError, match="a scalar type of MSL, found float64"):
        typed_constant(np.float64(1))


@pytest.mark.parametrize(
    ("system", "source", "language", "modes"),
    [
        ((13, 0), "", 3 << 16, (None, None)), ((13, 9), "", 3 << 16, (None, None)),
        ((14, 0), "", 3 << 16 | 1, (None, None)), ((15, 0), "", 3 << 16 | 2, (0, 1)),
        ((26, 0), "", 3 << 16 | 2, (0, 1)), ((26, 0), "// <metal_tensor>\n", 4 << 16, (0, 1)),
        ((15, 9), "// <metal_tensor>\n", 3 << 16 | 2, (0, 1)),
    ],
)  # fmt: skip
def test_how_each_system_compiles(
    system: tuple[int, int], source: str, language: int, modes: tuple[int | None, int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    seen: list[object] = []
    made = objc_double.metal_library.MTLLibrary.__init__

    def watch(self: object, runtime: object, compiled: object, options: object) -> None:
        seen.append(options)
        made(self, runtime, compiled, options)  # type: ignore[arg-type]

    monkeypatch.setattr(objc_double.metal_library.MTLLibrary, "__init__", watch)
    with opened(Machine(os_version=system)) as device:
        device.library_from_source(source + SOURCE)
    (options,) = seen
    assert options.language == language  # type: ignore[attr-defined]
    assert (options.math_mode, options.math_functions) == modes  # type: ignore[attr-defined]
    assert options.fast_math is False  # type: ignore[attr-defined]


def test_libraries_and_pipelines_are_kept_by_what_they_are_of(device: mtl.Device) -> None:
    library = device.library_from_source(SOURCE)
    assert library.label == "program_source" and device.library_from_source(SOURCE) is library
    assert device.library_from_source(SOURCE, "other") is not library
    assert library.kernel_names == ["fault", "geometry", "scale", "tile", "vector_add"]
    one = library.pipeline("scale", {"FACTOR": 1.0})
    assert library.pipeline("scale", {"FACTOR": 1.0}) is one
    assert library.pipeline("scale", {"FACTOR": np.float32(1)}) is not one
    assert library.pipeline("scale", {"FACTOR": 1.0}, indirect=True) is not one
    with pytest.raises(mtl.MetalError, match="program_source: no kernel 'scale'.*is float.*uint"):
        library.pipeline("scale", {"FACTOR": 1})
    library.close()
    assert one.closed


def test_what_a_pipeline_can_take() -> None:
    with opened(Machine(max_pipeline_threads=512, max_threadgroup_memory=2048)) as device:
        tile = device.library_from_source(SOURCE).pipeline("tile")
        assert (tile.max_threads, tile.simd_width, tile.static_threadgroup_memory) == (512, 32, 1024)
        tile.check((512, 1, 1), [1024])
        tile.check((2, 16, 16), [512, 512])
        for threads in ((513, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (8, 8, 9), (1, 513, 1)):
            with pytest.raises(mtl.MetalError, match="'tile': expected 1 to 512 threads"):
                tile.check(threads)
        for memory in ([1040], [512, 528], [8], [16, 24]):
            with pytest.raises(mtl.MetalError, match="multiples of 16 bytes .* up to 2048 with"):
                tile.check((1, 1, 1), memory)


def test_splices_name_every_line(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("#pragma once\n#include \"b.h\"\nfrom a\n\n\n")
    (tmp_path / "b.h").write_text("from b")
    (tmp_path / "m.metal").write_text('one\n  # include "a.h" // again\n#include "b.h"\n#include <x>\nend\n')
    assert splice(tmp_path / "m.metal").splitlines() == [
        '#line 1 "m.metal"', "one",
        '#line 1 "a.h"', "", '#line 1 "b.h"', "from b", '#line 3 "a.h"', "from a",
        '#line 3 "m.metal"', '#line 4 "m.metal"', "#include <x>", "end",
    ]  # fmt: skip
    (tmp_path / "s.metal").write_text('#include "common.h"\n')
    assert splice(tmp_path / "s.metal").count("\n") > 3 and (SHADERS / "common.h").is_file()
    assert PRELUDE.startswith("#if __METAL_VERSION__ >= 320\n#pragma METAL fp contract(off)\n#endif")


# ---- command buffers


def test_labels_are_metal_s_too(device: mtl.Device) -> None:
    runtime = device.objc.runtime
    with device.buffer(16, "a"), device.commands("work") as commands:
        labels = [found.label for found in runtime.live()]  # type: ignore[attr-defined]
        assert {"a", "work"} <= set(labels) and commands.label == "work"
    with device.buffer(16) as plain, device.commands() as commands:
        for each in (plain, commands):
            assert each.label == runtime.object(each.handle).label == ""  # type: ignore[attr-defined]


def test_what_a_command_buffer_takes_when(device: mtl.Device) -> None:
    out = device.buffer(64, "out")
    with device.commands("work") as commands:
        with pytest.raises(mtl.MetalError, match="'work': commit it before you wait"):
            commands.wait()
        with commands.encoder():
            for wish, what in (("be committed", commands.commit), ("take an encoder", commands.encoder().__enter__)):
                with pytest.raises(mtl.MetalError, match=f"is still open in an encoder; it cannot {wish}"):
                    what()
        commands.commit()
        with pytest.raises(mtl.MetalError, match="is committed already; it cannot be committed"):
            commands.commit()
        with pytest.raises(mtl.MetalError, match="is committed already; it cannot take an encoder"):
            commands.encoder().__enter__()
        commands.wait()
        commands.wait()
    assert commands.closed and not out.in_flight
    with pytest.raises(ZeroDivisionError), device.commands() as commands:
        raise ZeroDivisionError
    assert not commands.committed and commands.closed


def test_a_buffer_in_flight_is_not_looked_at_or_closed(device: mtl.Device) -> None:
    geometry = device.library_from_source(SOURCE).pipeline("geometry")
    out = device.buffer(64, "out")
    first, second = device.commands(), device.commands()
    for commands in (first, second):
        with commands.encoder() as encoder:
            encoder.dispatch(geometry, (3, 1, 1), (2, 1, 1), [out])
        commands.commit()
    for look in (out.numpy, out.close):
        with pytest.raises(mtl.MetalError, match="'out' is in use by 2 committed command"):
            look()
    first.wait()
    with pytest.raises(mtl.MetalError, match="'out' is in use by 1 committed command"):
        out.numpy()
    second.wait()
    assert out.numpy(np.uint32)[0] == 6
    out.close()


def test_constants_up_to_4096_bytes(device: mtl.Device) -> None:
    seen: list[Run] = []

    def run(runs: Sequence[Run]) -> list[str]:
        seen.extend(runs)
        return []

    device.objc.runtime.engine.run = run  # type: ignore[attr-defined]
    geometry = device.library_from_source(SOURCE).pipeline("geometry")
    with device.commands() as commands, commands.encoder() as encoder:
        encoder.dispatch(geometry, (1, 1, 1), (1, 1, 1), [], bytes(4096))
        with pytest.raises(mtl.MetalError, match="expected up to 4096 bytes of constants, found 4097"):
            encoder.dispatch(geometry, (1, 1, 1), (1, 1, 1), [], bytes(4097))
    assert [run.buffers[0][1] for run in seen] == [4096] and commands.dispatches == 1


def test_gpu_seconds_are_from_start_to_end(device: mtl.Device) -> None:
    commands = device.commands()
    with commands.encoder():
        pass
    commands.commit()
    found = device.objc.runtime.object(commands.handle)  # type: ignore[attr-defined]
    run = found.run

    def at_given_times() -> None:
        run()
        found.start, found.end = 10.0, 12.5

    found.run = at_given_times
    commands.wait()
    assert commands.gpu_seconds == 2.5


# ---- replay


@pytest.mark.parametrize("make", [IndirectCommands, Recording])
def test_a_replay_counts_and_orders(device: mtl.Device, make: type) -> None:
    """a = a + a twice with a barrier between, then once more behind none in another list."""
    add = device.library_from_source(SOURCE).pipeline("vector_add", indirect=True)
    with device.from_numpy(np.ones(16, np.float32)) as a, device.from_numpy(np.uint32([16])) as n:
        program = make(device, 2, 4) if make is IndirectCommands else make(device)
        bound = [(a, 0), (a, 0), (a, 0), (n, 0)]
        for _ in range(2):
            program.record(add, (1, 1, 1), (16, 1, 1), bound)
        assert program.count == 2
        with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
            program.execute(encoder)
        assert commands.dispatches == 2 and {a, n} <= commands.buffers
        assert (a.numpy(np.float32) == 4).all()
        loose = make(device, 2, 4) if make is IndirectCommands else make(device)
        for _ in range(2):
            loose.record(add, (1, 1, 1), (16, 1, 1), bound, barrier=False)
        failure = pytest.raises(mtl.MetalError, match="missing barrier")
        with failure, device.commands() as commands, commands.encoder(concurrent=True) as encoder:
            loose.execute(encoder)
        if make is IndirectCommands:
            with pytest.raises(mtl.MetalError, match="expected up to 2 dispatches"):
                program.record(add, (1, 1, 1), (16, 1, 1), bound)
            program.close()
            loose.close()


@pytest.mark.parametrize("system", [(15, 0), (15, 1)])
def test_residency_sets_from_macos_15_on(system: tuple[int, int]) -> None:
    with opened(Machine(os_version=system)) as device, device.buffer(16) as a:
        queue = device.objc.runtime.object(device.queue.handle)  # type: ignore[attr-defined]
        with ResidencySet(device, [a]):
            (found,) = queue.residency_sets
            assert found.allocations == {device.objc.runtime.object(a.handle)}  # type: ignore[attr-defined]
        assert queue.residency_sets == []


# ---- figures


def test_the_profile_s_table(capsys: pytest.CaptureFixture[str]) -> None:
    profile = Profile()
    for seconds in (9.0, 2e-6, 1e-6):
        profile.add("cheap", Work(), 1, seconds)
    for seconds in (4e-6, 3e-6):
        profile.add("dear", Work(2, "3 x 4", 7000), 8, seconds)
    profile.add("none", Work(), 1, 0.0)
    profile.print()
    _, *rows = (line.split() for line in capsys.readouterr().err.splitlines())
    assert rows == [
        ["dear", "2", "3", "x", "4", "2", "3.5", "2.0", "8"],
        ["cheap", "0", "3", "2.0", "0.0", "1"],
        ["none", "0", "1", "0.0", "0.0", "1"],
    ]


def test_the_timing_s_line(capsys: pytest.CaptureFixture[str]) -> None:
    timing = Timing()
    timing.print()
    timing.seconds = [(1e-3, 2e-3), (3e-3, 8e-3)]
    timing.print()
    assert capsys.readouterr().err.splitlines() == [
        "0 command buffers: recording 0.000 ms, GPU 0.000 ms each",
        "2 command buffers: recording 2.000 ms, GPU 5.000 ms each",
    ]

"""The same kernels on machines that these tests do not run on: equal to this machine, bit for bit.

A kernel, the engine and harness.cpp make one program, which qemu or wine runs.
"""

import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tinyrvllm.soft.cpu import build, compiler, linker
from tinyrvllm.soft.cpu.compiler import Compiler
from tinyrvllm.soft.cpu.execute import Dispatch, run

from .launch import library, u32

f16, f32 = np.float16, np.float32
random = np.random.default_rng(0)


@functools.cache
def _engine(target: str) -> Path:
    """A folder for what all programs of one machine share."""
    return Path(tempfile.mkdtemp(prefix=f"tinyrvllm-{target}-"))


@dataclass(frozen=True, slots=True)
class ProgramCompiler(Compiler):
    """Links kernels to programs instead of libraries."""

    def link(self, objects: Sequence[Path], output: Path) -> None:
        assert self.zig is not None
        folder = output.parent
        # Nothing may turn the harness's memcpy into a call of memcpy.
        flags = ["-fno-builtin", f"-DTWO_SIDES={int(len(objects) == 2)}"]
        self.compile(Path(__file__).with_name("harness.cpp"), folder / "harness.o", flags)
        engine = _engine(self.target or "") / "engine.o"
        if not engine.exists():
            self.compile(compiler.HERE / "engine.cpp", engine, [])
        names = [str(p) for p in (*objects, engine, folder / "harness.o")]
        if self.system == "windows":
            names += ["/entry:start", "/subsystem:console", f"/out:{output}"]
            dlls = dict(linker.WINDOWS_DLLS)
            dlls["kernel32.dll"] += " GetStdHandle ReadFile WriteFile VirtualAlloc ExitProcess"
            names += linker.windows_imports(self.zig, folder, dlls)
            command = [self.zig, "lld-link", *names]
        else:
            command = [self.zig, "ld.lld", "-static", "-e", "start", *names, "-o", str(output)]
        subprocess.run(command, check=True)


@dataclass(frozen=True)
class Machine:
    target: str
    system: str
    runner: str  # the program that runs the target's programs


MACHINES = [
    pytest.param(Machine("aarch64-linux-gnu", "linux", "qemu-aarch64"), id="linux-aarch64"),
    pytest.param(
        Machine(compiler.WINDOWS_TARGET, "windows", "wine"),
        id="windows-x86-64",
        marks=pytest.mark.long,  # wine takes seconds to start
    ),
]


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    chosen: Machine = request.param
    if not shutil.which(chosen.runner):
        pytest.skip(f"no {chosen.runner} here to run programs for {chosen.target}")
    here = compiler.find()
    if here.zig is None:
        pytest.skip("no zig here to link programs for other machines")
    cross = ProgramCompiler(here.clang, here.version, here.zig, chosen.target, chosen.system)
    monkeypatch.setattr(compiler, "find", lambda: cross)
    return chosen


def normal(*shape: int, dtype: type = f32) -> np.ndarray:
    return random.standard_normal(shape).astype(dtype)


def cases() -> dict[str, tuple[str, str, list[np.ndarray], tuple[int, int], int, int]]:
    """Name -> file, kernel, buffers, grid, threads of a threadgroup, its memory's bytes."""
    x, w = normal(33, 96, dtype=f16), normal(66, 96, dtype=f16)
    halves = random.integers(0, 0x7C00, (64, 2)).astype(np.uint16).view(f16)
    blocks = np.zeros((9, 3), [("d", f16), ("q", np.int8, 32)])
    blocks["d"], blocks["q"] = 0.01, random.integers(-127, 128, (9, 3, 32))
    q8 = [blocks, normal(96), np.zeros(9, f32), u32(3), u32(9)]
    norm = [x, normal(96), np.zeros((33, 96), f16), u32(96), np.array([1e-5], f32)]
    gemm = [x, w, np.zeros((33, 66), f32), u32(33, 66, 96, 0)]
    split = [x[:16].copy(), w[:64].copy(), np.zeros((16, 64), f32), u32(16, 64, 96, 0)]
    return {
        "plain loop": ("elementwise", "positions", [np.zeros((105, 8), np.uint32)], (105, 1), 32, 0),
        "barriers": ("reductions", "rmsnorm", norm, (33 * 80, 1), 80, 0),
        "shuffles": ("reductions", "argmax", [normal(500), u32(0), u32(500)], (96, 1), 96, 0),
        "simd_sum": ("matmul", "matvec_q8_0", q8, (2 * 64, 1), 64, 0),
        "matrices": ("matmul", "gemm_half", gemm, (2 * 128, 2), 128, 0),
        "transposed": ("matmul", "ksplit_16", split, (8 * 128, 1), 128, 0),
        "half": ("language", "half_arithmetic", [halves, np.zeros((64, 4), f16)], (64, 1), 32, 0),
        "divergence": ("language", "divergence", [np.zeros((4, 32), f32)], (64, 1), 64, 0),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_equal_bits(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stem, kernel, buffers, (x, y), threads, memory = cases()[name]
    elsewhere = _run_program(machine, stem, kernel, buffers, (x, y), threads, memory)
    monkeypatch.undo()
    bound = {i: (a.ctypes.data, a.nbytes) for i, a in enumerate(buffers)}
    made = library(stem).kernel(kernel)
    run([Dispatch(made, bound, (x, y, 1), (threads, 1, 1), {0: memory})])
    for here, there in zip(buffers, elsewhere, strict=True):
        np.testing.assert_array_equal(here, np.frombuffer(there, here.dtype).reshape(here.shape))
        assert here.tobytes() == there


def _run_program(
    machine: Machine,
    stem: str,
    kernel: str,
    buffers: list[np.ndarray],
    grid: tuple[int, int],
    threads: int,
    memory: int,
) -> list[bytes]:
    whole = library(stem)._unit  # the translated source, which does not hang on the machine
    unit = whole.kernels[kernel]
    program = build.kernel(whole, unit, {}, check=False)
    groups = (-(-grid[0] // threads), grid[1], 1)
    launch = struct.pack("<12I", *grid, 1, *groups, threads, 1, 1, unit.level, len(buffers), memory)
    sent = b"".join([launch] + [struct.pack("<I", a.nbytes) + a.tobytes() for a in buffers])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.exe"
        path.write_bytes(program)
        path.chmod(0o700)
        command = [machine.runner, str(path)]
        done = subprocess.run(command, input=sent, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    parts, start = [], 0
    for a in buffers:
        parts.append(done.stdout[start : start + a.nbytes])
        start += a.nbytes
    return parts

"""python -m tinyrvllm.soft.compile and python -m tinyrvllm.soft.run, as a newcomer calls them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tinyrvllm.soft import compile as compile_command
from tinyrvllm.soft import run as run_command

from .launch import KERNELS

ADD = [str(KERNELS / "elementwise.metal"), "add", "--grid", "100", "--group", "64"]
BUFFERS = ["--buffer", "a=f32:arange:100", "--buffer", "b=f32:ones:100", "--buffer", "n=u32:100"]


def test_compile_lists_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_command.main([str(KERNELS / "reductions.metal")]) == 0
    text = capsys.readouterr().out
    assert "rmsnorm  (reductions.metal:14)" in text
    assert "at most 1024 threads in a threadgroup, 128 bytes of static threadgroup memory" in text
    assert "threadgroup(0)" in text and "device const half* x  [read]" in text


def test_compile_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_command.main([str(KERNELS / "elementwise.metal"), "--json"]) == 0
    add, scale, *_ = json.loads(capsys.readouterr().out)["kernels"]
    assert add["params"][2] == {
        "name": "sum", "kind": "buffer", "index": 2, "access": "read_write",
        "type": "device float*", "function_constant": None, "holds_addresses": False,
    }  # fmt: skip
    assert scale["function_constants"] == {
        "0": {"name": "factor", "type": "float", "required": True},
        "1": {"name": "negate", "type": "bool", "required": False},
    }


def test_compile_shows_mistakes_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.metal"
    path.write_text("kernel void f(device float *a [[buffer(0)]])\n{\n    a[0] = b;\n}\n")
    assert compile_command.main([str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("wrong.metal:3:12: error: use of undeclared identifier 'b'\n")
    assert "    a[0] = b;\n           ^" in error


def test_a_missing_file_is_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_command.main(["nowhere.metal"]) == 2
    assert "cannot read nowhere.metal: No such file" in capsys.readouterr().err


def test_run_prints_buffers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command.main([*ADD, *BUFFERS, "--buffer", "sum=f32:zeros:100"]) == 0
    assert "sum = 1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 ... (100 in all)" in capsys.readouterr().out


def test_run_saves_and_reads_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "in.npy", np.full(100, 2.5, np.float32))
    buffers = [*BUFFERS, "--buffer", f"sum={tmp_path / 'in.npy'}", "--save", str(tmp_path / "out")]
    assert run_command.main([*ADD, *buffers, "--json"]) == 0
    expected = np.arange(100) + 1
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "sum.npy"), expected)
    assert json.loads(capsys.readouterr().out)["buffers"]["sum"] == expected.tolist()


def test_run_check_finds_what_is_out_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command.main([*ADD, *BUFFERS, "--buffer", "sum=f32:zeros:90", "--check"]) == 1
    assert "sum[i] = a[i] + b[i];" in capsys.readouterr().err


def test_run_follows_one_thread(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        str(KERNELS / "reductions.metal"), "argmax", "--grid", "64", "--group", "64",
        "--buffer", "x=f32:1,5,2,5", "--buffer", "out=u32:7", "--buffer", "n=u32:4",
        "--follow", "thread=0",
    ]  # fmt: skip
    assert run_command.main(arguments) == 0
    text = capsys.readouterr().out
    assert "reductions.metal:72: float best = -INFINITY;  -> best = -inf\n" in text
    assert "{ best = x[i]; at = i; }  -> best = 1  at = 0\n" in text  # thread 0 has x[0] alone
    assert "{ best = value; at = index; }  -> best = 5  at = 1\n" in text  # and lane 1's in the end
    assert text.index("if (tid.x != 0) return;") < text.index("out[0] = at;  -> out[0] = 1\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([*ADD, *BUFFERS], "buffer(2) ('sum'), and nothing is bound there"),
        ([*ADD, "--buffer", "z=f32:zeros:4"], "has no buffer argument 'z'; it has: a, b, sum, n"),
        ([*ADD, "--buffer", "a=f33:zeros:4"], "expected NAME=TYPE:FILL:COUNT"),
        ([ADD[0], "sub", *ADD[2:]], "no kernel 'sub'; the file has: add, scale"),
        ([*ADD, *BUFFERS, "--buffer", "sum=f32:zeros:100", "--follow", "thread=100"], "no thread (100"),
        ([*ADD[:2], "--grid", "9", "--group", "2048", *BUFFERS], "runs with 1 to 1024 threads"),
    ],
)
def test_run_says_what_is_wrong_with_a_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command.main(arguments) == 2
    assert message in capsys.readouterr().err

"""Damaged files: whatever the damage, opening one ends in a model or in a GGUFError, and cheaply.

The damage is done to the header, where every byte counts; a byte changed in the blocks of a tensor
is another valid model.
"""

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiny_models import ARCHITECTURES, write_model
from tinyrvllm.model import load
from tinyrvllm.model.gguf_file import GGUFError, GGUFFile
from tinyrvllm.model.gguf_header import MAX_HEADER_BYTES

# Numbers that a check may have forgotten: signs, wrap-arounds, limits.
NASTY = [0, 1, 2, 3, 31, 33, 255, 1 << 16, 1 << 20, (1 << 24) + 1, (1 << 31) - 1, 1 << 31]
NASTY += [(1 << 32) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1]
FEW = settings(
    max_examples=60,
    deadline=None,  # a busy machine is not a slow parser
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
MANY = settings(FEW, max_examples=1_000)


def small_model(path: Path, architecture: str) -> bytes:
    """A valid file of few bytes: with a vocabulary of seven tokens, most of it is header."""
    keys = {
        "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>", "<unk>", "a", "b", "ab"],
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 1, 1, 1],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.chat_template": None,
        "general.alignment": 32,
    }
    write_model(
        path,
        architecture,
        type=GGMLQuantizationType.Q8_0,
        ff=32,
        keys=keys,
        tensors={"token_embd.weight": np.ones((7, 64))},
    )
    return path.read_bytes()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def valid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return small_model(tmp_path_factory.mktemp("valid") / "model.gguf", request.param)


@pytest.fixture
def open_damaged(tmp_path: Path) -> Callable[[bytes], bool]:
    """Open these bytes as far as a model goes; whether they were one. Checks the memory it took."""
    path = tmp_path / "damaged.gguf"

    def is_model(data: bytes) -> bool:
        path.write_bytes(data)
        tracemalloc.start()
        try:
            model = load(path)
            for name in model.weights.shapes:
                model.weights.raw(name)
            model.config.rope_inv_freq(model.config.num_layers - 1)
            model.tokenizer.decode(model.tokenizer.encode("a b"))
            model.file.close()
        except GGUFError as error:
            assert "damaged.gguf" in str(error)
            assert len(str(error)) < 1000
            return False
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 2_000_000, "memory for what the header claims"
        return True

    return is_model


def header_size(data: bytes) -> int:
    """Where the tensors' data begin, roughly: after the last tensor's name."""
    return data.rindex(b".weight") + 64


def test_the_valid_file_is_a_model(valid: bytes, open_damaged: Callable[[bytes], bool]) -> None:
    assert open_damaged(valid)


def check_bytes_changed(valid: bytes, is_model: Callable[[bytes], bool], data: st.DataObject) -> None:
    damaged = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, header_size(valid) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    is_model(bytes(damaged))


def check_number_replaced(
    valid: bytes, is_model: Callable[[bytes], bool], data: st.DataObject
) -> None:
    number = data.draw(st.sampled_from(NASTY))
    size = 4 if number < 1 << 32 and data.draw(st.booleans()) else 8
    position = data.draw(st.integers(4, header_size(valid) - size))
    number_bytes = struct.pack("<I" if size == 4 else "<Q", number)
    is_model(valid[:position] + number_bytes + valid[position + size :])


def check_piece_moved(valid: bytes, is_model: Callable[[bytes], bool], data: st.DataObject) -> None:
    """A piece of the header again, instead of another, or gone: duplicates and shifts."""
    end = header_size(valid)
    a, b = sorted(data.draw(st.tuples(st.integers(24, end), st.integers(24, end))))
    c, d = sorted(data.draw(st.tuples(st.integers(24, end), st.integers(24, end))))
    is_model(valid[:a] + valid[c:d] + valid[b:])


def check_cut_short(valid: bytes, is_model: Callable[[bytes], bool], data: st.DataObject) -> None:
    assert not is_model(valid[: data.draw(st.integers(0, len(valid) - 33))])


def check_anything(valid: bytes, is_model: Callable[[bytes], bool], data: st.DataObject) -> None:
    is_model(valid[:24] + data.draw(st.binary(max_size=200)))


CHECKS = (
    check_bytes_changed,
    check_number_replaced,
    check_piece_moved,
    check_cut_short,
    check_anything,
)


@pytest.mark.filterwarnings("ignore:damaged.gguf does not name its pre-tokenizer")
@pytest.mark.parametrize("check", CHECKS)
def test_damage_ends_in_a_model_or_a_gguf_error(valid, open_damaged, check) -> None:
    FEW(given(st.data())(lambda data: check(valid, open_damaged, data)))()


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
def test_much_damage_ends_in_a_model_or_a_gguf_error(valid, open_damaged, check) -> None:
    MANY(given(st.data())(lambda data: check(valid, open_damaged, data)))()


@pytest.mark.long
def test_every_byte_of_the_header_set_to_every_nasty_value(valid, open_damaged) -> None:
    for position in range(header_size(valid)):
        for value in (0, 0x7F, 0xFF, valid[position] ^ 1):
            open_damaged(valid[:position] + bytes([value]) + valid[position + 1 :])


def test_damage_in_front_of_much_data_costs_little_more(tmp_path: Path) -> None:
    """Claims that a small file refutes by its size may hold in one of 256 MB, a hole here."""
    path = tmp_path / "damaged.gguf"
    valid = small_model(path, "gemma3")
    for number in (1 << 16, 1 << 20, (1 << 24) - 1, 1 << 25):
        for position in range(4, 1000, 13):
            number_bytes = struct.pack("<Q", number)
            path.write_bytes(valid[:position] + number_bytes + valid[position + 8 :])
            os.truncate(path, 1 << 28)
            tracemalloc.start()
            try:
                GGUFFile(path).close()
            except GGUFError as error:
                assert len(str(error)) < 1000
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 2 * MAX_HEADER_BYTES  # the bytes of the header, and their text

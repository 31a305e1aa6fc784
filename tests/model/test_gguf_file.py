"""Headers of every kind of wrongness, written byte by byte; valid files, written by `gguf`."""

import math
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGMLQuantizationType

from tests.tiny_models import write_gguf, write_model
from tinyrvllm.model.gguf_file import GGUFError, GGUFFile, StringArray
from tinyrvllm.model.gguf_header import MAX_ELEMENTS, MAX_HEADER_BYTES, MAX_KEYS, MAX_TENSORS

ARRAY, STRING = GGUFValueType.ARRAY, GGUFValueType.STRING
HUGE = (1 << 64) - 1


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + data


def tensor(name: str, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(
        f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset
    )


def gguf(
    *parts: bytes,
    keys: int = 0,
    tensors: int = 0,
    data: bytes = b"",
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    """A file: header, parts, padding to 32, data."""
    header = magic + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)
    return header + bytes(-len(header) % 32) + data


ALIGNMENT = "general.alignment"
WRONG = {
    "empty": (b"", "empty"),
    "too short": (b"GG", "the magic"),
    "not a GGUF file": (gguf(magic=b"PK\3\4"), "not a GGUF file"),
    "version 1": (gguf(version=1), "version 1; versions 2 and 3 are supported"),
    "version 0": (gguf(version=0), "version 0"),
    "version 4": (gguf(version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "key count": (gguf(keys=HUGE), f"{HUGE} keys"),
    "key count, just over": (gguf(keys=MAX_KEYS + 1), f"{MAX_KEYS + 1} keys"),
    "tensor count": (gguf(tensors=1 << 63), f"{1 << 63} tensors"),
    "tensor count, just over": (gguf(tensors=MAX_TENSORS + 1), f"{MAX_TENSORS + 1} tensors"),
    "more keys than there are": (gguf(key("a", 0, b"1"), keys=9), "key 1"),
    "key length": (gguf(text("a", HUGE), keys=1), "the name of key 0"),
    "key length to the end of the file": (gguf(text("a", 99), keys=1), "the name of key 0"),
    "key is not UTF-8": (gguf(key(b"\xff\xfe", 0, b"1"), keys=1), "name of key 0 is not UTF-8"),
    "key is empty": (gguf(key("", 0, b"1"), keys=1), "key 0 is empty"),
    "key twice": (gguf(key("a", 0, b"1") * 2, keys=2), "duplicate: 'a'"),
    "value type": (gguf(key("a", 13, b""), keys=1), "'a' has the unknown value type 13"),
    "value type, huge": (gguf(key("a", 0xFFFFFFFF, b""), keys=1), "'a'"),
    "string length": (gguf(key("a", STRING, text("b", HUGE)), keys=1), "the key 'a'"),
    "string is not UTF-8": (gguf(key("a", STRING, text(b"\x80")), keys=1), "'a' is not UTF-8"),
    "array length": (gguf(key("a", ARRAY, array(4, HUGE)), keys=1), "the key 'a'"),
    "array length that wraps": (gguf(key("a", ARRAY, array(4, 1 << 62)), keys=1), "the key 'a'"),
    "array a little too long": (gguf(key("a", ARRAY, array(4, 99)), keys=1), "'a' of 99 elements"),
    "array of strings": (gguf(key("a", ARRAY, array(STRING, HUGE)), keys=1), "the key 'a'"),
    "array of strings, just over": (
        gguf(key("a", ARRAY, array(STRING, MAX_ELEMENTS + 1)), keys=1),
        f"claims {MAX_ELEMENTS + 1} elements",
    ),
    "array of strings past the end": (
        gguf(key("a", ARRAY, array(STRING, 2, text("b"))), keys=1),
        "string 1 of key 'a'",
    ),
    "string of an array past the end": (
        gguf(key("a", ARRAY, array(STRING, 2, text("b") + text("c", HUGE))), keys=1),
        "the key 'a'",
    ),
    "arrays of too many strings together": (
        gguf(
            key("a", ARRAY, array(STRING, 1, text("b"))),
            key("c", ARRAY, array(STRING, MAX_ELEMENTS)),
            keys=2,
        ),
        "the key 'c'",
    ),
    "array of arrays": (
        gguf(key("a", ARRAY, array(ARRAY, 1, array(ARRAY, 1, array(0, 1, b"1")))), keys=1),
        "'a' is an array of arrays",
    ),
    "array of nothing known": (gguf(key("a", ARRAY, array(77, 1)), keys=1), "'a'"),
    "alignment 0": (gguf(key(ALIGNMENT, 4, struct.pack("<I", 0)), keys=1), ALIGNMENT),
    "alignment 48": (gguf(key(ALIGNMENT, 4, struct.pack("<I", 48)), keys=1), ALIGNMENT),
    "alignment 2 GB": (gguf(key(ALIGNMENT, 4, struct.pack("<I", 1 << 31)), keys=1), ALIGNMENT),
    "alignment 2^63": (gguf(key(ALIGNMENT, 10, struct.pack("<Q", 1 << 63)), keys=1), ALIGNMENT),
    "alignment -32": (gguf(key(ALIGNMENT, 5, struct.pack("<i", -32)), keys=1), ALIGNMENT),
    "alignment 32.0": (gguf(key(ALIGNMENT, 6, struct.pack("<f", 32)), keys=1), "must be of type"),
    "alignment is a bool": (gguf(key(ALIGNMENT, 7, b"\1"), keys=1), "must be of type int"),
    "alignment is text": (gguf(key(ALIGNMENT, STRING, text("32")), keys=1), "must be of type int"),
    "tensor name": (gguf(text("t", HUGE), tensors=1), "the name of tensor 0"),
    "tensor name of 65 bytes": (gguf(tensor("t" * 65, [1]), tensors=1), "claims 65 bytes"),
    "tensor twice": (
        gguf(tensor("t", [8]) + tensor("t", [8], offset=32), tensors=2, data=bytes(64)),
        "two tensors are named 't'",
    ),
    "no dimensions": (gguf(tensor("t", []), tensors=1), "'t' has 0 dimensions"),
    "five dimensions": (gguf(tensor("t", [1] * 5), tensors=1), "'t' has 5 dimensions"),
    "2^32 - 1 dimensions": (
        gguf(text("t") + struct.pack("<I", 0xFFFFFFFF), tensors=1),
        "'t' has 4294967295 dimensions",
    ),
    "a dimension of 0": (gguf(tensor("t", [0]), tensors=1), "tensor 't'"),
    "a dimension of -1": (gguf(tensor("t", [HUGE]), tensors=1, data=bytes(64)), "tensor 't'"),
    "a product that wraps to 0": (
        gguf(tensor("t", [1 << 32, 1 << 32]), tensors=1, data=bytes(64)),
        "tensor 't'",
    ),
    "a size that wraps to 4": (
        gguf(tensor("t", [(1 << 62) + 1]), tensors=1, data=bytes(64)),
        "tensor 't'",
    ),
    "row is not whole blocks": (
        gguf(tensor("t", [33, 32], kind=8), tensors=1, data=bytes(4096)),
        "a multiple of Q8_0's block of 32",
    ),
    "unknown tensor type": (gguf(tensor("t", [1], kind=4), tensors=1), "unknown type 4; known are"),
    "tensor type, huge": (gguf(tensor("t", [1], kind=0xFFFFFFFF), tensors=1), "tensor 't'"),
    "offset past the end": (
        gguf(tensor("t", [8], offset=64), tensors=1, data=bytes(64)),
        "'t' ends at byte",
    ),
    "offset 2^64 - 32": (
        gguf(tensor("t", [8], offset=HUGE - 31), tensors=1, data=bytes(64)),
        "tensor 't'",
    ),
    "offset not aligned": (
        gguf(tensor("t", [8], offset=4), tensors=1, data=bytes(64)),
        "not a multiple of the alignment 32",
    ),
    "tensors overlap": (
        gguf(tensor("t", [16]) + tensor("u", [8], offset=32), tensors=2, data=bytes(64)),
        "'t' and 'u' overlap",
    ),
    "tensors at the same place": (
        gguf(tensor("t", [8]) + tensor("u", [8]), tensors=2, data=bytes(64)),
        "overlap",
    ),
    "data cut short": (gguf(tensor("t", [16]), tensors=1, data=bytes(63)), "was the download cut"),
}


@pytest.mark.parametrize(("data", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_headers_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message in str(caught.value)
    assert "wrong.gguf" in str(caught.value)
    assert peak < 100_000, "memory for what the header claims"


def test_a_claimed_size_within_a_large_file_costs_nothing(tmp_path: Path) -> None:
    """The bytes are there, a hole of 256 MB; but nothing in a header is that large."""
    path = tmp_path / "sparse.gguf"
    for value in (
        key("a", STRING, text("", 1 << 27)),
        key("a", ARRAY, array(0, 1 << 27)),
        key("a", ARRAY, array(STRING, 1 << 20, text("", 1 << 27))),
    ):
        path.write_bytes(gguf(value, keys=1))
        os.truncate(path, 1 << 28)
        tracemalloc.start()
        with pytest.raises(GGUFError, match="'a'"):
            GGUFFile(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000


def test_the_data_may_begin_past_the_header_limit(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(gguf(tensor("t", [MAX_HEADER_BYTES], kind=24), tensors=1))
    os.truncate(path, 2 * MAX_HEADER_BYTES)
    with GGUFFile(path) as file:
        assert file.data("t").shape == (1, MAX_HEADER_BYTES)


def test_every_truncation_of_a_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    write_gguf(
        path,
        "llama",
        {"a": 1, "b": "text", "c": ["x", "yz"], "d": [1, 2], "e": True, "f": 1.5},
        {"t": (np.ones((4, 8), np.float32), GGMLQuantizationType.F32)},
    )
    whole = path.read_bytes()
    GGUFFile(path).close()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(GGUFError):
            GGUFFile(path)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"none\.gguf cannot be opened"):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match=tmp_path.name):
        GGUFFile(tmp_path)
    with pytest.raises(GGUFError, match="cannot be opened"):
        GGUFFile(str(tmp_path / "zero\0byte"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="pipe is not a file"):
        GGUFFile(tmp_path / "pipe")


def test_every_value_type_reads_as_it_was_written(tmp_path: Path) -> None:
    values: dict[GGUFValueType, list] = {
        GGUFValueType.UINT8: [0, 255],
        GGUFValueType.INT8: [-128, 127],
        GGUFValueType.UINT16: [0, 65535],
        GGUFValueType.INT16: [-32768, 32767],
        GGUFValueType.UINT32: [0, (1 << 32) - 1],
        GGUFValueType.INT32: [-(1 << 31), (1 << 31) - 1],
        GGUFValueType.UINT64: [0, HUGE],
        GGUFValueType.INT64: [-(1 << 63), (1 << 63) - 1],
        GGUFValueType.FLOAT32: [0.5, -math.inf],
        GGUFValueType.FLOAT64: [0.1, 1e300],
        GGUFValueType.BOOL: [False, True],
        GGUFValueType.STRING: ["", "Ġé🙂\0"],
    }
    writer = GGUFWriter(tmp_path / "values.gguf", "llama")
    for kind, samples in values.items():
        for index, sample in enumerate(samples):
            writer.add_key_value(f"{kind.name}.{index}", sample, kind)
        writer.add_key_value(f"{kind.name}.array", samples, ARRAY, sub_type=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "values.gguf") as file:
        for kind, samples in values.items():
            for index, sample in enumerate(samples):
                found = file.metadata[f"{kind.name}.{index}"]
                assert found == sample
                assert type(found) is type(sample)
            array_read = file.metadata[f"{kind.name}.array"]
            assert list(array_read) == samples
            assert isinstance(array_read, StringArray if kind is STRING else np.ndarray)


def test_reads_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "gemma3", type=GGMLQuantizationType.Q8_0)
    theirs = GGUFReader(path)
    with GGUFFile(path) as ours:
        assert [t.name for t in theirs.tensors] == list(ours.tensors)
        for tensor_read in theirs.tensors:
            info = ours.tensors[tensor_read.name]
            assert info.shape == tuple(reversed(tensor_read.shape.tolist()))
            assert (info.type, info.offset, info.nbytes) == (
                tensor_read.tensor_type,
                tensor_read.data_offset,
                tensor_read.n_bytes,
            )
            assert ours.data(info.name).tobytes() == tensor_read.data.tobytes()
        for name, field in theirs.fields.items():
            if not name.startswith("GGUF."):
                ours_value = ours.metadata[name]
                is_list = isinstance(ours_value, np.ndarray | StringArray)
                assert (list(ours_value) if is_list else ours_value) == field.contents()


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf")
    whole = bytearray(path.read_bytes())
    whole[4] = 2
    path.write_bytes(whole)
    with GGUFFile(path) as file:
        assert file.get("general.architecture", str) == "llama"


def test_an_alignment_of_the_file_s_own(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "aligned.gguf", "llama")
    writer.add_custom_alignment(4096)
    writer.add_tensor("t", np.arange(3, dtype=np.float32))
    writer.add_tensor("u", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "aligned.gguf") as file:
        assert [t.offset for t in file.tensors.values()] == [4096, 8192]
        assert file.data("u").view("<f4").tolist() == [[0, 1, 2, 3, 4]]


def test_a_string_array_is_a_sequence_and_decodes_late(tmp_path: Path) -> None:
    path = tmp_path / "strings.gguf"
    strings = array(STRING, 4, text("a") + text("") + text(b"\xff") + text("é"))
    path.write_bytes(gguf(key("a", ARRAY, strings), keys=1))
    values = GGUFFile(path).get("a", StringArray)
    assert len(values) == 4
    assert (values[0], values[1], values[-1], values[:2]) == ("a", "", "é", ["a", ""])
    with pytest.raises(IndexError):
        values[4]
    with pytest.raises(GGUFError, match=r"strings\.gguf: the key 'a' holds a string that is not"):
        list(values)


def test_get_names_the_key_the_type_and_the_find(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf")
    with GGUFFile(path) as file:
        assert file.get("llama.block_count", int) == 2
        assert file.get("no.such.key", int, 7) == 7
        with pytest.raises(GGUFError, match=r"'no\.such\.key' is missing"):
            file.get("no.such.key", int)
        with pytest.raises(GGUFError, match=r"'general\.name' must be of type int, found str"):
            file.get("general.name", int)
        with pytest.raises(GGUFError, match="must be of type int, found bool"):
            file.get("tokenizer.ggml.add_bos_token", int)
        with pytest.raises(GGUFError, match="must be of type str, found StringArray"):
            file.get("tokenizer.ggml.tokens", str, "")


def test_tensors_are_views_that_outlive_a_closed_file(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf")
    with GGUFFile(path) as file:
        data = file.data("token_embd.weight")
        assert np.shares_memory(data, file.memory)
        assert not data.flags.writeable
        before = data.copy()
    with pytest.raises(GGUFError, match="is closed"):
        file.data("token_embd.weight")
    assert (data == before).all()
    del data
    path.unlink()  # Windows refuses this while a map of the file is alive


def test_opening_reads_no_tensor(tmp_path: Path) -> None:
    """Bytes allocated while a file with 64 MB of tensors is opened."""
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf(tensor("t", [4096, 4096]), tensors=1))
    os.truncate(path, path.stat().st_size + 4 * 4096 * 4096)
    tracemalloc.start()
    with GGUFFile(path) as file:
        assert file.data("t").shape == (4096, 4 * 4096)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000

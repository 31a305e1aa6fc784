"""Random weights in the shapes of real models, read back by the `gguf` package and by us."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from tinyrvllm import TinyrvllmError, model, shapes

SHAPE = shapes.Shape("qwen2", 2, 256, 512, 4, 2, 600, 1e4, tied=False)


@pytest.mark.parametrize("kind", shapes.KINDS)
def test_weights_keep_the_scale(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    shapes.write(path, SHAPE, shapes.KINDS[kind])
    reader = gguf.GGUFReader(path)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("norm.weight"):
            assert values.min() >= 0.5
            assert values.std() > 0.1
        else:
            assert values.std() * np.sqrt(values.shape[-1]) == pytest.approx(1, rel=0.15)
            assert abs(values.mean()) < 0.2 * values.std()
    loaded = model.load(path)
    assert loaded.config.num_heads == 4
    text = "any text, é and 🎈"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text)) == text.encode()


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_every_shape_is_a_model_of_ours(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hollow.gguf"
    shapes.write(path, shapes.SHAPES[name], shapes.KINDS["q8_0"], hollow=True)
    assert model.load(path).config.num_layers == shapes.SHAPES[name].layers
    whole = sum(np.prod(dims) for _, dims in shapes.SHAPES[name].tensors())
    assert path.stat().st_size == pytest.approx(float(whole) * 34 / 32, rel=0.02)
    if hasattr(path.stat(), "st_blocks"):
        assert path.stat().st_blocks * 512 < 30e6, "holes take no room"


def test_the_file_is_written_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYRVLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(shapes.SHAPES, "tiny", SHAPE)
    path = shapes.resolve("tiny:Q8_0")
    first = path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["random-tiny-Q8_0.gguf"]
    monkeypatch.setattr(shapes, "write", None)
    assert shapes.resolve("tiny:q8_0") == path
    monkeypatch.undo()
    shapes.write(tmp_path / "again.gguf", SHAPE, shapes.KINDS["q8_0"])
    assert (tmp_path / "again.gguf").read_bytes() == first

    def interrupted(part: Path, *arguments: object) -> None:
        part.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setenv("TINYRVLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(shapes.SHAPES, "tiny", SHAPE)
    monkeypatch.setattr(shapes, "write", interrupted)
    with pytest.raises(TinyrvllmError, match="free some space"):
        shapes.resolve("tiny:f16")
    assert [file.name for file in path.parent.iterdir()] == ["random-tiny-Q8_0.gguf"]


@pytest.mark.parametrize("text", ["smollm2-360m", "gpt-5:q8_0", "smollm2-360m:q9", "smollm2-360m:q4_k"])
def test_what_there_is_not_says_what_there_is(text: str) -> None:
    with pytest.raises(TinyrvllmError, match="q8_0"):
        shapes.parse(text)

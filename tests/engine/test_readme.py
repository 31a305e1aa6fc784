"""The README's example runs."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.real_model
def test_the_example_of_the_readme(tmp_path: Path, real_model: object) -> None:
    real_model("smollm2-135m")  # type: ignore[operator]
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (block for block in blocks if "from tinyrvllm import LLM" in block)
    script = tmp_path / "example.py"
    script.write_text(example.replace('LLM("smollm2-135m")', 'LLM("smollm2-135m", device="cpu")'))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        runpy.run_path(str(script))
    assert "Paris" in shown.getvalue().splitlines()[0]
    assert "'requests_finished': 4" in shown.getvalue()

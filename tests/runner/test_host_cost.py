"""What a decoded token costs the host, in numbers that hold on every machine."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import write_model
from tinyrvllm.benches.host import time_steps
from tinyrvllm.benches.null_runtime import NullRuntime
from tinyrvllm.model import load
from tinyrvllm.mtl import Device, api, sends
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.options import Options


class Counting(NullRuntime):
    """Counts the messages that give up the interpreter's lock."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
        send = super().bind(selector, returns, arguments)
        if hasattr(send, "native"):
            return send

        def counted(*given: Any) -> Any:
            self.sent[selector] += 1
            return send(*given)

        return counted


@pytest.mark.parametrize("indirect", [False, True])
def test_three_messages_of_a_step_give_up_the_lock(tmp_path: Path, indirect: bool) -> None:
    runtime, blocks = Counting(), 4
    model = load(write_model(tmp_path / "tiny.gguf", "llama"))
    runner = MetalRunner(model, Device(runtime), blocks, options=Options(indirect=indirect))
    time_steps(runner, 2, blocks)  # records the program
    runtime.sent.clear()
    time_steps(runner, 10, blocks)
    assert runtime.sent == {"commandBuffer": 10, "commit": 10, "waitUntilCompleted": 10}


def test_quick_messages_are_in_the_table() -> None:
    assert {selector for _, selector in api.table()} >= sends.QUICK

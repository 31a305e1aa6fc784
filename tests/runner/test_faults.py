"""A runner whose device has no memory, or that Ctrl-C stops: an error says so, nothing is left."""

import contextlib
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mtl.test_faults import CountingRuntime, nothing_is_left
from tests.runner.sequences import Model
from tests.runner.test_greedy import EXACT, prompts
from tests.soft.fake_engine import scarce
from tests.tiny_models import write_model
from tinyrvllm import mtl
from tinyrvllm.mtl.library import PRELUDE, SHADERS, splice
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double.engine import CpuEngine

MODEL = Path(__file__).parent.parent / "fixtures" / "llama.gguf"


def two_steps(device: mtl.Device) -> np.ndarray:
    """Logits of a prompt and of the step after it, all that they need made on the way."""
    runner = MetalRunner(Model(MODEL), device, 16, block_size=4, options=EXACT)
    batch = prompts()
    first = runner.run(batch)
    return np.stack([first, runner.run(batch.after(first.argmax(axis=1).astype(np.int32), 4))])


def test_out_of_memory_at_each_allocation_of_a_model() -> None:
    enough = scarce(CpuEngine(), 0)
    with mtl.Device(objc_double.metal(enough)) as device:
        expected = two_steps(device)
    assert enough.count > 10
    for when in range(1, enough.count + 1):
        runtime = objc_double.metal(scarce(CpuEngine(), when))
        with mtl.Device(runtime) as device:
            with pytest.raises((mtl.MetalError, MemoryError)) as failure:
                two_steps(device)
            if isinstance(failure.value, mtl.MetalError):
                assert "Metal has no room for" in str(failure.value)
            del failure
            gc.collect()
            assert np.array_equal(two_steps(device), expected)  # once there is room
            gc.collect()
        nothing_is_left(runtime)


@pytest.mark.filterwarnings("ignore:when the device was released")  # what a message just made
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_ctrl_c_while_a_model_runs(after: bool) -> None:
    """At 12 of its messages, spread over all that are sent."""
    counting = CountingRuntime(objc_double.metal(CpuEngine()), 0, False)
    with mtl.Device(counting) as device:  # type: ignore[arg-type]
        expected = two_steps(device)
    for when in np.linspace(1, counting.sent, 12).astype(int):
        runtime = objc_double.metal(CpuEngine())
        stopped = CountingRuntime(runtime, when, after)
        with contextlib.suppress(KeyboardInterrupt), mtl.Device(stopped) as device:  # type: ignore[arg-type]
            two_steps(device)
        gc.collect()
        assert runtime.faults == [] and runtime.pools == [], f"at message {when}"
    with mtl.Device(objc_double.metal(CpuEngine())) as device:
        assert np.array_equal(two_steps(device), expected)


def test_native_code_is_only_made_of_our_shaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a model file says becomes source: what is compiled are the shaders' own texts."""
    code = 'kernel void own() {} /* */ " \n#include "/etc/passwd" '
    keys = {"general.name": code, "general.description": code, "tokenizer.chat_template": code}
    path = write_model(tmp_path / 'a".gguf', "llama", keys=keys)
    compiled: list[str] = []

    class Watched(CpuEngine):
        def compile(self, source: str) -> Any:
            compiled.append(source.partition('#line 1 "program_source"\n')[2])
            return super().compile(source)

    with mtl.Device(objc_double.metal(Watched())) as device:
        runner = MetalRunner(Model(path), device, 16, block_size=4, options=EXACT)
        runner.run(prompts())
    shaders = {PRELUDE + splice(path) for path in SHADERS.glob("*.metal")}
    assert len(compiled) > 3 and set(compiled) <= shaders

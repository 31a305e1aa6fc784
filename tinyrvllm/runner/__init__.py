"""One method, run(batch): where the engine meets a device."""

import sys
from typing import Protocol

import numpy as np

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import Model
from tinyrvllm.runner.batch import Batch

DEVICES = ("auto", "metal", "soft", "soft:check", "cuda", "cpu")


class Runner(Protocol):
    """A model on a device."""

    def run(self, batch: Batch) -> np.ndarray:
        """One step; logits float32 [len(batch.sample_rows), vocab_size]."""
        ...


def open_runner(model: Model, device: str, num_blocks: int, block_size: int) -> Runner:
    """The model on the device of that name; its KV pool has `num_blocks` of `block_size` slots.

    Raises:
        TinyrvllmError: no such device, or it cannot run a model here; never a silent fallback.
    """
    if device not in DEVICES:
        raise TinyrvllmError(f"no device {device!r}: choose one of {', '.join(DEVICES)}")
    if device == "auto":
        print("device: cpu (numpy); Metal kernels do not run whole models yet", file=sys.stderr)
    elif device == "metal" and sys.platform != "darwin":
        raise TinyrvllmError(
            f"device 'metal' needs a Mac with Apple silicon, and this is {sys.platform}: "
            "use --device cpu"
        )
    elif device != "cpu":
        raise TinyrvllmError(f"device {device!r} runs no whole models yet: use --device cpu")
    from tinyrvllm.runner.numpy import NumpyRunner

    return NumpyRunner(model, num_blocks, block_size)

"""One step of a model, run(batch): where the engine meets a device."""

import platform
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import Model
from tinyrvllm.runner.batch import Batch
from tinyrvllm.runner.options import Options

if TYPE_CHECKING:
    from tinyrvllm.runner.report import Report

DEVICES = ("auto", "metal", "soft", "soft:check", "cuda", "cpu")


class Runner(Protocol):
    """A model on a device."""

    def run(self, batch: Batch) -> np.ndarray:
        """One step; logits float32 [len(batch.sample_rows), vocab_size]."""
        ...

    def greedy(self, batch: Batch, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The likeliest token of each sampled row, then of each sequence's next steps.

        Yields (token ids, flags of batch.py), int32 [R] each. For more than one step the batch
        samples the last row of each sequence, and block tables have room for the steps' tokens.
        """
        ...

    def report(self) -> "Report | None":
        """What the last step cost; None where there is no device."""
        ...


def open_runner(
    model: Model, device: str, num_blocks: int, block_size: int, options: Options | None = None
) -> Runner:
    """The model on the device of that name; its KV pool has `num_blocks` of `block_size` slots.

    Raises:
        TinyrvllmError: no such device, or it cannot run a model here; never a silent fallback.
    """
    if device not in DEVICES:
        raise TinyrvllmError(f"no device {device!r}: choose one of {', '.join(DEVICES)}")
    if device == "auto":
        device = choose_device()
    if device == "cpu":
        if options not in (None, Options()):
            raise TinyrvllmError(
                "device 'cpu' is numpy and has no kernels to choose between: --no-fuse, "
                "--batch-invariant, --kv-type f32, --indirect and --kernel go with --device soft "
                "or metal"
            )
        from tinyrvllm.runner.numpy import NumpyRunner

        return NumpyRunner(model, num_blocks, block_size)
    if device == "cuda":
        raise TinyrvllmError("device 'cuda' is not built yet: use --device soft or cpu")
    from tinyrvllm.mtl import open_device
    from tinyrvllm.runner.metal import MetalRunner

    return MetalRunner(model, open_device(device), num_blocks, block_size, options=options)


def choose_device() -> str:
    """Metal where there is Apple silicon, else numpy; says so on standard error."""
    is_mac = sys.platform == "darwin" and platform.machine() == "arm64"
    chosen, meaning = ("metal", "Apple's GPU") if is_mac else ("cpu", "numpy")
    others = ", ".join(name for name in ("soft", "soft:check", "cpu") if name != chosen)
    print(f"device: {chosen} ({meaning}); --device also takes {others}", file=sys.stderr)
    return chosen

"""One step of a model, run(batch): where the engine meets a device."""

import platform
import sys
from collections.abc import Generator
from dataclasses import replace
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

    def greedy(self, batch: Batch, steps: int) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """The likeliest token of each sampled row, then of each sequence's next steps.

        Yields (token ids, flags of batch.py), int32 [R] each. For more than one step the batch
        samples the last row of each sequence, and block tables have room for the steps' tokens.
        """
        ...

    def state(self, slot: int) -> list[np.ndarray]:
        """A copy of the convolution state of a sequence (LFM2), after the last step."""
        ...

    def set_state(self, slot: int, state: list[np.ndarray]) -> None:
        """Lets a sequence go on from a state that `state` has returned."""
        ...

    def dispatches(self) -> list[tuple[str, float, float]]:
        """(kernel, start by time.perf_counter, seconds) since the last call, once
        `time_dispatches` was called; nothing where there is no device."""
        ...

    def time_dispatches(self) -> None:
        """From now on each dispatch runs, and is timed, alone: slower, and for timelines."""
        ...

    def report(self) -> "Report | None":
        """What the last step cost; None where there is no device."""
        ...


def open_runner(
    model: Model,
    device: str,
    num_blocks: int,
    block_size: int,
    options: Options | None = None,
    max_seqs: int = 64,
    max_context: int | None = None,
) -> Runner:
    """The model on the device of that name; its KV pool has `num_blocks` of `block_size` slots.

    max_seqs: sequences that may hold a convolution state at a time (LFM2).
    max_context: tokens of the longest sequence; whole blocks. Default: it may have all of them.

    Raises:
        TinyrvllmError: no such device, or it cannot run a model here; never a silent fallback.
    """
    if device not in DEVICES:
        raise TinyrvllmError(f"no device {device!r}: choose one of {', '.join(DEVICES)}")
    if device == "auto":
        device = choose_device()
    if device == "cpu":
        invariant = options is not None and options.batch_invariant
        if options not in (None, Options(batch_invariant=invariant)):
            raise TinyrvllmError(
                "device 'cpu' is numpy and has no kernels to choose between: --no-fuse, "
                "--kv-type f32, --indirect, --tensor-ops, --matvec-rows, --ksplit-rows and "
                "--kernel go with --device soft or metal"
            )
        from tinyrvllm.runner.numpy import NumpyRunner

        return NumpyRunner(model, num_blocks, block_size, max_seqs, batch_invariant=invariant)
    if device == "cuda":  # an indirect command buffer is a CUDA graph there; docs/cuda.md
        options = replace(options or Options(), indirect=True, simdgroups=2048)
        if options.ksplit_rows == Options.ksplit_rows:
            options = replace(options, ksplit_rows=32)
    from tinyrvllm.mtl import open_device
    from tinyrvllm.runner.metal import MetalRunner

    opened = open_device(device)
    return MetalRunner(model, opened, num_blocks, block_size, max_seqs, options, max_context)


def choose_device() -> str:
    """Metal where there is Apple silicon, else numpy; says so on standard error."""
    is_mac = sys.platform == "darwin" and platform.machine() == "arm64"
    chosen, meaning = ("metal", "Apple's GPU") if is_mac else ("cpu", "numpy")
    others = ", ".join(name for name in ("soft", "soft:check", "cpu") if name != chosen)
    print(f"device: {chosen} ({meaning}); --device also takes {others}", file=sys.stderr)
    return chosen

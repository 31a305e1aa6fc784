"""Compares what programs declare with the bytes that the checking device saw touched."""

from collections.abc import Iterable

import numpy as np

from tinyrvllm.kernels.launch import Launch, Span
from tinyrvllm.mtl import Commands
from tinyrvllm.mtl.buffer import Memory
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.program import Program

Range = tuple[int, int]  # addresses, the end exclusive


class Watch:
    """Every step that a runner takes from now on; what was touched undeclared is in `found`."""

    def __init__(self, runner: MetalRunner) -> None:
        self.found: list[str] = []
        self.dispatches = 0
        self._submitted: list[list[Program]] = []  # in the order in which the queue runs them
        engine = runner.device.objc.runtime.engine  # type: ignore[attr-defined]
        submit, run = runner._submit, engine.run

        def submit_noted(programs: list[Program]) -> Commands:
            self._submitted.append(programs)
            return submit(programs)

        def run_compared(runs: list) -> list[str]:
            faults = run(runs)
            programs = self._submitted.pop(0)
            launches = [launch for program in programs for launch in program.launches]
            for launch, done in zip(launches, runs, strict=True):
                self.dispatches += 1
                self._compare(launch, done)
            return faults

        runner._submit = submit_noted  # type: ignore[method-assign]
        self.engine, self._run, engine.run = engine, run, run_compared

    def close(self) -> None:
        self.engine.run = self._run

    def _compare(self, launch: Launch, done: object) -> None:
        reads, writes = done.touched  # type: ignore[attr-defined]
        address, _ = done.buffers[len(launch.arguments)]  # type: ignore[attr-defined]
        constants = (address, address + len(launch.parameters))
        for verb, touched, spans, more in (
            ("reads", reads, launch.read_set, [constants]),
            ("writes", writes, launch.write_set, []),
        ):
            rest = subtract(touched, [*map(addresses, spans), *more])
            if rest:
                self.found.append(f"{launch.kernel} {verb} undeclared addresses {rest[:3]}")


def addresses(span: Span) -> Range:
    start = np.asarray(Memory(span.buffer)).ctypes.data + span.offset
    return start, start + span.nbytes


def subtract(ranges: Iterable[Range], allowed: list[Range]) -> list[Range]:
    """The parts of ranges that are in none of the allowed ones."""
    rest = list(ranges)
    for low, high in allowed:
        rest = [
            part
            for start, end in rest
            for part in ((start, min(end, low)), (max(start, high), end))
            if part[0] < part[1]
        ]
    return rest

"""Lesson 04: recording and submitting work."""

from collections.abc import Callable
from itertools import combinations

import numpy as np

from lessons.host import Call, Recording
from lessons.spec import HostTask
from tinyrvllm.mtl import Buffer, open_device

NAMES = "abcd"


def check_record(function: Callable[..., np.ndarray], recording: Recording) -> None:
    rng = np.random.default_rng(7)
    for count in (1000, 256, 1):
        recording.calls.clear()
        inputs = [rng.integers(-1000, 1000, count).astype(np.float32) for _ in NAMES]
        with open_device("soft:check") as device:
            result = np.array(function(device, *inputs))
            check_calls(recording, inputs, result)
            recording.calls.clear()  # they hold buffers, which must be gone before the device
            del result


def check_calls(recording: Recording, inputs: list[np.ndarray], result: np.ndarray) -> None:
    """Raises what is wrong with the result, then with the way to it."""
    expected = np.sum(inputs, axis=0)
    start = recording.line_of("sum_of_four")
    if result.shape != expected.shape or not np.array_equal(result, expected):
        early = [c for c in recording.of("numpy") if not finished(recording, c)]
        if early:
            raise recording.wrong(
                early[0].line, "the result is looked at before the device is done",
                f"  element 0: yours {result.flat[0]:g}, spec {expected[0]:g}",
            )  # fmt: skip
        dispatches_are_right(recording, inputs)
        if result.shape != expected.shape:
            raise recording.wrong(
                start, f"expected an array of shape {expected.shape}, found {result.shape}"
            )
        i = int(np.flatnonzero(result != expected)[0])
        raise recording.wrong(start, f"element {i}: yours {result[i]:g}, spec {expected[i]:g}")
    commands, encoders = recording.of("commands"), recording.of("encoder")
    if len(commands) != 1:
        line = commands[1].line if len(commands) > 1 else start
        raise recording.wrong(line, f"expected one command buffer, found {len(commands)}")
    if not encoders[0].arguments["concurrent"]:
        raise recording.wrong(
            encoders[0].line, "expected a concurrent encoder, found a serial one: "
            "there a + b and c + d run one after the other",
        )  # fmt: skip
    barriers = recording.of("barrier")
    if len(barriers) > 1:
        raise recording.wrong(
            barriers[0].line, f"expected one barrier, found {len(barriers)}: "
            "a + b and c + d need not wait for each other",
        )  # fmt: skip


def dispatches_are_right(recording: Recording, inputs: list[np.ndarray]) -> None:
    """Raises for the first dispatch that adds the wrong things, or not all of them."""
    count = inputs[0].size
    dispatches = recording.of("dispatch")
    if not dispatches:
        raise recording.wrong(recording.line_of("sum_of_four"), "nothing was dispatched")
    used: set[str] = set()
    for call in dispatches:
        groups, threads = call.arguments["groups"], call.arguments["threads"]
        if groups[0] * threads[0] < count:
            raise recording.wrong(
                call.line, f"{groups[0]} threadgroups of {threads[0]} threads leave "
                f"{count - groups[0] * threads[0]} of {count} elements out: round up",
            )  # fmt: skip
        left, right = (contents(buffer, inputs) for buffer in call.arguments["buffers"][:2])
        if not (left and right):
            which = "second" if left else "first"
            raise recording.wrong(call.line, f"the {which} buffer that this adds holds no sum yet")
        for names in (left, right):
            again = used & names if len(names) == 1 else set()
            if again or left & right:
                twice = ", ".join(sorted(again or left & right))
                raise recording.wrong(call.line, f"this dispatch adds `{twice}` a second time")
        used |= left if len(left) == 1 else set()
        used |= right if len(right) == 1 else set()


def contents(bound: Buffer | tuple[Buffer, int], inputs: list[np.ndarray]) -> set[str]:
    """Of which inputs a buffer holds the sum, as far as its values tell."""
    buffer = bound[0] if isinstance(bound, tuple) else bound
    values = buffer.numpy(np.float32)[: inputs[0].size]
    for n in range(1, len(NAMES)):
        for chosen in combinations(range(len(NAMES)), n):
            if np.array_equal(values, np.sum([inputs[i] for i in chosen], axis=0)):
                return {NAMES[i] for i in chosen}
    return set()


def finished(recording: Recording, call: Call) -> bool:
    """Whether all that was recorded before a call had been waited for by then.

    A `with` block of a command buffer waits at its end, which is no call of the student's: there
    the line tells, since the block ends before the next line of its own indentation.
    """
    lines = recording.path.read_text(encoding="utf-8").splitlines()

    def indent(line: int) -> int:
        return len(lines[line - 1]) - len(lines[line - 1].lstrip())

    waited = any(c.name == "wait" for c in recording.calls[: recording.calls.index(call)])
    for made in recording.of("commands"):
        in_block = lines[made.line - 1].lstrip().startswith("with ")
        if in_block and made.line < call.line and indent(call.line) > indent(made.line):
            return False
        if not in_block and not waited:
            return False
    return True


TASKS = [HostTask("04", "record", "sum_of_four", check=check_record)]

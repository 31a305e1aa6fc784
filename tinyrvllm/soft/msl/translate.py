"""Metal source that went through the preprocessor -> C++ and what a host may know about it."""

from dataclasses import dataclass

from tinyrvllm.soft.msl import (
    aggregates,
    constants,
    declarations,
    kernels,
    qualifiers,
    spelling,
    threadgroup,
    unsupported,
)
from tinyrvllm.soft.msl.call_paths import CallPaths
from tinyrvllm.soft.msl.calls import CallGraph, Level
from tinyrvllm.soft.msl.comparisons import Comparisons
from tinyrvllm.soft.msl.constants import FunctionConstant
from tinyrvllm.soft.msl.events import Events
from tinyrvllm.soft.msl.follow import Follower, Step
from tinyrvllm.soft.msl.kernels import Kernel
from tinyrvllm.soft.msl.rounds import Rounds
from tinyrvllm.soft.msl.tokens import Tokens


@dataclass(frozen=True, slots=True)
class KernelUnit:
    """A kernel with what its way of running depends on."""

    kernel: Kernel
    level: Level
    matrices: bool  # uses simdgroup_matrix
    constants: dict[int, FunctionConstant]  # those that it can reach


@dataclass(frozen=True, slots=True)
class Unit:
    code: str  # C++, line by line where the Metal source was
    kernels: dict[str, KernelUnit]  # host name -> kernel
    constants: dict[int, FunctionConstant]  # all of the source
    per_lane: bool  # thread_elements() is used: each lane holds its own part of a matrix
    steps: tuple[Step, ...] = ()  # what a followed thread may note


def translate(preprocessed: str, filename: str, follow: bool = False) -> Unit:
    """Raises MSLError for what is no Metal, and for Metal that this device does not run.

    With `follow`, the code notes the statements that one thread runs.
    """
    tokens = Tokens(preprocessed, filename)
    unsupported.words(tokens)
    qualifiers.methods(tokens)
    qualifiers.array_parameters(tokens)
    aggregates.restore(tokens)
    spelling.literals(tokens)
    found = list(declarations.scan(tokens))
    follower = Follower(tokens, found) if follow else None
    graph = CallGraph(tokens, found)
    unsupported.recursion(tokens, found)
    per_lane = any(t.text == "thread_elements" for t in tokens.list)
    events = Events(tokens, found)
    graph.waits |= events.names
    rounds = Rounds(events, per_lane)
    call_paths = CallPaths(tokens, events, rounds)
    comparisons = Comparisons(tokens, found, events.functions)
    function_constants = constants.collect(tokens, found)
    listed = kernels.collect(tokens, found)
    threadgroup.rewrite(tokens, found)
    spelling.subscripts(tokens)
    spelling.vectors(tokens)
    spelling.braces(tokens)
    qualifiers.overloads(tokens, found)
    call_paths.mark()
    rounds.mark()
    comparisons.mark()
    if follower:
        follower.mark()
    call_paths.number()
    steps = tuple(follower.steps) if follower else ()
    units: dict[str, KernelUnit] = {}
    for kernel in listed:
        reached = graph.reached(kernel.base)
        units[kernel.name] = KernelUnit(
            kernel,
            graph.level(kernel.base),
            graph.uses_matrices(kernel.base),
            {i: c for i, c in function_constants.items() if c.name in reached},
        )
    return Unit(tokens.source(), units, function_constants, per_lane, steps)

"""Command buffers on an NVIDIA GPU: what the runtime double asks of an engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyrvllm.soft.cuda.driver import Card, CudaError, Graph, Launch
from tinyrvllm.soft.cuda.library import CudaLibrary, compile_library
from tinyrvllm.soft.cuda.memory import Buffers, TwoSided, view
from tinyrvllm.soft.cuda.program import ENTRY
from tinyrvllm.soft.msl import MSLError
from tinyrvllm.soft.objc_double.engine import CompileError, Memory, Recorded, Run, pages


@dataclass(frozen=True)
class CudaKernel:
    """One specialised function, loaded."""

    function: Any
    module: Any
    static_threadgroup_bytes: int
    buffers: tuple[int, ...]  # slots, in the order of the entry's parameters
    written: frozenset[int]  # slots that are not const
    threadgroup: tuple[int, ...]  # indices of [[threadgroup(n)]]


@dataclass
class Prepared:
    """Dispatches as the card takes them, and the buffers that they touch."""

    graph: Graph | None
    launches: list[Launch]
    buffers: list[TwoSided]
    written: set[int]  # ids of buffers


@dataclass
class Ticket:
    """Submitted work."""

    start: Any  # events: before the kernels, after them, after the copies to the host
    end: Any
    done: Any
    staged: list[tuple[TwoSided, np.ndarray]] = field(default_factory=list)
    fault: str = ""


class CudaEngine:
    """The first NVIDIA GPU."""

    kind = "Metal"  # for the device's name
    replays = True  # takes Recorded items whole

    def __init__(self) -> None:
        """Raises NoDriver."""
        self.card = Card()
        self.description = f"{self.card.name} ({self.card.architecture}) through CUDA"
        self.buffers = Buffers()
        self._spare_events: list[Any] = []
        self._spare_pinned: dict[int, list[np.ndarray]] = {}

    # ---- memory

    def allocate(self, nbytes: int) -> Memory:
        memory = pages(nbytes)
        return self._two_sided(memory.address, nbytes, memory.owner, shown=False)

    def wrap(self, address: int, nbytes: int) -> Memory:
        """Memory of the program's own."""
        return self._two_sided(address, nbytes, None, shown=True)

    def _two_sided(self, address: int, nbytes: int, owner: Any, shown: bool) -> Memory:
        buffer = TwoSided(self.card, address, nbytes, owner, shown)
        self.buffers.add(buffer)
        return Memory(address, nbytes, buffer, buffer.show)

    # ---- programs

    def compile(self, source: str) -> CudaLibrary:
        architecture = self.card.architecture
        try:
            return compile_library(source, filename="program_source", architecture=architecture)
        except MSLError as error:
            raise CompileError(str(error)) from error

    def kernel(self, library: CudaLibrary, name: str, constants: Mapping[int, Any]) -> CudaKernel:
        try:
            code = library.code(name, constants)
        except MSLError as error:
            raise CompileError(str(error)) from error
        module, function, static = self.card.function(code, ENTRY)
        params = library.functions[name].params
        buffers = [p for p in params if p.kind == "buffer"]
        return CudaKernel(
            function, module, static,
            tuple(p.index for p in buffers if p.index is not None),
            frozenset(p.index for p in buffers if p.index is not None and p.access != "read"),
            tuple(p.index for p in params if p.kind == "threadgroup" and p.index is not None),
        )  # fmt: skip

    # ---- work

    def submit(self, items: Sequence[Run | Recorded]) -> Ticket:
        """Starts dispatches in order, after all that was submitted before."""
        with self.card.lock:
            self.card.enter()
            ticket = Ticket(self._event(), self._event(), self._event())
            try:
                self._start(items, ticket)
            except CudaError as error:
                ticket.fault = str(error)
        return ticket

    def _start(self, items: Sequence[Run | Recorded], ticket: Ticket) -> None:
        prepared = [self._prepared(item) for item in items]
        buffers = {id(b): b for p in prepared for b in p.buffers}
        for buffer in buffers.values():
            buffer.upload()
        self.card.record(ticket.start)
        for work in prepared:
            if work.graph is not None:
                work.graph.launch()
            for launch in work.launches:
                self.card.launch(launch)
        self.card.record(ticket.end)
        for number in set().union(*(p.written for p in prepared)):
            self._stage(buffers[number], ticket)
        self.card.record(ticket.done)

    def finish(self, ticket: Ticket) -> tuple[list[str], float]:
        """Waits; returns what went wrong, and the seconds on the card."""
        self.card.enter()
        seconds = 0.0
        try:
            if not ticket.fault:
                self.card.wait_for(ticket.done)
                seconds = self.card.seconds(ticket.start, ticket.end)
                with self.card.lock:
                    for buffer, staged in ticket.staged:
                        buffer.receive(staged)
                        self._spare_pinned[buffer.nbytes].append(staged)
        except CudaError as error:
            ticket.fault = f"{error}; --device soft:check names the kernel, the line and the thread"
        self._spare_events += (ticket.start, ticket.end, ticket.done)
        return ([ticket.fault] if ticket.fault else []), seconds

    def run(self, runs: Sequence[Run]) -> list[str]:
        return self.finish(self.submit(runs))[0]

    def _event(self) -> Any:
        return self._spare_events.pop() if self._spare_events else self.card.event()

    def _stage(self, buffer: TwoSided, ticket: Ticket) -> None:
        """What a kernel may have written goes to the host, or is marked as newer on the card."""
        if not (buffer.shown and buffer.small):
            buffer.card_newer = True
            return
        spare = self._spare_pinned.setdefault(buffer.nbytes, [])
        staged = spare.pop() if spare else view(self.card.pinned(buffer.nbytes), buffer.nbytes)
        self.card.download(staged.ctypes.data, buffer.device, buffer.nbytes)
        ticket.staged.append((buffer, staged))

    # ---- dispatches as CUDA sees them

    def _prepared(self, item: Run | Recorded) -> Prepared:
        if isinstance(item, Run):
            return self._prepare([[item]], as_graph=False)
        if item.prepared is None:
            item.prepared = self._prepare(item.phases, as_graph=True)
        return item.prepared

    def _prepare(self, phases: Iterable[Sequence[Run]], as_graph: bool) -> Prepared:
        buffers: dict[int, TwoSided] = {}
        written: set[int] = set()
        launches = [[self._launch(run, buffers, written) for run in phase] for phase in phases]
        graph = Graph(self.card, launches) if as_graph else None
        alone = [] if as_graph else [launch for phase in launches for launch in phase]
        return Prepared(graph, alone, list(buffers.values()), written)

    def _launch(self, run: Run, buffers: dict[int, TwoSided], written: set[int]) -> Launch:
        kernel: CudaKernel = run.kernel
        pointers = []
        for slot in kernel.buffers:
            if slot not in run.buffers:  # an argument that a function constant takes away
                pointers.append(0)
                continue
            address, nbytes = run.buffers[slot]
            buffer = self.buffers.at(address, nbytes)
            buffers[id(buffer)] = buffer
            if slot in kernel.written:
                written.add(id(buffer))
            pointers.append(buffer.device + address - buffer.host)
        offsets, dynamic = [], 0
        for index in kernel.threadgroup:
            offsets.append(dynamic)
            dynamic += -(-run.threadgroup_memory.get(index, 0) // 16) * 16
        x, y, z = (threads // each for threads, each in zip(run.grid, run.group, strict=True))
        return Launch(
            kernel.function, (x, y, z), run.group, dynamic, tuple(pointers), tuple(offsets)
        )

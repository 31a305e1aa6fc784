"""A timeline of requests and steps, for ui.perfetto.dev or chrome://tracing.

The format is Chrome's "JSON object format" of trace events: times in microseconds, a track for
each (process, thread).
"""

import json
from os import PathLike
from pathlib import Path

from tinyrvllm.engine.request import Delta
from tinyrvllm.engine.scheduler import Work

Dispatch = tuple[str, float, float]  # kernel, start (time.perf_counter), seconds
STEPS, REQUESTS, DEVICE = 1, 2, 3  # the processes


class Trace:
    """Collects events; `save` writes them."""

    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self._tracks: dict[str, int] = {}  # request -> thread
        self._ends: dict[str, float] = {}  # request -> when its last step ended
        for process, name in ((STEPS, "engine"), (REQUESTS, "requests"), (DEVICE, "device")):
            self._name(process, 0, "process_name", name)

    def step(
        self, start: float, seconds: float, work: Work, deltas: list[Delta],
        dispatches: list[Dispatch],
    ) -> None:  # fmt: skip
        """One step. `start` is time.perf_counter's."""
        rows = sum(count for _, count in work)
        finished = [delta.request_id for delta in deltas if delta.finish_reason]
        details = {"requests": len(work), "rows": rows, "dispatches": len(dispatches)}
        self._span(STEPS, 0, f"{rows} rows", start, seconds, details)
        for request, count in work:
            name = "prefill" if count > 1 else "decode"
            if request.id not in self._tracks:
                self._tracks[request.id] = len(self._tracks)
                self._name(REQUESTS, self._tracks[request.id], "thread_name", request.id)
                self._ends[request.id] = request.arrived
            track, before = self._tracks[request.id], self._ends[request.id]
            if count > 1 and start > before:  # it waited, at first or after a preemption
                again = "preempted, waiting" if request.preemptions else "waiting"
                self._span(REQUESTS, track, again, before, start - before, {})
            self._span(REQUESTS, track, name, start, seconds, {"tokens": count})
            self._ends[request.id] = start + seconds
        for id in finished:
            del self._ends[id]
        for kernel, begin, length in dispatches:
            self._span(DEVICE, 0, kernel, begin, length, {})

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the file. Raises OSError."""
        text = json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"})
        Path(path).write_text(text, encoding="utf-8")

    def _span(
        self, process: int, track: int, name: str, start: float, seconds: float,
        details: dict[str, int],
    ) -> None:  # fmt: skip
        self.events.append({
            "ph": "X", "pid": process, "tid": track, "name": name,
            "ts": round(1e6 * start, 3), "dur": round(1e6 * seconds, 3), "args": details,
        })  # fmt: skip

    def _name(self, process: int, track: int, kind: str, name: str) -> None:
        self.events.append(
            {"ph": "M", "pid": process, "tid": track, "name": kind, "args": {"name": name}}
        )

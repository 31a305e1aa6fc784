"""What the engine looks like after a step, for those who watch it."""

from dataclasses import asdict, dataclass
from typing import Any

from tinyrvllm.engine.request import Request
from tinyrvllm.engine.scheduler import Scheduler, Work


@dataclass(frozen=True)
class Snapshot:
    """A copy, cheap to take at each step; `as_json` spells it out when somebody asks."""

    state: dict[str, Any]
    refs: bytes  # int32 of each block
    cached: bytes  # one byte of each block

    @classmethod
    def of(
        cls,
        scheduler: Scheduler,
        work: Work,
        recent: list[tuple[int, list[tuple[str, int]]]],
        now: float,
        step_seconds: float,
    ) -> "Snapshot":
        """`work`: the last step's. `recent`: (step, [(request, rows)]) of steps up to it.
        `now`: seconds since the engine's start."""
        rows = {request.id: count for request, count in work}
        state = {
            "step": scheduler.totals.steps,
            "time": round(now, 6),
            "step_seconds": round(step_seconds, 6),
            "rows": sum(rows.values()),
            "token_budget": scheduler.limits.token_budget,
            "block_size": scheduler.pool.block_size,
            "num_blocks": scheduler.pool.num_blocks,
            "running": [_running(request, rows) for request in scheduler.running],
            "waiting": [
                {
                    "id": request.id,
                    "prompt_tokens": request.num_prompt,
                    "preempted": request.preemptions > 0,
                }
                for request in scheduler.waiting
            ],
            "recent_steps": recent,
            "totals": asdict(scheduler.totals),
        }
        return cls(state, scheduler.pool.refs.tobytes(), bytes(scheduler.pool.cached))

    def as_json(self) -> dict[str, Any]:
        """The keys of `LLM.snapshot`."""
        refs = memoryview(self.refs).cast("i")
        blocks = [
            {"refs": count, "cached": bool(flag)}
            for count, flag in zip(refs, self.cached, strict=True)
        ]
        return self.state | {"blocks": blocks}


def _running(request: Request, rows: dict[str, int]) -> dict[str, Any]:
    return {
        "id": request.id,
        "phase": "decode" if request.pending == 1 else "prefill",
        "prompt_tokens": request.num_prompt,
        "computed_tokens": request.computed,
        "generated_tokens": request.num_generated,
        "rows": rows.get(request.id, 0),
        "cached_tokens": request.num_cached or 0,
        "blocks": list(request.blocks),
        "preemptions": request.preemptions,
    }

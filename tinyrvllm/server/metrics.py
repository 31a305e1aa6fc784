"""The engine's counters and latencies as Prometheus text, under vLLM's names.

Names, labels and buckets: vLLM's vllm/v1/metrics/loggers.py, so that its dashboards work here.
Text format: prometheus.io/docs/instrumenting/exposition_formats.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_BETWEEN_TOKENS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_WHOLE: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


class Histogram:
    """Counts of observations up to each bound."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def lines(self, labels: str) -> Iterator[str]:
        yield from _head(self.name, self.text, "histogram")
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{self.name}_sum{{{labels}}} {self._sum}"
        yield f"{self.name}_count{{{labels}}} {total}"


class Metrics:
    """What the server has seen of its requests; used by one thread, the event loop's."""

    def __init__(self, model_name: str, context_length: int) -> None:
        quoted = model_name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._labels = f'model_name="{quoted}",engine="0"'
        tokens = one_two_five(context_length)
        self.first_token = Histogram(
            "vllm:time_to_first_token_seconds", "Time to the first token.", _FIRST_TOKEN
        )
        self.between_tokens = Histogram(
            "vllm:inter_token_latency_seconds", "Time between two tokens.", _BETWEEN_TOKENS
        )
        self.per_token = Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between the tokens of a request.",
            _BETWEEN_TOKENS,
        )
        self.whole = Histogram(
            "vllm:e2e_request_latency_seconds", "Time of a request, waiting included.", _WHOLE
        )
        self.prompt_tokens = Histogram(
            "vllm:request_prompt_tokens", "Tokens of a request's prompt.", tokens
        )
        self.generated_tokens = Histogram(
            "vllm:request_generation_tokens", "Tokens generated for a request.", tokens
        )
        self.finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)

    def text(self, snapshot: dict[str, Any]) -> str:
        """All metrics, the engine's own from its `LLM.snapshot()`."""
        return "\n".join(self._lines(snapshot)) + "\n"

    def _lines(self, snapshot: dict[str, Any]) -> Iterator[str]:
        totals, blocks = snapshot["totals"], snapshot["blocks"]
        used = sum(block["refs"] > 0 for block in blocks)
        gauges = (
            ("num_requests_running", "Requests in the batch.", len(snapshot["running"])),
            ("num_requests_waiting", "Requests that wait.", len(snapshot["waiting"])),
            ("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", used / len(blocks)),
        )
        for name, text, value in gauges:
            yield from _head(f"vllm:{name}", text, "gauge")
            yield f"vllm:{name}{{{self._labels}}} {value}"
        yield from _head("vllm:cache_config_info", "The KV cache.", "gauge")
        sizes = f'block_size="{snapshot["block_size"]}",num_gpu_blocks="{snapshot["num_blocks"]}"'
        yield f"vllm:cache_config_info{{{self._labels},{sizes}}} 1"
        counters = (
            ("prompt_tokens", "Prompt tokens processed.", "prompt_tokens"),
            ("generation_tokens", "Tokens generated.", "generation_tokens"),
            ("prefix_cache_queries", "Prompt tokens looked up.", "prefix_queries"),
            ("prefix_cache_hits", "Prompt tokens found in the cache.", "prefix_hits"),
            ("num_preemptions", "Preemptions.", "preemptions"),
        )
        for name, text, key in counters:
            yield from _head(f"vllm:{name}_total", text, "counter")
            yield f"vllm:{name}_total{{{self._labels}}} {totals[key]}"
        yield from _head("vllm:request_success_total", "Requests finished.", "counter")
        for reason, count in self.finished.items():
            yield f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {count}'
        for histogram in (
            self.first_token, self.between_tokens, self.per_token, self.whole, self.prompt_tokens,
            self.generated_tokens,
        ):  # fmt: skip
            yield from histogram.lines(self._labels)


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `largest`."""
    steps = (float(digit * 10**power) for power in range(12) for digit in (1, 2, 5))
    return tuple(step for step in steps if step <= largest)

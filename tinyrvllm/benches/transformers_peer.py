"""transformers on a GGUF file, for `bench transformers`: a process of its own.

Reads lines "eager 4" or "compiled 4" and answers each with a line of JSON: a decode step's mean
milliseconds, and each sequence's tokens.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from tinyrvllm.benches.greedy import prompts

Step = Callable[[Any, Any], Any]  # the last tokens, their positions [batch, 1] -> the next tokens


class Transformers:
    """A model on a device ("cuda" or "cpu"), and prompts of so many tokens."""

    def __init__(self, path: Path, device: str, prompt_tokens: int, tokens: int) -> None:
        self.device, self.prompt_tokens, self.tokens = device, prompt_tokens, tokens
        kind = torch.float16 if device == "cuda" else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=kind
        )
        self.model.to(device).eval()
        self.static: dict[int, tuple[StaticCache, Step]] = {}  # of each batch size, compiled

    def eager(self, batch: int) -> dict[str, Any]:
        cache = DynamicCache(config=self.model.config)
        return self._run(batch, cache, self._step(cache))

    def compiled(self, batch: int) -> dict[str, Any]:
        if batch not in self.static:
            config, length = self.model.config, self.prompt_tokens + self.tokens
            cache = StaticCache(config=config, max_cache_len=length)
            # Not dynamic: a second batch size would otherwise get a graph for any.
            step = torch.compile(self._step(cache), mode="reduce-overhead", dynamic=False)
            self.static[batch] = cache, step
        cache, step = self.static[batch]
        cache.reset()
        return self._run(batch, cache, step)

    def _step(self, cache: Any) -> Step:
        def step(ids: Any, positions: Any) -> Any:
            done = self.model(ids, past_key_values=cache, position_ids=positions, use_cache=True)
            return done.logits[:, -1].argmax(-1, keepdim=True)

        return step

    def _run(self, batch: int, cache: Any, step: Step) -> dict[str, Any]:
        """All prompts at once, then step by step; each step's tokens are fetched, as ours are."""
        asked = prompts(0, batch, self.prompt_tokens, self.model.config.vocab_size)
        ids = torch.tensor(asked, device=self.device)
        seconds = []
        with torch.no_grad():
            done = self.model(ids, past_key_values=cache, use_cache=True)
            ids = done.logits[:, -1].argmax(-1, keepdim=True)
            columns = [ids.cpu()]
            for place in range(self.prompt_tokens, self.prompt_tokens + self.tokens - 1):
                positions = torch.full((batch, 1), place, device=self.device)
                torch.compiler.cudagraph_mark_step_begin()
                start = time.perf_counter()
                ids = step(ids, positions).clone()  # a graph's own output is overwritten
                columns.append(ids.cpu())
                seconds.append(time.perf_counter() - start)
        return {"ms": 1e3 * statistics.fmean(seconds), "tokens": torch.cat(columns, 1).tolist()}


def main() -> None:
    path, device, prompt_tokens, tokens = sys.argv[1:]
    peer = Transformers(Path(path), device, int(prompt_tokens), int(tokens))
    for line in sys.stdin:
        kind, batch = line.split()
        run = peer.eager if kind == "eager" else peer.compiled
        print(json.dumps(run(int(batch))), flush=True)


if __name__ == "__main__":
    main()

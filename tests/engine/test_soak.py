"""Random requests of many threads to whole engines: the right answers, and nothing grows.

tests/runner/test_soak.py has every logit compared; here are scheduler, blocks and threads.
"""

import gc
import os
import random
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.runner.test_soak import objects as metal_objects
from tests.tiny_models import write_model
from tinyrvllm import LLM, SamplingParams, mtl
from tinyrvllm.reports import peak_memory_bytes
from tinyrvllm.runner.options import Options

SECONDS = float(os.environ.get("TINYRVLLM_SOAK_SECONDS", "3600"))
CLIENTS = 12  # threads; half of what they ask at a time has to wait
NUM_QUESTIONS, CONTEXT = 16, 160
BEGINNINGS = "the hello in " * 9, "x" * 70, ""  # shared by a chunk of 64 tokens
KINDS = "finished", "left", "logits"  # what becomes of a question
FILES = Path("/dev/fd")
ENGINE = "tinyrvllm.engine"
TOLERANCE = 5e-2  # of logits: half-precision cache and tiles, cut elsewhere


@dataclass(frozen=True)
class Question:
    prompt: list[int]
    params: SamplingParams
    answer: list[int]
    logits: np.ndarray  # after the prompt


class Traffic:
    """An engine with too few blocks, and questions that one without company has answered."""

    def __init__(self, path: Path, device: str, rng: random.Random) -> None:
        def engine(num_blocks: int, max_running: int, prefix_cache: bool) -> LLM:
            return LLM(
                path, device, CONTEXT, Options(batch_invariant=True), block_size=8,
                num_blocks=num_blocks, max_running=max_running, token_budget=96,
                prefix_cache=prefix_cache,
            )  # fmt: skip

        with engine(num_blocks=20, max_running=1, prefix_cache=False) as alone:
            self.questions = [self.question(alone, n, rng) for n in range(NUM_QUESTIONS)]
        self.llm = engine(num_blocks=32, max_running=6, prefix_cache=True)
        self.rest()

    def question(self, alone: LLM, number: int, rng: random.Random) -> Question:
        text = rng.choice(BEGINNINGS) + f"question {number} " * rng.randint(1, 2)
        prompt = alone.model.tokenizer.encode(text)
        params = SamplingParams(
            max_tokens=rng.randint(1, 30), temperature=rng.choice([0, 0, 0.8]), seed=number,
            ignore_eos=rng.random() < 0.7, presence_penalty=rng.choice([0, 0, 1.5]),
        )  # fmt: skip
        (output,) = alone.generate([prompt], params)
        return Question(prompt, params, output.token_ids, alone.logits(prompt, [len(prompt) - 1]))

    def client(self, seed: int) -> Counter[str]:
        """Asks some questions; what became of them."""
        rng, counts = random.Random(seed), Counter[str]()
        for question in rng.choices(self.questions, k=rng.randint(1, 4)):
            kind = rng.choices(KINDS, [7, 2, 1])[0]
            counts[kind] += 1
            if kind == "logits":
                found = self.llm.logits(question.prompt, [len(question.prompt) - 1])
                np.testing.assert_allclose(found, question.logits, atol=TOLERANCE)
                continue
            stream = self.llm.submit(question.prompt, question.params)
            most = len(question.answer) if kind == "finished" else rng.randint(0, 5)
            for number, _ in enumerate(stream.deltas()):
                if number == most:
                    break
            stream.abort()  # which does nothing after the end
            stream.wait()
            read = stream.output.token_ids
            assert read == question.answer[: len(read)]
            assert kind == "left" or read == question.answer
        return counts

    def rest(self) -> None:
        """Every block is free and accounted for; the engine remembers one certain request."""
        first = self.questions[0]
        assert self.llm.generate([first.prompt], first.params)[0].token_ids == first.answer
        self.llm.check()
        assert not any(block["refs"] for block in self.llm.snapshot()["blocks"])

    @property
    def device(self) -> mtl.Device | None:
        return getattr(self.llm._runner, "device", None)

    @property
    def num_programs(self) -> int:
        """What a device's runner has recorded; it grows until every bucket was seen."""
        return len(getattr(self.llm._runner, "_programs", ()))


@dataclass(frozen=True)
class Held:
    """What the process holds while its engines are idle."""

    objects: Counter[str]  # by class: the engine's, and Metal's but for what programs keep
    threads: int  # but for those of pools, which start as they are needed
    files: int  # open ones; 0 on Windows, which does not list them
    programs: int  # recorded
    memory: int  # bytes, at most so far

    @classmethod
    def now(cls, traffic: list[Traffic]) -> "Held":
        gc.collect()
        kinds = [type(thing) for thing in gc.get_objects()]
        objects = Counter(k.__name__ for k in kinds if str(k.__module__).startswith(ENGINE))
        for each in traffic:
            if each.device is not None:
                objects += metal_objects(each.device)
        threads = [t for t in threading.enumerate() if not re.search(r"_\d+$", t.name)]
        files = len([*FILES.iterdir()]) if FILES.is_dir() else 0
        programs = sum(each.num_programs for each in traffic)
        return cls(objects, len(threads), files, programs, peak_memory_bytes() or 0)


@dataclass(frozen=True)
class Soaked:
    half: Held  # at half time
    last: Held
    totals: list[dict[str, int]]  # of each engine


def soak(folder: Path, device: str, seconds: float, names: tuple[str, ...]) -> Soaked:
    """Asks for some seconds; nothing is left afterwards."""
    end, half, noted = time.monotonic() + seconds, None, time.monotonic()
    rng, counts = random.Random(0), Counter[str]()
    traffic = [Traffic(write_model(folder / f"{n}.gguf", n), device, rng) for n in names]
    runtimes = [each.device.objc.runtime for each in traffic if each.device is not None]
    while time.monotonic() < end or half is None or min(counts[kind] for kind in KINDS) < 2:
        each = rng.choice(traffic)
        with ThreadPoolExecutor(CLIENTS) as clients:
            for found in clients.map(each.client, [rng.random() for _ in range(CLIENTS)]):
                counts += found
        each.rest()
        if time.monotonic() > noted + 60:  # `pytest -s` shows how it goes
            noted = time.monotonic()
            print(f"{end - noted:5.0f} s left, {dict(counts)}, {Held.now(traffic)}", flush=True)
        if half is None and time.monotonic() > end - seconds / 2:
            half = Held.now(traffic)
    last = Held.now(traffic)
    totals = [each.llm.snapshot()["totals"] for each in traffic]
    print(totals)
    for each in traffic:
        each.llm.close()
    del each, traffic
    gc.collect()
    assert [runtime.leaks() for runtime in runtimes] == [[]] * len(runtimes)
    assert not last.objects - half.objects
    assert last.threads <= half.threads
    assert last.files <= half.files
    return Soaked(half, last, totals)


@pytest.mark.parametrize("device", ["cpu", "soft"])
def test_a_short_soak(tmp_path: Path, device: str) -> None:
    soak(tmp_path, device, 0, ("llama",))


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", "soft:check"])
def test_an_hour_of_random_requests(tmp_path: Path, device: str) -> None:
    found = soak(tmp_path, device, SECONDS, ("llama", "gemma3", "lfm2", "qwen2"))
    for what in ("prefix_hits", "preemptions"):
        assert sum(each[what] for each in found.totals) > 0, what
    growth, programs = (
        getattr(found.last, name) - getattr(found.half, name) for name in ("memory", "programs")
    )
    # A new program brings Python objects, constants and compiled kernels.
    assert growth < (8 << 20) + (4 << 20) * programs, f"{growth:,} bytes"

"""Many clients at once, some of whom leave: every answer that is finished is the one it has alone."""

import asyncio
import gc
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import HANG_SECONDS, Live, assert_nothing_is_held, invariant_llm, serving
from tinyrvllm import SamplingParams
from tinyrvllm.engine.request import Request
from tinyrvllm.engine.stream import Stream
from tinyrvllm.server.answers import Answer, Answers

CLIENTS = 64
BEGINNINGS = ("the hello in " * 12, "x" * 90, "")  # prompts share blocks
NUM_QUESTIONS = 24


@dataclass(frozen=True)
class Question:
    """A request, and the text that it must give."""

    body: dict[str, Any]
    answer: str


def questions(path: Path, rng: random.Random) -> list[Question]:
    """Requests of all kinds, answered one after the other by an engine that runs one at a time."""
    found = []
    with invariant_llm(path, max_running=1) as llm:
        for number in range(NUM_QUESTIONS):
            body: dict[str, Any] = {
                "prompt": rng.choice(BEGINNINGS) + f"question {number} " * rng.randint(1, 6),
                "max_tokens": rng.randint(1, 150),
                "temperature": rng.choice([0, 0.7, 1.5]),
                "seed": number,
                "stop": ["zz", "e1"],
                "repetition_penalty": rng.choice([1.0, 1.3]),
                "ignore_eos": rng.random() < 0.5,
            }
            (output,) = llm.generate(body["prompt"], SamplingParams(**{
                name: value for name, value in body.items() if name != "prompt"
            }))  # fmt: skip
            found.append(Question(body, output.text))
    return found


async def client(
    http: httpx.AsyncClient, asked: list[Question], rng: random.Random, until: float, rounds: int
) -> Counter[str]:
    """Asks `rounds` questions at least, and on until the time `until`; what became of them."""
    counts: Counter[str] = Counter()
    while rounds > 0 or time.monotonic() < until:
        rounds -= 1
        question, stays = rng.choice(asked), rng.random() < 0.7
        try:
            if rng.random() < 0.5:
                text = await streamed(http, question.body, None if stays else rng.randint(0, 20))
            else:
                patience = None if stays else rng.uniform(0, 0.2)
                async with asyncio.timeout(patience):
                    text = await whole(http, question.body)
        except TimeoutError:
            text = None
        if text is None:
            counts["left"] += 1
        elif text == "full":
            counts["full"] += 1
        else:
            assert text == question.answer, question.body
            counts["finished"] += 1
    return counts


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await http.post("/v1/completions", json=body)
    if answer.status_code == 429:
        return "full"
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


async def streamed(http: httpx.AsyncClient, body: dict[str, Any], most: int | None) -> str | None:
    """The text of a stream, or None for a client that leaves after `most` lines."""
    text = ""
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        if answer.status_code == 429:
            return "full"
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if most is not None:
                most -= 1
                if most < 0:
                    return None
            if line == "data: [DONE]":
                return text
            if line.startswith("data: "):
                text += json.loads(line[6:])["choices"][0]["text"]
    raise AssertionError("a stream without its end")


async def crowd(live: Live, asked: list[Question], seconds: float, rounds: int) -> Counter[str]:
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(
        base_url=live.url, timeout=HANG_SECONDS, limits=limits, verify=False
    ) as http:
        counts = await asyncio.gather(
            *(client(http, asked, random.Random(n), until, rounds) for n in range(CLIENTS))
        )
    return sum(counts, Counter())


def load(path: Path, seconds: float, rounds: int) -> None:
    before = live_objects()  # an idle engine of other tests may keep its last request
    asked = questions(path, random.Random(0))
    # A pool for a fifth of what is wanted, and a queue that some find full.
    llm = invariant_llm(path, num_blocks=48, max_running=12, max_queue=48, token_budget=96)
    with serving(llm) as live:
        counts = asyncio.run(crowd(live, asked, seconds, rounds))
        assert_nothing_is_held(llm)
        totals = llm.snapshot()["totals"]
        print(f"\n{dict(counts)}, {totals}")
        assert counts["finished"] > 0
        assert counts["left"] > 0
        assert totals["prefix_hits"] > 0
        assert totals["preemptions"] > 0
    del live, llm
    left = [thing for thing in live_objects() if not any(thing is other for other in before)]
    assert not left, left[:3]


def live_objects() -> list[object]:
    gc.collect()
    kinds = (Request, Stream, Answer, Answers)
    return [thing for thing in gc.get_objects() if isinstance(thing, kinds)]


def test_a_crowd(tiny: Path) -> None:
    load(tiny, seconds=0, rounds=3)


@pytest.mark.long
def test_a_crowd_for_five_minutes(tiny: Path) -> None:
    load(tiny, seconds=300, rounds=4)

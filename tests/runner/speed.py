"""The oracle's speed beside llama.cpp's, on the same file and cores, in turns.

    python -m tests.runner.speed MODEL.gguf LLAMA_CPP/build/bin

Each round runs llama.cpp's own benchmarks, then the same work here: a prompt of 128 tokens, and 16
tokens for each of 1, 8 and 32 sequences that have 16 already. Printed are medians over the rounds
and the median of each round's ratio, which is what a busy machine disturbs least.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from tests.runner.sequences import Model, Sequence, batch_of
from tinyrvllm.runner.numpy import NumpyRunner

PROMPT, DECODE, BATCHES = 128, 16, (1, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("llamacpp", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    runner = NumpyRunner(Model(args.model), num_blocks=2 * max(BATCHES) + PROMPT // 16)
    ours(runner)  # dequantises the weights
    rounds = [(llamacpp(args.llamacpp, args.model), ours(runner)) for _ in range(args.rounds)]
    print("| tokens/s | llama.cpp | ours | ratio |\n|---|---|---|---|")
    for name in rounds[0][0]:
        theirs, mine = ([side[name] for side in sides] for sides in zip(*rounds, strict=True))
        ratio = statistics.median(b / a for a, b in zip(theirs, mine, strict=True))
        medians = statistics.median(theirs), statistics.median(mine)
        print(f"| {name} | {medians[0]:.0f} | {medians[1]:.0f} | {ratio:.2f} |")


def llamacpp(binaries: Path, model: Path) -> dict[str, float]:
    common = ["-m", model, "-t", str(os.cpu_count())]
    prefill = ["llama-bench", *common, "-p", str(PROMPT), "-n", "0", "-r", "1", "-o", "jsonl"]
    decode = ["llama-batched-bench", *common, "-npp", "16", "-ntg", str(DECODE), "-npl"]
    decode += [",".join(map(str, BATCHES)), "-c", "2048", "--output-format", "jsonl"]
    rates = {"prefill 128": rows(binaries, prefill)[0]["avg_ts"]}
    for row in rows(binaries, decode):
        rates[f"decode, batch {row['pl']}"] = row["speed_tg"]
    return rates


def rows(binaries: Path, command: list) -> list[dict]:
    command[0] = binaries / command[0]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def ours(runner: NumpyRunner) -> dict[str, float]:
    sequence = Sequence(list(range(100, 100 + PROMPT)), list(range(PROMPT // 16)))
    rates = {"prefill 128": rate(runner, [(sequence, PROMPT)], steps=1)}
    for size in BATCHES:
        work = [
            (Sequence(list(range(100 + i, 132 + i)), [2 * i, 2 * i + 1]), 1) for i in range(size)
        ]
        runner.run(batch_of([(sequence, 16) for sequence, _ in work], 16))
        rates[f"decode, batch {size}"] = rate(runner, work, steps=DECODE)
    return rates


def rate(runner: NumpyRunner, work: list[tuple[Sequence, int]], steps: int) -> float:
    """Tokens per second, each sequence's last row giving logits, as in llama.cpp's benchmarks."""
    start = time.perf_counter()
    for _ in range(steps):
        batch = batch_of(work, 16)
        runner.run(replace(batch, sample_rows=batch.query_start[1:] - 1))
    return steps * batch.num_tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main()

"""A file of prompts through the engine on any number of machines, with Ray Data.

    pip install "ray[data]"
    python examples/ray_batch.py prompts.txt answers.jsonl --workers 4

Each line of the file is a prompt; each line of the answer is a JSON object, in the same order. On
one machine this starts a local Ray; with RAY_ADDRESS set (or in a `ray job`) it runs where that
cluster is. A worker is a process with an engine of its own, so a worker per machine or per GPU is
enough: the engine fills its batch from the prompts that it is given. docs/scaling.md has the
arithmetic.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from tinyrvllm import LLM, SamplingParams, TinyrvllmError

PROMPTS_AT_ONCE = 256  # several times what runs at a time, so that the batch is rarely half empty


class Answer:
    """One worker: Ray makes it once, and calls it with batch after batch."""

    def __init__(self, model: str, device: str, max_tokens: int) -> None:
        self.llm = LLM(model, device)
        self.max_tokens = max_tokens

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """{"line", "prompt"}, arrays of one length, to the same with "text" and "error"."""
        started: list[Any] = []
        for line, prompt in zip(batch["line"], batch["prompt"], strict=True):
            # The seed is the line's, so that a run on other machines gives the same samples.
            params = SamplingParams(max_tokens=self.max_tokens, seed=int(line))
            try:
                started.append(self.llm.submit(str(prompt), params))
            except TinyrvllmError as error:  # this prompt is empty or too long: the others go on
                started.append(error)
        texts, errors = [], []
        for stream in started:
            try:
                texts.append("" if isinstance(stream, TinyrvllmError) else stream.finish().text)
                errors.append(str(stream) if isinstance(stream, TinyrvllmError) else "")
            except TinyrvllmError as error:
                texts.append(stream.output.text)
                errors.append(str(error))
        return {**batch, "text": np.array(texts, object), "error": np.array(errors, object)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", type=Path, help="a text file, a prompt a line")
    parser.add_argument("answers", type=Path, help="the JSON lines to write")
    parser.add_argument("--model", default="smollm2-135m", help="as in tinyrvllm.generate")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1, help="engines (default: %(default)s)")
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    args = parser.parse_args()

    import ray

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    lines = args.prompts.read_text(encoding="utf-8").splitlines()
    model = str(Path(args.model).resolve()) if Path(args.model).is_file() else args.model
    answers = ray.data.from_items(
        [{"line": number, "prompt": prompt} for number, prompt in enumerate(lines)]
    ).map_batches(
        Answer,
        fn_constructor_kwargs={
            "model": model, "device": args.device, "max_tokens": args.max_tokens,
        },
        batch_size=PROMPTS_AT_ONCE,
        compute=ray.data.ActorPoolStrategy(size=args.workers),
    )  # fmt: skip
    with args.answers.open("w", encoding="utf-8") as file:
        for row in answers.iter_rows():
            print(json.dumps(row, ensure_ascii=False), file=file)


if __name__ == "__main__":
    main()

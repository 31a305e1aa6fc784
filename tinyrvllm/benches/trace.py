"""One JSON line a step, of requests that arrive while others run."""

import json
import sys
import time
from collections.abc import Iterator, Sequence

from tinyrvllm.benches import common
from tinyrvllm.benches import greedy as engine
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import load

EPILOG = """\
Request i arrives at step a_i of --arrivals: there its prompt is fed, in the same step in which
those that came before decode one token each, all greedy. A request leaves when it has --tokens.
Each line is a step: requests that run, tokens fed, milliseconds. The last line is the checksum.

examples:
  python -m tinyrvllm.bench trace --arrivals 0,0,4,9 --tokens 16
  python -m tinyrvllm.bench trace --device soft --arrivals 0,2,4,6 --prompt-tokens 32 > trace.jsonl
"""


def main(argv: list[str]) -> int:
    parser = common.command("trace", __doc__.splitlines()[0], EPILOG)
    common.add_model(parser)
    common.add_work(parser)
    common.add_seed(parser)
    parser.add_argument(
        "--arrivals", default="0,0,4,8", metavar="A,B,...",
        help="the step at which each request arrives (default: %(default)s)",
    )
    parser.add_argument("--device", default="auto", help="where to run (default: %(default)s)")
    args = parser.parse_args(argv)
    arrivals = parse_arrivals(args.arrivals)
    model = load(common.model_path(args))
    length = args.prompt_tokens + args.tokens
    common.check_fits(length, model.config.context_length)
    greedy = engine.Greedy(model, args.device, len(arrivals), length)
    for line in trace(greedy, arrivals, args.prompt_tokens, args.tokens, args.seed):
        print(json.dumps(line))
        sys.stdout.flush()
    return 0


def parse_arrivals(text: str) -> list[int]:
    """ "0,0,4" -> [0, 0, 4]."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len(parts) > common.MAX_BATCH:
        raise TinyrvllmError(
            f"--arrivals {text!r}: expected 1 to {common.MAX_BATCH} step numbers, such as 0,0,4,8"
        )
    return [int(part) for part in parts]


def trace(
    greedy: engine.Greedy, arrivals: Sequence[int], prompt_tokens: int, tokens: int, seed: int
) -> Iterator[dict[str, object]]:
    """Runs the requests; a dict for each step in which some request ran, then the checksum."""
    waiting = sorted(range(len(arrivals)), key=lambda i: arrivals[i])
    requests = [
        engine.Sequence(engine.prompt(seed, i, prompt_tokens, greedy.vocab_size), slot=i)
        for i in range(len(arrivals))
    ]
    running: list[engine.Sequence] = []
    step = 0
    while waiting or running:
        while waiting and arrivals[waiting[0]] <= step:
            running.append(requests[waiting.pop(0)])
        if not running:
            step = arrivals[waiting[0]]
            continue
        work = [(sequence, len(sequence.ids) - sequence.cached) for sequence in running]
        start = time.perf_counter()
        greedy.step(work)
        ms = round(1e3 * (time.perf_counter() - start), 3)
        fed = sum(n for _, n in work)
        yield {"step": step, "running": len(running), "tokens": fed, "ms": ms}
        running = [s for s in running if len(s.ids) < prompt_tokens + tokens]
        step += 1
    yield {"checksum": engine.fnv1a([sequence.ids[prompt_tokens:] for sequence in requests])}

"""One JSON line a step, of requests that arrive while others run."""

import json
import sys
import time
from collections.abc import Iterator, Sequence

from tinyrvllm.benches import common
from tinyrvllm.benches.greedy import BLOCK_SIZE, Greedy, fnv1a, prompts
from tinyrvllm.benches.served import engine_for, greedy_request
from tinyrvllm.benches.served import step as engine_step
from tinyrvllm.cli.flags import add_model, model_path
from tinyrvllm.engine.block_pool import BlockPool
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import Model, load

EPILOG = """\
Request i arrives at step a_i of --arrivals: there the engine feeds its prompt, in the same step in
which those that came before decode one token each, all greedy. A request leaves when it has --tokens.
Each line is a step: requests that wait and that run, tokens fed, blocks of the cache that are held,
milliseconds. Steps in which there is nothing to do are left out. The last line is the checksum.

examples:
  python -m tinyrvllm.bench trace --arrivals 0,0,4,9 --tokens 16
  python -m tinyrvllm.bench trace --device soft --arrivals 0,2,4,6 --prompt-tokens 32 > trace.jsonl
"""


def main(argv: list[str]) -> int:
    parser = common.command("trace", __doc__.splitlines()[0], EPILOG)
    add_model(parser)
    common.add_work(parser)
    common.add_seed(parser)
    parser.add_argument(
        "--arrivals", default="0,0,4,8", metavar="A,B,...",
        help="the step at which each request arrives (default: %(default)s)",
    )
    parser.add_argument("--device", default="auto", help="where to run (default: %(default)s)")
    args = parser.parse_args(argv)
    arrivals = parse_arrivals(args.arrivals)
    model = load(model_path(args))
    length = args.prompt_tokens + args.tokens
    common.check_fits(length, model.config.context_length)
    greedy = Greedy(model, args.device, len(arrivals), length)
    for line in trace(model, greedy, arrivals, args.prompt_tokens, args.tokens, args.seed):
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
    model: Model,
    greedy: Greedy,
    arrivals: Sequence[int],
    prompt_tokens: int,
    tokens: int,
    seed: int,
) -> Iterator[dict[str, object]]:
    """Runs the requests; a dict for each step in which some request ran, then the checksum."""
    texts = prompts(seed, len(arrivals), prompt_tokens, greedy.vocab_size)
    requests = [greedy_request(model, i, ids, tokens) for i, ids in enumerate(texts)]
    coming = sorted(zip(arrivals, requests, strict=True), key=lambda pair: pair[0])
    pool = BlockPool(greedy.num_blocks, BLOCK_SIZE)
    engine = engine_for(model, greedy.runner, pool, len(arrivals))
    step = 0
    while coming or engine.has_work:
        if not engine.has_work:
            step = max(step, coming[0][0])
        while coming and coming[0][0] <= step:
            engine.add(coming.pop(0)[1])
        start = time.perf_counter()
        engine_step(engine)
        ms = round(1e3 * (time.perf_counter() - start), 3)
        state = engine.snapshot().state
        _, fed = state["recent_steps"][-1]
        yield {
            "step": step, "waiting": len(state["waiting"]), "running": len(fed),
            "tokens": state["rows"], "blocks": pool.num_blocks - pool.num_free, "ms": ms,
        }  # fmt: skip
        step += 1
    yield {"checksum": fnv1a([request.ids[prompt_tokens:] for request in requests])}

"""Do a device and the oracle write the same tokens, and if not, is it a bug?"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from tinyrvllm.benches import common
from tinyrvllm.benches.greedy import Greedy, fnv1a, prompt
from tinyrvllm.cli.flags import add_model, model_path
from tinyrvllm.model import Model, load

EPILOG = """\
The oracle is --device cpu: float32 numpy. Half-precision caches and tiles move logits a little,
and where the oracle's best two are closer than that, either may win: a coin flip. So where the
tokens differ, the prompt and the tokens until there are replayed on both, and the verdict is

  coin flip  the oracle's margin between the two tokens is at most twice the measured error,
             which is the largest difference of any logit at the positions before
  bug        it had a clear winner; or the error itself is too large for anything to be said by
             it: its root mean square is over 2 % of the logits' standard deviation

examples:
  python -m tinyrvllm.bench compare --device soft --batch 1 --batch 8 --tokens 16
  python -m tinyrvllm.bench compare --device metal --model my.gguf

exit status: 0 the same or coin flips, 1 a bug, 2 a mistake in the request
"""
# Root mean square, of the logits' standard deviation. Half precision gives 0.001 to 0.003; the
# largest of millions of differences can be 0.1 (Qwen2.5's keys are in the hundreds).
MAX_RELATIVE_ERROR = 0.02
REPLAYED = 64  # positions whose logits are compared, at most


@dataclass
class Flip:
    """The first difference of one sequence, with both sides' logits of both tokens."""

    batch: int
    sequence: int
    position: int  # among the generated tokens
    oracle_token: int
    device_token: int
    oracle_logits: tuple[float, float]  # of the oracle's token, of the device's
    device_logits: tuple[float, float]  # likewise
    margin: float  # by which the oracle preferred its own
    verdict: str = ""


@dataclass
class Report:
    """What was found; with --json this is the output."""

    device: str
    checksums: dict[int, tuple[str, str]] = field(default_factory=dict)  # batch -> cpu, device
    max_error: float = 0.0  # of any logit, where both had the same input
    rms_error: float = 0.0  # of the sequence where it was the worst
    standard_deviation: float = 0.0  # of the oracle's logits
    flips: list[Flip] = field(default_factory=list)

    @property
    def trusted(self) -> bool:
        """Whether the measured error is what rounding explains."""
        return self.rms_error <= MAX_RELATIVE_ERROR * self.standard_deviation

    @property
    def has_bug(self) -> bool:
        return not self.trusted or any(flip.verdict == "bug" for flip in self.flips)


def main(argv: list[str]) -> int:
    parser = common.command("compare", __doc__, EPILOG)
    add_model(parser)
    common.add_batch(parser)
    common.add_work(parser)
    common.add_seed(parser)
    parser.add_argument(
        "--device", default="soft", help="what to hold against cpu (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    model = load(model_path(args))
    common.check_fits(args.prompt_tokens + args.tokens, model.config.context_length)
    batches = args.batch or list(common.BATCHES)
    report = compare(model, args.device, batches, args.prompt_tokens, args.tokens, args.seed)
    common.progress("")
    if args.json:
        print(json.dumps(asdict(report) | {"has_bug": report.has_bug}, indent=1))
    else:
        print(as_text(report))
    return int(report.has_bug)


def compare(
    model: Model, device: str, batches: Sequence[int], prompt_tokens: int, tokens: int, seed: int = 0
) -> Report:
    """Generates on both at each batch size, and judges every sequence's first difference."""
    size = max(batches), prompt_tokens + tokens
    oracle, other = Greedy(model, "cpu", *size), Greedy(model, device, *size)
    report = Report(device)
    for batch in batches:
        common.progress(f"batch {batch}")
        prompts = [prompt(seed, i, prompt_tokens, oracle.vocab_size) for i in range(batch)]
        expected = oracle.generate(prompts, tokens).tokens
        found = other.generate(prompts, tokens).tokens
        report.checksums[batch] = fnv1a(expected), fnv1a(found)
        if batch == batches[0]:
            measure(report, oracle, other, prompts[0] + expected[0][:-1])
        for i, (want, got) in enumerate(zip(expected, found, strict=True)):
            if want != got:
                flip = replay(report, oracle, other, prompts[i], want, got)
                flip.batch, flip.sequence = batch, i
                report.flips.append(flip)
    for flip in report.flips:
        is_coin_flip = report.trusted and flip.margin <= 2 * report.max_error
        flip.verdict = "coin flip" if is_coin_flip else "bug"
    return report


def measure(
    report: Report, oracle: Greedy, other: Greedy, ids: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Both sides' logits after the last tokens of `ids`; all but the last count as measured."""
    first = max(0, len(ids) - REPLAYED)
    a, b = oracle.logits(ids, first), other.logits(ids, first)
    if len(ids) > 1:
        error = np.nan_to_num(np.abs(a[:-1] - b[:-1]), nan=np.inf)
        report.max_error = max(report.max_error, float(error.max()))
        report.rms_error = max(report.rms_error, float(np.sqrt(np.mean(np.square(error)))))
        report.standard_deviation = max(report.standard_deviation, float(a[:-1].std()))
    return a[-1], b[-1]


def replay(
    report: Report, oracle: Greedy, other: Greedy, prompt: list[int], want: list[int], got: list[int]
) -> Flip:
    """The logits behind the first difference of two continuations of a prompt."""
    position = common.equal_beginning(want, got)
    tokens = want[position], got[position]
    a, b = measure(report, oracle, other, prompt + want[:position])
    oracle_logits, device_logits = (float(a[tokens[0]]), float(a[tokens[1]])), (
        float(b[tokens[0]]), float(b[tokens[1]]),
    )  # fmt: skip
    margin = oracle_logits[0] - oracle_logits[1]
    return Flip(0, 0, position, *tokens, oracle_logits, device_logits, margin)


def as_text(report: Report) -> str:
    head = ("batch", "cpu", report.device, "")
    rows = [
        (str(batch), a, b, "same" if a == b else "differs")
        for batch, (a, b) in report.checksums.items()
    ]
    lines = [common.table(head, rows), ""]
    lines.append(
        f"largest difference of a logit {report.max_error:.2g}, RMS {report.rms_error:.2g}, "
        f"standard deviation of the logits {report.standard_deviation:.2g}"
    )
    if not report.trusted:
        lines.append(
            f"bug: an RMS over {MAX_RELATIVE_ERROR:.0%} of that is more than rounding explains"
        )
    for flip in report.flips:
        lines.append(
            f"{flip.verdict}: batch {flip.batch}, sequence {flip.sequence}, generated token "
            f"{flip.position}: cpu {flip.oracle_token} (logits {flip.oracle_logits[0]:.4f} against "
            f"{flip.oracle_logits[1]:.4f}), {report.device} {flip.device_token} (its logits "
            f"{flip.device_logits[0]:.4f} against {flip.device_logits[1]:.4f}); "
            f"cpu's margin {flip.margin:.4f}"
        )
    return "\n".join(lines)

"""What every bench command shares: how to name a model, tables, progress.

Imports nothing slow, so that --help is quick and `peers` can set BLAS threads before numpy loads.
"""

import argparse
import sys
from collections.abc import Sequence

from tinyrvllm.errors import TinyrvllmError

BATCHES = (1, 4, 8, 16, 32)
MAX_BATCH = 64  # sequences that may hold a convolution state at a time


def command(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """The parser of a bench command, with --json."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tinyrvllm.bench {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def add_batch(parser: argparse.ArgumentParser, default: Sequence[int] = BATCHES) -> None:
    """--batch, repeatable."""
    parser.add_argument(
        "--batch", type=positive(MAX_BATCH), action="append", metavar="N",
        help=f"sequences at a time, repeatable (default: {' '.join(map(str, default))})",
    )  # fmt: skip


def add_work(
    parser: argparse.ArgumentParser, prompt_tokens: int = 128, tokens: int = 64
) -> None:
    """--prompt-tokens and --tokens: the original's work by default."""
    parser.add_argument(
        "--prompt-tokens", type=positive(), default=prompt_tokens, metavar="N",
        help="length of each prompt (default: %(default)s)",
    )
    parser.add_argument(
        "--tokens", type=positive(), default=tokens, metavar="N",
        help="tokens to generate for each (default: %(default)s)",
    )  # fmt: skip


def add_seed(parser: argparse.ArgumentParser) -> None:
    """--seed of the random prompts."""
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="prompt i depends only on the seed and i (default: %(default)s)",
    )  # fmt: skip


class positive:
    """An argparse type: a whole number from 1 to `limit`."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit

    def __call__(self, text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= self.limit:
            raise argparse.ArgumentTypeError(f"expected 1 to {self.limit:,}, found {text!r}")
        return int(text)


def check_fits(tokens: int, context_length: int) -> None:
    """Raises a TinyrvllmError when a prompt and its answer exceed the model's context."""
    if tokens > context_length:
        raise TinyrvllmError(
            f"prompt and answer take {tokens:,} tokens, this model's context is "
            f"{context_length:,}: lower --prompt-tokens or --tokens"
        )


def equal_beginning(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens before the first that differs, of two sequences of one length."""
    pairs = enumerate(zip(first, second, strict=True))
    return next((i for i, (a, b) in pairs if a != b), len(first))


def progress(text: str) -> None:
    """A line that the next one overwrites; on terminals only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with its columns in line."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in (head, rule, *rows)
    )

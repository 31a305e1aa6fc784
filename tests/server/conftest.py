"""A server on a real socket, in a thread of this process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from tests.tiny_models import write_model
from tinyrvllm import LLM
from tinyrvllm.runner.options import Options
from tinyrvllm.serve import listen
from tinyrvllm.server.app import create_app

HANG_SECONDS = 300


def wait_until(condition: Callable[[], object]) -> None:
    """Looks at a condition until it holds; the limit is a hang guard."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def assert_nothing_is_held(llm: LLM) -> None:
    """Waits until the engine is idle; then no block may be held by anybody."""

    def is_idle() -> bool:
        snapshot = llm.snapshot()
        return not snapshot["running"] and not snapshot["waiting"]

    wait_until(is_idle)
    llm.check()
    assert not [block for block in llm.snapshot()["blocks"] if block["refs"]]


class Live:
    """A running server: `url`, and the `llm` behind it."""

    def __init__(self, llm: LLM, url: str) -> None:
        self.llm, self.url = llm, url
        self.http = httpx.Client(base_url=url, timeout=HANG_SECONDS, verify=False)

    def client(self, api_key: str = "none") -> Any:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, http_client=self.http
        )


@contextmanager
def serving(llm: LLM, name: str = "tiny", **options: Any) -> Iterator[Live]:
    """Serves an LLM, then closes both; nothing may be left in the pool."""
    listener = listen("127.0.0.1", 0)
    listener.listen()  # clients may come before the thread is up
    config = uvicorn.Config(
        create_app(llm, name, **options), log_level="error", lifespan="off",
        timeout_graceful_shutdown=HANG_SECONDS,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        live = Live(llm, f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield live
        live.http.close()
        if llm.is_usable:
            assert_nothing_is_held(llm)
    finally:
        server.should_exit = True
        thread.join(HANG_SECONDS)
        llm.close()
    assert not thread.is_alive()


@contextmanager
def held(llm: LLM) -> Iterator[None]:
    """The engine makes no step until the block ends; requests are taken all the same."""
    gate = threading.Event()
    holding = threading.Thread(target=llm._worker.call, args=(lambda _: gate.wait(),))
    holding.start()
    try:
        yield
    finally:
        gate.set()
        holding.join()


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="package")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for a million tokens: its requests run until somebody ends them."""
    path = tmp_path_factory.mktemp("models") / "endless.gguf"
    return write_model(path, keys={"{arch}.context_length": 1 << 20})


def invariant_llm(path: Path, **options: Any) -> LLM:
    """An engine whose answers do not depend on the batch."""
    return LLM(path, device="cpu", options=Options(batch_invariant=True), **options)


@pytest.fixture(scope="package")
def live(tiny: Path) -> Iterator[Live]:
    with serving(invariant_llm(tiny)) as server:
        yield server

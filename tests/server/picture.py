"""Takes the picture of docs/serving.md: python -m tests.server.picture docs/images/page.png."""

import sys
import threading
from pathlib import Path

from tests.server.browser import Browser, find_chromium
from tests.server.conftest import serving
from tests.server.test_page import FREEZE
from tinyrvllm import LLM

QUESTIONS = (
    "Tell me about the sea, the wind and the stars, as a sailor would who has seen them all. " * 3,
    "List the planets in their order from the sun, and say of each what it is made of. " * 2,
    "Why is the grass green?",
)


def take(path: Path) -> None:
    program = find_chromium()
    assert program is not None, "no Chromium here"
    llm = LLM("smollm2-135m", device="cpu", num_blocks=18, max_running=6, token_budget=16)
    with serving(llm, "smollm2-135m") as live, Browser(program, 1440, 940, 1800) as page:
        page.open(live.url)
        page.wait("latest")
        page.js("$('max').value = 24; $('seed').value = 4")
        page.js("$('prompt').value = 'Why is the sky blue? Answer in one sentence.'")
        page.js("$('form').requestSubmit()")
        page.wait("!running && document.querySelectorAll('.turn.model .chip').length")
        page.js(FREEZE)
        page.js("$('max').value = 64; $('burst').click()")
        over = threading.Event()

        def ask(question: str) -> None:
            body = {"prompt": question, "max_tokens": 60, "ignore_eos": True}
            while not over.is_set():
                answer = live.http.post("/v1/completions", json=body, timeout=None)
                assert answer.status_code == 200

        threads = [threading.Thread(target=ask, args=(question,)) for question in QUESTIONS]
        for thread in threads:
            thread.start()
        page.wait("frozen")
        page.screenshot(path)
        over.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    take(Path(sys.argv[1]))

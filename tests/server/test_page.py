"""The page in a real browser, over a real server, while a batch runs."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.browser import Browser, find_chromium
from tests.server.conftest import HANG_SECONDS, Live, invariant_llm, serving, wait_until
from tinyrvllm import LLM

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="this machine has no Chromium (Debian: apt-get install chromium)"
)
BEGINNING = "All these requests begin alike, so that they share the blocks of these words. "

# What a picture must show, as conditions on the state that the page drew last.
EVERYTHING = """
latest && latest.running.some(r => r.phase === "prefill" && r.rows > 1)
  && latest.running.filter(r => r.phase === "decode").length > 1
  && latest.waiting.some(r => !r.preempted)
  && (latest.waiting.some(r => r.preempted) || latest.running.some(r => r.preemptions))
  && document.querySelectorAll("#shared .chip").length > 1
"""
# Freezes the page the moment that it shows all that.
FREEZE = f"""
(() => {{
  const drawn = draw;
  draw = state => {{ drawn(state); if (!frozen && ({EVERYTHING})) $("freeze").click(); }};
}})()
"""


@contextmanager
def browser(width: int = 1440, height: int = 900) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, width, height) as page:
        yield page
        assert page.problems == []


@contextmanager
def crowd(live: Live, clients: int) -> Iterator[None]:
    """Clients that ask on and on, until the block ends."""
    over, numbers = threading.Event(), itertools.count()

    def ask() -> None:
        while not over.is_set():
            number = next(numbers)
            body = {
                "prompt": BEGINNING + f"Number {number}. " * (1 + number * 5 % 9),
                "max_tokens": 60 + number * 37 % 160, "ignore_eos": True,
            }  # fmt: skip
            assert live.http.post("/v1/completions", json=body).status_code == 200

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(HANG_SECONDS)


def test_the_page_shows_who_does_what(endless: Path) -> None:
    """Prefilling, decoding, waiting, preempted, shared blocks: all of it in words and numbers."""
    llm = LLM(endless, device="cpu", num_blocks=32, max_running=6, token_budget=8)
    with serving(llm) as live, browser() as page:
        page.open(live.url)
        page.wait("latest")
        page.js(FREEZE)
        with crowd(live, 9):
            page.wait("frozen")
        words = page.js("document.querySelector('#requests').innerText")
        for word in ("prefilling", "decoding", "waiting", "preempted"):
            assert word in words
        assert "prefills" in page.js("$('step').innerText")
        assert page.js("$('shared').innerText").startswith("Shared now: block")
        figures = page.js("$('figures').innerText").split("\n")
        figures = dict(zip(figures[1::2], figures[::2], strict=True))
        assert figures["running"] == page.js("String(latest.running.length)")
        assert int(figures["preemptions"]) > 0
        assert figures["blocks held"].endswith("/32")
        # Nothing is cut off, wide or narrow.
        for width in (1440, 1024, 390):
            page.resize(width, 900)
            page.js("document.querySelector('nav button[data-view=engine]').click()")
            assert page.js("document.documentElement.scrollWidth") <= width
            assert page.js("$('engine').scrollWidth <= $('engine').clientWidth")


def test_a_conversation_in_the_page(tiny: Path) -> None:
    with serving(invariant_llm(tiny)) as live, browser() as page:
        page.open(live.url)
        page.wait("latest")
        page.js("$('max').value = 12; $('seed').value = 1")
        for turn in (1, 2):
            page.js("$('prompt').value = '<b>Hello</b>'; $('form').requestSubmit()")
            # The note of tokens and seconds comes last.
            page.wait(f"document.querySelectorAll('.turn.model .who').length === {turn} && !running"
                      " && /second|stopped/.test($('log').lastChild.innerText)")  # fmt: skip
        assert page.js("document.querySelectorAll('.turn.user b').length") == 0  # text, no markup
        assert page.js("messages.length") == 4
        said = page.js("messages[1].content")
        first = [{"role": "user", "content": "<b>Hello</b>"}]
        answer = live.http.post("/v1/chat/completions", json={
            "messages": first, "temperature": 0.7, "max_tokens": 12, "seed": 1,
        })  # fmt: skip
        assert said == answer.json()["choices"][0]["message"]["content"]


def test_stop_ends_the_request(endless: Path) -> None:
    llm = LLM(endless, device="cpu", num_blocks=8192)
    with serving(llm) as live, browser() as page:
        page.open(live.url)
        page.wait("latest")
        page.js("(all => { settings = () => ({...all(), ignore_eos: true}) })(settings)")
        page.js("$('max').value = 130000; $('mode').value = 'text'; $('prompt').value = 'Hello'")
        page.js("$('form').requestSubmit()")
        page.wait("document.querySelector('.turn.model .text')?.textContent.length > 3")
        page.js("$('form').requestSubmit()")  # the button says Stop
        wait_until(lambda: not llm.snapshot()["running"])
        page.wait("$('log').lastChild.innerText.includes('stopped')")


def test_six_at_once_share_blocks(tiny: Path) -> None:
    with serving(invariant_llm(tiny)) as live, browser() as page:
        page.open(live.url)
        page.wait("latest")
        page.js("$('max').value = 20; $('burst').click()")
        page.wait("!running && document.querySelectorAll('.fan .chip').length === 6")
        assert live.llm.snapshot()["totals"]["requests_finished"] == 6


def test_the_page_asks_for_the_key(tiny: Path) -> None:
    with serving(invariant_llm(tiny), api_key="secret") as live, browser() as page:
        page.open(live.url)
        page.wait("!$('keyform').hidden")
        page.js("$('key').value = 'secret'; $('keyform').requestSubmit()")
        page.wait("latest && latest.model === 'tiny' && $('keyform').hidden")

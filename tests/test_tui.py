"""The full-screen terminal, driven by textual's pilot."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from tests.tiny_models import write_model
from tinyrvllm import LLM, SamplingParams
from tinyrvllm.cli.flags import parser
from tinyrvllm.tui import ModelPicker, TerminalUI, engine_panel, models_in

HANG_SECONDS = 300
ENDLESS = SamplingParams(max_tokens=130_000, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models and a file that is none."""
    path = tmp_path_factory.mktemp("models")
    write_model(path / "tiny.gguf")
    (path / "deep").mkdir()
    write_model(path / "deep" / "endless.gguf", keys={"{arch}.context_length": 1 << 20})
    (path / "broken.gguf").write_bytes(b"GGUF")
    return path


def open_llm(name: str) -> LLM:
    return LLM(name, device="cpu", num_blocks=8192 if "endless" in name else None)


def drive(app: TerminalUI, scene: Callable[[Pilot[None]], object]) -> None:
    async def run() -> None:
        async with asyncio.timeout(HANG_SECONDS), app.run_test(size=(120, 40)) as pilot:
            await scene(pilot)

    asyncio.run(run())


async def wait(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    while not condition():
        await pilot.pause(0.01)


def words(app: TerminalUI, kind: str) -> list[str]:
    """The paragraphs of a kind in the conversation."""
    return [str(paragraph.render()) for paragraph in app.query(f"#log .{kind}").results(Static)]


async def ready(pilot: Pilot[None]) -> None:
    await wait(pilot, lambda: not pilot.app.query_one(Input).disabled)


async def ask(pilot: Pilot[None], text: str) -> None:
    pilot.app.query_one(Input).value = text
    await pilot.press("enter")


def test_pick_a_model_and_chat(folder: Path) -> None:
    params = SamplingParams(max_tokens=10, temperature=0)
    app = TerminalUI(folder, open_llm, params, system="Be brief")

    async def scene(pilot: Pilot[None]) -> None:
        await wait(pilot, lambda: isinstance(app.screen, ModelPicker))
        options = app.screen.query_one(OptionList)
        names = [options.get_option_at_index(n).id for n in range(options.option_count)]
        options.highlighted = names.index(str(folder / "tiny.gguf"))
        await pilot.press("enter")
        await ready(pilot)
        await ask(pilot, "Hello [b]")
        await wait(pilot, lambda: len(app.messages) == 3)
        await ask(pilot, "And now?")
        await wait(pilot, lambda: len(app.messages) == 5)
        assert words(app, "user") == ["> Hello [b]", "> And now?"]
        with open_llm(str(folder / "tiny.gguf")) as llm:
            for count, said in ((2, words(app, "answer")[0]), (4, words(app, "answer")[1])):
                assert llm.chat(app.messages[:count], params).finish().text == said
        await pilot.press("ctrl+n")
        await wait(pilot, lambda: not words(app, "user"))
        assert app.messages == [{"role": "system", "content": "Be brief"}]

    drive(app, scene)


def test_escape_stops_the_answer_and_not_the_program(folder: Path) -> None:
    path = str(folder / "deep" / "endless.gguf")
    app = TerminalUI(folder, open_llm, ENDLESS, model=path)

    async def scene(pilot: Pilot[None]) -> None:
        await ready(pilot)
        await ask(pilot, "Hello")
        await wait(pilot, lambda: any(words(app, "answer")))
        panel = app.query_one("#engine", Static)
        await wait(pilot, lambda: "decode" in str(panel.render()))
        await pilot.press("escape")
        await wait(pilot, lambda: "(stopped)" in words(app, "note"))
        assert app.llm is not None
        await wait(pilot, lambda: not app.llm.snapshot()["running"])
        assert len(app.messages) == 2
        await ask(pilot, "Again")
        await wait(pilot, lambda: len(words(app, "answer")) == 2 and words(app, "answer")[1])

    drive(app, scene)


def test_a_model_that_cannot_be_opened_is_said(folder: Path) -> None:
    app = TerminalUI(folder, open_llm, ENDLESS, model=str(folder / "broken.gguf"))

    async def scene(pilot: Pilot[None]) -> None:
        await wait(pilot, lambda: words(app, "error"))
        assert "broken.gguf" in words(app, "error")[0]
        assert app.query_one(Input).disabled

    drive(app, scene)


def test_another_model_takes_the_place_of_the_first(folder: Path) -> None:
    app = TerminalUI(folder, open_llm, ENDLESS, model=str(folder / "tiny.gguf"))

    async def scene(pilot: Pilot[None]) -> None:
        await ready(pilot)
        first = app.llm
        assert first is not None
        app.load(str(folder / "deep" / "endless.gguf"))
        await wait(pilot, lambda: app.llm is not first)
        assert not first.is_usable
        assert app.sub_title == "endless.gguf"

    drive(app, scene)


def test_models_of_a_folder(folder: Path) -> None:
    names = [Path(name).name for name, _ in models_in(folder)]
    assert names[:3] == ["broken.gguf", "endless.gguf", "tiny.gguf"]
    assert "smollm2-135m" in names


def test_the_panel_names_all_that_happens() -> None:
    running = {
        "id": "r-1", "phase": "prefill", "prompt_tokens": 60, "computed_tokens": 32,
        "generated_tokens": 0, "rows": 16, "cached_tokens": 16, "blocks": [0, 1], "preemptions": 0,
    }  # fmt: skip
    other = running | {"id": "r-2", "phase": "decode", "blocks": [0, 2]}
    snapshot = {
        "step": 9, "rows": 17, "running": [running, other], "num_blocks": 5, "block_size": 16,
        "waiting": [{"id": "r-3", "prompt_tokens": 7, "preempted": True}],
        "blocks": [{"refs": n, "cached": c} for n, c in [(2, 1), (1, 1), (1, 0), (0, 1), (0, 0)]],
        "totals": {"prefix_queries": 10, "prefix_hits": 5, "preemptions": 1},
    }  # fmt: skip
    events = [(8, "preempt", "r-3", "7 tokens to feed again")]
    text = engine_panel(snapshot, events, 12.0).plain
    for wanted in (
        "step 9", "17 tokens at once, 12 a second", "50 % prefix hits, 1 preemptions",
        "#1     prefill 32/60 + 0", "#2     decode", "#3     preempted", "blocks: 3 of 5 held",
        "▣■■▒·", "preempt 7 tokens to feed again",
    ):  # fmt: skip
        assert wanted in text


def test_a_named_model_is_opened_at_once(folder: Path) -> None:
    flags = ["--tui", str(folder), "--model", str(folder / "tiny.gguf"), "--device", "cpu"]
    app = TerminalUI.of_flags(parser().parse_args(flags))

    async def scene(pilot: Pilot[None]) -> None:
        await wait(pilot, lambda: "tiny.gguf is ready" in words(app, "note"))

    drive(app, scene)

"""The full-screen terminal: choose a model, chat, and watch the engine (the [tui] extra)."""

import argparse
import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from tinyrvllm import hub
from tinyrvllm.cli.flags import device_options, model_path, open_llm, sampling_params
from tinyrvllm.engine.request import Delta
from tinyrvllm.engine.sampler import SamplingParams
from tinyrvllm.errors import TinyrvllmError

if TYPE_CHECKING:
    from tinyrvllm.engine.llm import LLM, Stream

COLOURS = ("#5aa9e6", "#f28f79", "#5fc59b", "#b794f4", "#e0b04c", "#4cc3d9", "#e58ab5", "#9bbf5a")
REFRESH_SECONDS = 0.2
MAX_BLOCKS = 512  # drawn; a screen has no room for more


def models_in(folder: Path) -> list[tuple[str, str]]:
    """(what to open, what to show) for each GGUF file below a folder, and each built-in name."""
    found = []
    for path in sorted(folder.expanduser().rglob("*.gguf")):
        size = path.stat().st_size / 1e6
        found.append((str(path), f"{path.relative_to(folder.expanduser())}  {size:,.0f} MB"))
    built_in = ((name, f"{name}  built in, {m.licence}") for name, m in hub.BUILT_IN.items())
    return found + list(built_in)


class ModelPicker(Screen[str]):
    """A list of models; the one chosen is the screen's result."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def compose(self) -> ComposeResult:
        yield Static(f"Models in {self.folder}; Enter opens one", classes="title")
        yield OptionList(*(Option(shown, id=name) for name, shown in models_in(self.folder)))
        yield Footer()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


class TerminalUI(App[None]):
    """The application. `open_llm` makes an engine of what the picker gives; it may take long."""

    TITLE = "tinyrvllm"
    CSS = """
    .title { padding: 1 2; text-style: bold; }
    #chat { width: 3fr; }
    #engine { width: 2fr; border-left: solid $panel; padding: 0 1; }
    #log { padding: 0 1; }
    .user { margin: 1 0 0 0; text-style: bold; }
    .note { color: $text-muted; }
    .error { color: $error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "stop", "Stop the answer"),
        ("ctrl+n", "reset", "New conversation"),
        ("ctrl+o", "pick", "Another model"),
        ("ctrl+q", "quit", "Quit"),
    ]

    def __init__(
        self,
        folder: Path,
        open_llm: "Callable[[str], LLM]",
        params: SamplingParams,
        system: str | None = None,
        model: str | None = None,  # opened at once
    ) -> None:
        super().__init__()
        self.folder, self.open_llm, self.params, self.model = folder, open_llm, params, model
        self.opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.opening)
        self.llm: LLM | None = None
        self.stream: Stream | None = None
        self._rate = Rate()
        self._talk = VerticalScroll(id="log")
        self._field = Input(placeholder="Ask something", disabled=True)
        self._panel = Static(id="engine")

    @classmethod
    def of_flags(cls, args: argparse.Namespace) -> "TerminalUI":
        """What generate --tui runs. Raises TinyrvllmError for a mistake in the flags."""
        if not args.tui.expanduser().is_dir():
            raise TinyrvllmError(f"--tui: expected a folder with models, found {args.tui}")
        device_options(args)

        def open_model(name: str) -> "LLM":
            return open_llm(hub.resolve(name), args)

        model = str(model_path(args)) if args.model or args.hf or args.shape else None
        return cls(args.tui, open_model, sampling_params(args), args.system, model)

    def compose(self) -> ComposeResult:
        with Horizontal():
            with Vertical(id="chat"):
                yield self._talk
                yield self._field
            yield self._panel
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(REFRESH_SECONDS, self.show_engine)
        self.load(self.model) if self.model else self.action_pick()

    def on_unmount(self) -> None:
        if self.llm:
            self.llm.close()

    # ---- models

    def action_pick(self) -> None:
        self.action_stop()
        self.push_screen(ModelPicker(self.folder), self.picked)

    def picked(self, name: str | None) -> None:
        if name:
            self.load(name)

    @work(thread=True, exclusive=True, group="load")
    def load(self, name: str) -> None:
        """Opens a model in a thread: the screen goes on."""
        self.call_from_thread(self.say, f"opening {Path(name).name} ...", "note")
        try:
            llm = self.open_llm(name)
        except TinyrvllmError as error:
            self.call_from_thread(self.say, str(error), "error")
            return
        self.call_from_thread(self.use, llm, Path(name).name)

    def use(self, llm: "LLM", name: str) -> None:
        if self.llm:
            self.llm.close()
        self.llm, self.sub_title = llm, name
        self.action_reset()
        self.say(f"{name} is ready", "note")
        self._field.disabled = False
        self._field.focus()

    # ---- chat

    def say(self, text: str, kind: str) -> Static:
        """A paragraph at the end of the conversation."""
        paragraph = Static(text, classes=kind, markup=False)
        if self._talk.is_attached:  # not while the program ends
            self._talk.mount(paragraph)
            self._talk.scroll_end(animate=False)
        return paragraph

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() and self.stream is None:
            event.input.clear()
            self.answer(event.value)

    @work(exclusive=True, group="answer")
    async def answer(self, text: str) -> None:
        """Streams the answer to a message."""
        assert self.llm is not None
        self.say(f"> {text}", "user")
        before = self.messages
        asked = [*before, {"role": "user", "content": text}]
        arrived: asyncio.Queue[Delta] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def take(delta: Delta) -> None:  # in the engine's thread
            loop.call_soon_threadsafe(arrived.put_nowait, delta)

        try:
            ids = self.llm.model.encode_chat(asked)
            self.stream = self.llm.submit(ids, self.params, callback=take)
        except TinyrvllmError as error:
            self.say(str(error), "error")
            return
        said, paragraph, reason = "", self.say("", "answer"), None
        try:
            while not reason:
                delta = await arrived.get()
                said, reason = said + delta.text, delta.finish_reason
                if not arrived.empty():
                    continue  # drawn with what came since
                paragraph.update(Text(said))
                self._talk.scroll_end(animate=False)
                if delta.error:
                    self.say(delta.error, "error")
        finally:
            self.stream.abort()
            self.stream = None
        if reason == "abort":
            self.say("(stopped)", "note")
        if self.messages is before:  # no new conversation was begun meanwhile
            self.messages = [*asked, {"role": "assistant", "content": said}]

    def action_stop(self) -> None:
        if self.stream:
            self.stream.abort()

    def action_reset(self) -> None:
        self.action_stop()
        self.messages = list(self.opening)
        self._talk.remove_children()

    # ---- the engine

    def show_engine(self) -> None:
        if self.llm:
            snapshot: dict[str, Any] = self.llm.snapshot()
            rate = self._rate.add(snapshot["totals"]["generation_tokens"])
            self._panel.update(engine_panel(snapshot, self.llm.events(), rate))


class Rate:
    """Tokens per second over the last three seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def add(self, tokens: int) -> float:
        now = time.monotonic()
        self._seen = [(when, n) for when, n in self._seen if when > now - 3] + [(now, tokens)]
        then, before = self._seen[0]
        return (tokens - before) / (now - then) if now > then else 0.0


def engine_panel(snapshot: dict[str, Any], events: list[Any], rate: float) -> Text:
    """`LLM.snapshot()` and `LLM.events()` as text: figures, requests, blocks, what happened."""
    totals, running = snapshot["totals"], snapshot["running"]
    text, title = Text(), "bold"
    text.append(f"step {snapshot['step']:,}", title)
    text.append(f"  {snapshot['rows']} tokens at once, {rate:.0f} a second\n")
    hits = 100 * totals["prefix_hits"] / max(1, totals["prefix_queries"])
    text.append(f"{hits:.0f} % prefix hits, {totals['preemptions']} preemptions\n\n", "dim")
    text.append("requests\n", title)
    for request in running:
        prefills = request["phase"] == "prefill"
        fed = min(request["computed_tokens"], request["prompt_tokens"])
        text.append(" ■ ", colour(request["id"]))
        text.append(f"{short(request['id']):<6} {'prefill' if prefills else 'decode ':<8}")
        text.append(f"{fed}/{request['prompt_tokens']} + {request['generated_tokens']}\n", "dim")
    for request in snapshot["waiting"]:
        state = "preempted" if request["preempted"] else "waiting"
        text.append(f" □ {short(request['id']):<6} {state:<9}", "yellow")
        text.append(f"{request['prompt_tokens']}\n", "dim")
    if not running and not snapshot["waiting"]:
        text.append(" none\n", "dim")
    text.append_text(_blocks(snapshot))
    text.append("\nwhat happened\n", title)
    for step, kind, id, detail in [e for e in events if e[1] != "prefill"][-8:][::-1]:
        text.append(f" {step:>6} ", "dim")
        text.append(short(id), colour(id))
        text.append(f" {kind} {detail}\n", "yellow" if kind == "preempt" else "")
    return text


def _blocks(snapshot: dict[str, Any]) -> Text:
    holders: dict[int, str] = {}
    for request in snapshot["running"]:
        for block in request["blocks"]:
            holders.setdefault(block, request["id"])
    blocks = snapshot["blocks"]
    held = sum(block["refs"] > 0 for block in blocks)
    text = Text(f"\nblocks: {held} of {len(blocks)} held\n ", "bold")
    for number, block in enumerate(blocks[:MAX_BLOCKS]):
        if block["refs"] > 1:
            text.append("▣", colour(holders.get(number, "")))
        elif block["refs"]:
            text.append("■", colour(holders.get(number, "")))
        else:
            text.append("▒" if block["cached"] else "·", "dim")
        if number % 32 == 31:
            text.append("\n ")
    text.append("\n ■ held  ▣ shared  ▒ remembered  · free\n", "dim")
    return text


def colour(id: str) -> str:
    """One colour for a request, wherever it is drawn."""
    return COLOURS[sum(id.encode()) % len(COLOURS)]


def short(id: str) -> str:
    """The end of an id, which tells requests apart."""
    return "#" + id.rsplit("-", 1)[-1][-6:]

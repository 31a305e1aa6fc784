"""The server's routes: what each path does with the engine."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tinyrvllm.engine.llm import LLM
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.server.answers import Answers
from tinyrvllm.server.body import APIError, Body
from tinyrvllm.server.http import (
    EventStream,
    KeyCheck,
    answer_error,
    json_response,
    read_json,
    to_bytes,
)
from tinyrvllm.server.metrics import CONTENT_TYPE, Metrics
from tinyrvllm.server.protocol import (
    MAX_CHOICES,
    Asked,
    read_chat,
    read_completion,
    read_messages,
    read_prompts,
)
from tinyrvllm.server.wire import Chat, Completion

PAGE: Final = Path(__file__).with_name("page.html")
MAX_BODY_BYTES: Final = 4 << 20
KEEP_ALIVE_SECONDS: Final = 10.0
MAX_EVENTS: Final = 300
DEFAULT_COMPLETION_TOKENS: Final = 16  # OpenAI's; a chat answer may fill the context


def create_app(
    llm: LLM,
    model_name: str,
    api_key: str | None = None,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    keep_alive: float = KEEP_ALIVE_SECONDS,
) -> Starlette:
    """The ASGI application over an engine. The caller closes the engine.

    Its `state.end_all()`, called in the event loop's thread, cuts all running answers short.

    Args:
        model_name: what clients call the model.
        api_key: if given, every path but / and /health needs it.
        keep_alive: seconds of silence after which a stream gets a comment.
    """
    server = Server(llm, model_name, max_body_bytes, keep_alive)
    errors = (APIError, HTTPException, ClientDisconnect, Exception)
    app = Starlette(
        routes=server.routes(),
        middleware=[Middleware(KeyCheck, key=api_key)] if api_key else [],
        exception_handlers=dict.fromkeys(errors, answer_error),
    )
    app.state.end_all = server.end_all
    return app


class Server:
    """The handlers; each is one path."""

    def __init__(
        self, llm: LLM, model_name: str, max_body_bytes: int, keep_alive: float
    ) -> None:
        self._llm, self._name = llm, model_name
        self._max_body_bytes, self._keep_alive = max_body_bytes, keep_alive
        self._metrics = Metrics(model_name, llm.context_length)
        self._active: WeakSet[Answers] = WeakSet()
        self._started = int(time.time())
        # Never more than an idle engine takes, or they would be told to come back for ever.
        room = MAX_CHOICES if llm.max_queue is None else llm.max_running + llm.max_queue
        self._max_choices = min(MAX_CHOICES, room)
        # Ids differ between servers, and inside one they count, as the page shows them.
        self._salt, self._numbers = secrets.token_hex(4), itertools.count(1)

    def routes(self) -> list[Route]:
        get = {
            "/": self.page,
            "/health": self.health,
            "/metrics": self.metrics,
            "/engine": self.engine,
            "/v1/models": self.models,
            "/v1/models/{model:path}": self.model,
        }
        post = {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }
        routes = [Route(path, handler, methods=["GET"]) for path, handler in get.items()]
        return routes + [Route(path, handler, methods=["POST"]) for path, handler in post.items()]

    def end_all(self) -> None:
        for answers in list(self._active):
            answers.end()

    # ---- what shows the server

    async def page(self, request: Request) -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._llm.is_usable else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(self._llm.snapshot()), media_type=CONTENT_TYPE)

    async def engine(self, request: Request) -> Response:
        """The last steps of the engine and its recent events, for the page."""
        snapshot: dict[str, Any] = self._llm.snapshot()
        # Who holds a block is in the requests; a large pool would be long to spell out.
        blocks = snapshot.pop("blocks")
        snapshot["cached_blocks"] = [n for n, block in enumerate(blocks) if block["cached"]]
        snapshot |= {"model": self._name, "context_length": self._llm.context_length}
        return json_response(snapshot | {"events": self._llm.events()[-MAX_EVENTS:]})

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        Body({"model": request.path_params["model"]}).check_model(self._name)
        return json_response(self._card())

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": self._started,
            "owned_by": "tinyrvllm",
            "max_model_len": self._llm.context_length,
        }

    # ---- what generates

    async def completions(self, request: Request) -> Response:
        body = await self._body(request)
        asked, prompts = read_completion(body), read_prompts(body)
        ids = [
            [*prompt] if isinstance(prompt, list) else await self._encode(prompt)
            for prompt in prompts
        ]
        shape = Completion(self._llm.model.tokenizer, self._name)
        return await self._answer(request, shape, asked, ids, DEFAULT_COMPLETION_TOKENS)

    async def chat(self, request: Request) -> Response:
        body = await self._body(request)
        asked, messages = read_chat(body), read_messages(body)
        ids = await self._encode_chat(messages)
        shape = Chat(self._llm.model.tokenizer, self._name)
        return await self._answer(request, shape, asked, [ids], None)

    async def _answer(
        self,
        request: Request,
        shape: Completion,
        asked: Asked,
        prompts: list[list[int]],
        default_max_tokens: int | None,
    ) -> Response:
        count = len(prompts) * asked.n
        if count > self._max_choices:
            several = f"{len(prompts)} prompts with n = {asked.n} are {count} answers"
            raise APIError(400, f"{several}; one request may ask for {self._max_choices}", "n")
        requests = []
        for ids in prompts:
            context = self._llm.context_length
            each = asked.for_prompt(len(ids), context, default_max_tokens)
            with as_api_error("prompt"):
                self._llm.check_prompt(ids)
            requests += [(ids, params) for params in each]
        id = f"{shape.id_prefix}-{self._salt}-{next(self._numbers)}"
        answers = Answers(self._llm, self._metrics, id, requests)
        self._active.add(answers)
        if asked.stream:
            return EventStream(self._events(shape, answers, asked.include_usage), answers)
        try:
            await unless_gone(request, answers.finish())
        finally:
            answers.abort()
        return json_response(shape.whole(answers))

    async def _events(
        self, shape: Completion, answers: Answers, include_usage: bool
    ) -> AsyncIterator[bytes]:
        empty = {"usage": None} if include_usage else {}
        try:
            async for item in answers.deltas(self._keep_alive):
                if item is None:
                    yield b": still at work\n\n"
                    continue
                answer, delta = item
                if delta.text or delta.logprobs or delta.finish_reason:
                    yield event(shape.chunk(answers, answer, delta) | empty)
        except APIError as error:  # the headers are out: the stream itself must say it
            yield event(error.as_json())
            return
        if include_usage:
            yield event(shape.usage_chunk(answers))
        yield b"data: [DONE]\n\n"

    # ---- what tokenizes

    async def tokenize(self, request: Request) -> Response:
        """vLLM's: {"prompt": text} or {"messages": [...]} to {"tokens", "count", ...}."""
        body = await self._body(request)
        body.check_fields(frozenset({
            "model", "prompt", "messages", "add_special_tokens", "return_token_strs",
        }))  # fmt: skip
        if body.get("messages", list, "a list") is not None:
            ids = await self._encode_chat(read_messages(body))
        else:
            prompt = body.get("prompt", str, "a string")
            if prompt is None:
                raise body.wrong("prompt", 'a string (or give "messages")')
            ids = await self._encode(prompt, body.flag("add_special_tokens", True))
        answer = {"count": len(ids), "max_model_len": self._llm.context_length, "tokens": ids}
        if body.flag("return_token_strs"):
            answer["token_strs"] = [self._llm.model.tokenizer.text(id) for id in ids]
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        """vLLM's: {"tokens": [...]} to {"prompt": text}."""
        body = await self._body(request)
        body.check_fields(frozenset({"model", "tokens"}))
        ids = body.get("tokens", list, "a list of token ids")
        if ids is None or not all(type(id) is int for id in ids):
            raise body.wrong("tokens", "a list of token ids")
        with as_api_error("tokens"):
            text = self._llm.model.tokenizer.decode(ids)
        return json_response({"prompt": text.decode("utf-8", "replace")})

    async def _body(self, request: Request) -> Body:
        body = await read_json(request, self._max_body_bytes)
        body.check_model(self._name)
        return body

    # Long texts take seconds to encode: in another thread, so that streams go on.

    async def _encode(self, text: str, add_special: bool = True) -> list[int]:
        with as_api_error("prompt"):
            return await run_in_threadpool(self._llm.model.tokenizer.encode, text, add_special)

    async def _encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        with as_api_error("messages"):
            return await run_in_threadpool(self._llm.model.encode_chat, messages)


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + to_bytes(value) + b"\n\n"


@contextlib.contextmanager
def as_api_error(param: str) -> Any:
    """A user's mistake, told by the engine, becomes an answer with status 400."""
    try:
        yield
    except TinyrvllmError as error:
        raise APIError(400, str(error), param) from None


async def unless_gone(request: Request, work: Awaitable[None]) -> None:
    """Waits for the work, or raises ClientDisconnect when the client leaves before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        await working
    finally:
        working.cancel()
        leaving.cancel()

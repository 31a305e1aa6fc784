"""HTTP as this server speaks it: bodies in, JSON and event streams out, one shape of error."""

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tinyrvllm.server.answers import Answers
from tinyrvllm.server.body import APIError, Body, parse

OPEN_PATHS: Final = ("/", "/health")  # what needs no API key: the page asks for it


def to_bytes(value: Any) -> bytes:
    """JSON; a lone surrogate, which JSON's escapes can smuggle in, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_bytes(value), status, headers, "application/json")


async def read_json(request: Request, limit: int) -> Body:
    """The body as a JSON object. Raises APIError, also for one of more than `limit` bytes."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise APIError(413, f"the body is larger than {limit:,} bytes")
    return parse(bytes(data))


class EventStream(StreamingResponse):
    """Server-sent events. However it ends, what still runs for it is aborted."""

    def __init__(self, events: AsyncIterator[bytes], answers: Answers) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.abort()


class KeyCheck:
    """ASGI middleware: all but `OPEN_PATHS` needs "Authorization: Bearer <key>"."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(scope):
            await self._app(scope, receive, send)
            return
        error = APIError(401, "this server needs its API key: Authorization: Bearer <key>")
        error.code = "invalid_api_key"
        headers = {"WWW-Authenticate": "Bearer"}
        await json_response(error.as_json(), 401, headers)(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(given, self._expected)  # in a time that tells nothing


async def answer_error(request: Request, error: Exception) -> Response:
    """Any exception of a handler as a response."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        message = f"{request.method} {request.url.path}: {error.detail}"
        return json_response(APIError(error.status_code, message).as_json(), error.status_code, headers)
    if not isinstance(error, APIError):
        error = APIError(500, f"a mistake in this server: {type(error).__name__}")
    return json_response(error.as_json(), error.status, error.headers)

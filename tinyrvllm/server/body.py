"""JSON from outside: an object whose fields are read with their types, and the error it may be.

A field that would change the answer and is not supported is refused; one that cannot change it is
ignored; an unknown one is a mistake.
"""

import json
from typing import Any, Final

_IGNORED: Final = frozenset({
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
})  # fmt: skip
# What is refused, and the values that ask for nothing.
_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "audio": (), "best_of": (1,), "echo": (False,), "function_call": ("none",), "functions": ([],),
    "modalities": (["text"],), "prediction": (), "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},), "suffix": ("",), "tool_choice": ("none", "auto"),
    "tools": ([],), "verbosity": ("medium",), "web_search_options": (),
}  # fmt: skip

class APIError(Exception):
    """An answer with an error in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers

    def as_json(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def parse(body: bytes) -> "Body":
    """The JSON object of a body. Raises APIError."""
    try:
        data = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and huge numbers are ValueErrors
        raise APIError(400, f"the body must be a JSON object in UTF-8: {error}") from None
    if not isinstance(data, dict):
        raise APIError(400, f"the body must be a JSON object, and {shown(data)} was given")
    return Body(data)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def shown(value: Any) -> str:
    """A value in an error message, at most a line of it."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Body:
    """The fields of a JSON object, read with their types. null is as good as absent."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def get(self, name: str, kinds: type | tuple[type, ...], expected: str) -> Any:
        """The field's value or None. Raises APIError for another type."""
        value = self._data.get(name)
        if value is None:
            return None
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise self.wrong(name, expected)
        return value

    def wrong(self, name: str, expected: str) -> APIError:
        """What to raise for a field."""
        value = shown(self._data.get(name))
        return APIError(400, f"{name} must be {expected}, and {value} was given", name)

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        """An integer of a range, both ends included."""
        expected = f"an integer from {low} to {high}"
        value = self.get(name, int, expected)
        if value is None:
            return default
        if not low <= value <= high:
            raise self.wrong(name, expected)
        return int(value)

    def number(self, name: str) -> float | None:
        value = self.get(name, (int, float), "a number")
        try:
            return None if value is None else float(value)
        except OverflowError:  # an integer of 400 digits
            raise self.wrong(name, "a number") from None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, bool, "true or false")
        return default if value is None else bool(value)

    def strings(self, name: str, most: int) -> tuple[str, ...]:
        """A string or a list of some."""
        expected = f"a string or a list of at most {most} strings, none of them empty"
        value = self.get(name, (str, list), expected)
        several = [value] if isinstance(value, str) else value or []
        if len(several) > most or not all(isinstance(text, str) and text for text in several):
            raise self.wrong(name, expected)
        return tuple(several)

    def check_fields(self, known: frozenset[str]) -> None:
        """Raises APIError for a field that nobody reads, or that asks for what we cannot do."""
        for name, value in self._data.items():
            if name in known or name in _IGNORED or value is None:
                continue
            if name not in _REFUSED:
                message = f"unknown field {shown(name)}; known are {', '.join(sorted(known))}"
                raise APIError(400, message, name[:60])
            # `1 in (True,)`: compared with their types, as true is not 1 in JSON
            if json.dumps(value) not in map(json.dumps, _REFUSED[name]):
                raise APIError(400, f"{name} is not supported by this server", name)

    def check_model(self, served: str) -> None:
        """Raises APIError unless the model asked for is the one served (or none is named)."""
        model = self.get("model", str, "a string")
        if model not in (None, served):
            message = f"the model {shown(model)} does not exist here; this server has {served!r}"
            raise APIError(404, message, "model", "model_not_found")

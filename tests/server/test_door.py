"""Clients that are too many, gone, unknown or hostile; and what the server tells of itself."""

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import (
    HANG_SECONDS,
    Live,
    assert_nothing_is_held,
    held,
    invariant_llm,
    serving,
    wait_until,
)
from tinyrvllm import LLM
from tinyrvllm.server.protocol import CHAT_FIELDS, COMPLETION_FIELDS

FOREVER = {"prompt": "Hello", "max_tokens": 130_000, "ignore_eos": True}  # fills 8,192 blocks


def raw(live: Live, data: bytes) -> bytes:
    """Sends bytes as they are; all that comes back until the server closes or has answered."""
    port = int(live.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
        return answer


def post(body: bytes, path: str = "/v1/completions") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


# ---- too many


def test_a_full_queue_is_429_and_says_when_to_come_back(endless: Path) -> None:
    llm = LLM(endless, device="cpu", max_running=1, max_queue=1, num_blocks=64)
    with serving(llm) as live, held(llm):
        client = live.client()
        body = {"model": "tiny", "prompt": "x", "stream": True}
        streams = [client.completions.create(**body) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="tiny", prompt="x")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "queue_full"
        # All or none: two prompts do not fit, so neither runs.
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="tiny", prompt=["x", "y"])
        with pytest.raises(openai.BadRequestError, match="one request may ask for 2"):
            client.completions.create(model="tiny", prompt="x", n=3)
        for stream in streams:
            stream.close()
    with serving(LLM(endless, device="cpu", max_running=1, max_queue=0, num_blocks=64)) as live:
        for _ in range(3):  # one after the other there is always room
            assert live.client().completions.create(model="tiny", prompt="x", max_tokens=1).choices


# ---- gone


def test_a_client_that_leaves_frees_what_it_held(endless: Path) -> None:
    llm = LLM(endless, device="cpu", num_blocks=8192)
    with serving(llm) as live:
        with live.http.stream("POST", "/v1/completions", json=FOREVER | {"stream": True}) as answer:
            next(answer.iter_lines())  # it runs
        assert_nothing_is_held(llm)
        assert llm.snapshot()["totals"]["aborted"] == 1
        # And one that waits for a whole answer, of several choices.
        port = int(live.url.rsplit(":", 1)[1])
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(post(json.dumps(FOREVER | {"n": 3}).encode()))
        wait_until(lambda: len(llm.snapshot()["running"]) == 3)
        connection.close()
        assert_nothing_is_held(llm)
        assert llm.snapshot()["totals"]["aborted"] == 4
        metrics = live.http.get("/metrics").text
        assert re.search(r'request_success_total\{.*finished_reason="abort"\} 4\n', metrics)


def test_a_client_that_leaves_in_the_middle_of_its_body(live: Live) -> None:
    before = live.llm.snapshot()["totals"]["prompt_tokens"]
    raw(live, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert live.http.get("/health").status_code == 200
    assert live.llm.snapshot()["totals"]["prompt_tokens"] == before


# ---- unknown


def test_the_key_opens_all_but_the_page_and_health(tiny: Path) -> None:
    with serving(invariant_llm(tiny), api_key="sécret") as live:
        for path in ("/", "/health"):
            assert live.http.get(path).status_code == 200
        closed = ("/v1/models", "/metrics", "/engine", "/nothing")
        for wrong in (b"", b"Bearer", b"Bearer wrong", "Bearer sécre".encode(), b"Basic \xff"):
            for path in closed:
                answer = live.http.get(path, headers={b"Authorization": wrong})
                assert answer.status_code == 401, (path, wrong)
                assert answer.json()["error"]["code"] == "invalid_api_key"
        right = {b"Authorization": "Bearer sécret".encode()}
        for path in closed[:-1]:
            assert live.http.get(path, headers=right).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            live.client("none").models.list()


# ---- hostile


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": Infinity}', b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "temperature": 1' + b"0" * 400 + b"}",
        b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"prompt": "x", "seed": 1' + b"0" * 30 + b"}",
        b'{"prompt": "x", "model": "\\ud800"}', b'{"\\ud800": 1, "prompt": "x"}',
        b'{"prompt": "x", "logit_bias": {"\xc2\xb2": 1}}',
        b'{"prompt": "x", "stream_options": {"include_usage": 5}, "stream": true}',
        b'{"prompt": [[1], "x", [[]]]}', b'{"prompt": [-1]}', b'{"prompt": [1e3]}',
        b'{"prompt": [' + b"9" * 300 + b"]}",
        b'{"prompt": {"__proto__": 1}}', b'{"prompt": "x", "n": 1.5}',
    ],
)  # fmt: skip
def test_hostile_bodies_are_the_client_s_mistake(live: Live, body: bytes) -> None:
    answer = live.http.post("/v1/completions", content=body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["message"]


def test_text_that_is_no_unicode_is_answered(live: Live) -> None:
    """JSON's escapes can say half of a surrogate pair."""
    for body in (
        b'{"prompt": "\\ud800", "max_tokens": 2, "stop": ["\\udc00"]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 2}',
    ):
        path = "/v1/chat/completions" if b"messages" in body else "/v1/completions"
        assert live.http.post(path, content=body).status_code == 200
    assert live.http.post("/tokenize", content=b'{"prompt": "\\ud800"}').status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: one\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/models/%ff%00%2e%2e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"DELETE /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        post(b'{"prompt": "x"}').replace(b"Host: x", b"Host: x\r\nContent-Encoding: gzip\xff"),
    ],
)  # fmt: skip
def test_hostile_requests_never_are_a_500(live: Live, data: bytes) -> None:
    answer = raw(live, data)
    assert not answer or re.match(rb"HTTP/1\.1 (200|4\d\d) ", answer), answer
    assert live.http.get("/health").status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_has_a_largest_size(tiny: Path, declared: bool) -> None:
    with serving(invariant_llm(tiny), max_body_bytes=1000) as live:
        body = json.dumps({"prompt": "x" * 2000}).encode()
        content: Any = body if declared else iter([body[:700], body[700:]])
        answer = live.http.post("/v1/completions", content=content)
        assert answer.status_code == 413
        assert "larger than 1,000 bytes" in answer.json()["error"]["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@settings(
    max_examples=100, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    st.dictionaries(st.sampled_from(sorted(COMPLETION_FIELDS | CHAT_FIELDS)), JSON, max_size=4),
    st.sampled_from(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]),
)
def test_no_fields_make_it_stumble(live: Live, fields: dict[str, Any], path: str) -> None:
    base: dict[str, Any] = {"max_tokens": 1} if path.startswith("/v1") else {}
    if path == "/v1/completions":
        base["prompt"] = "x"
    if path == "/v1/chat/completions":
        base["messages"] = [{"role": "user", "content": "x"}]
    asked = base | fields
    if path.startswith("/v1") and asked["max_tokens"] is None:
        asked["max_tokens"] = 1
    answer = live.http.post(path, content=json.dumps(asked).encode())
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]


# ---- what it tells of itself


def test_metrics_are_prometheus_under_vllm_s_names(tiny: Path) -> None:
    with serving(invariant_llm(tiny), 'a "model"') as live:
        asked = {"prompt": ["Hello", "x" * 100], "max_tokens": 5, "ignore_eos": True}
        assert live.http.post("/v1/completions", json=asked).status_code == 200
        answer = live.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = {}
        for line in answer.text.splitlines():
            if line.startswith("#"):
                assert re.fullmatch(r"# (HELP|TYPE) vllm:\w+ .+", line)
                continue
            found = re.fullmatch(r'(vllm:\w+)\{model_name="a \\"model\\"",engine="0"(.*)\} (\S+)', line)
            assert found, line
            values[found[1] + found[2]] = float(found[3])
        assert values["vllm:num_requests_running"] == 0
        assert values["vllm:generation_tokens_total"] == 10
        prompts = sum(len(live.llm.model.tokenizer.encode(text)) for text in asked["prompt"])
        assert values["vllm:prompt_tokens_total"] == prompts
        assert values['vllm:request_success_total,finished_reason="length"'] == 2
        for name, count in {
            "time_to_first_token_seconds": 2, "inter_token_latency_seconds": 8,
            "e2e_request_latency_seconds": 2, "request_generation_tokens": 2,
            "request_time_per_output_token_seconds": 2,
        }.items():  # fmt: skip
            assert values[f"vllm:{name}_count"] == count
            buckets = [n for key, n in values.items() if key.startswith(f"vllm:{name}_bucket")]
            assert buckets == sorted(buckets)
            assert buckets[-1] == count
        assert values["vllm:request_generation_tokens_sum"] == 10


def test_the_engine_as_json(endless: Path) -> None:
    llm = LLM(endless, device="cpu", num_blocks=8192)
    with serving(llm) as live:
        idle = live.http.get("/engine").json()
        assert (idle["running"], idle["waiting"], idle["cached_blocks"]) == ([], [], [])
        with live.http.stream("POST", "/v1/completions", json=FOREVER | {"stream": True}) as answer:
            lines = answer.iter_lines()  # one that is dropped would close the stream
            next(lines)
            state = live.http.get("/engine").json()
            (running,) = state["running"]
            assert re.fullmatch(r"cmpl-\w+-\d+", running["id"])
            assert running["blocks"]
            assert [id for id, _ in state["recent_steps"][-1][1]] == [running["id"]]
            assert [state["events"][0][1], state["events"][0][2]] == ["admit", running["id"]]


def test_a_dead_engine_is_not_healthy(tiny: Path) -> None:
    llm = invariant_llm(tiny)
    with serving(llm) as live:
        assert live.http.get("/health").status_code == 200
        threading.Thread(target=llm.close).start()
        wait_until(lambda: live.http.get("/health").status_code == 503)
        assert live.http.post("/v1/completions", json={"prompt": "x"}).status_code == 503

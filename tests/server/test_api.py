"""What the official client gets, over a real socket."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from tests.server.conftest import HANG_SECONDS, Live, held, invariant_llm, serving
from tests.tiny_models import write_model
from tinyrvllm import LLM, SamplingParams

HELLO = [{"role": "user", "content": "Hello"}]


def batch_of_one(live: Live, prompt: Any, **params: Any) -> str:
    return live.llm.generate([prompt], SamplingParams(**params))[0].text


def test_greedy_completion_is_what_the_engine_gives(live: Live) -> None:
    answer = live.client().completions.create(
        model="tiny", prompt="Hello", max_tokens=12, temperature=0
    )
    assert answer.object == "text_completion"
    assert answer.model == "tiny"
    assert answer.choices[0].text == batch_of_one(live, "Hello", max_tokens=12, temperature=0)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens == len(live.llm.model.tokenizer.encode("Hello"))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_is_the_answer_in_pieces(live: Live) -> None:
    asked = {"model": "tiny", "messages": HELLO, "seed": 5, "max_completion_tokens": 20}
    whole = live.client().chat.completions.create(**asked)
    chunks = list(
        live.client().chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert text == whole.choices[0].message.content
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.choices[0].finish_reason is None for chunk in pieces[:-1])
    assert all(chunk.usage is None for chunk in pieces)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_uses_the_template(live: Live) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "user", "content": parts}]
    answer = live.client().chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, temperature=0
    )
    expected = live.llm.chat(HELLO, SamplingParams(max_tokens=8, temperature=0)).finish()
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_several_prompts_with_several_answers(live: Live) -> None:
    """Choice p*n + i is prompt p with the seed plus i, as alone."""
    answer = live.client().completions.create(
        model="tiny", prompt=["Hello", "The", "in"], n=2, seed=7, max_tokens=10
    )
    assert [choice.index for choice in answer.choices] == list(range(6))
    for index, choice in enumerate(answer.choices):
        prompt, seed = ["Hello", "The", "in"][index // 2], 7 + index % 2
        assert choice.text == batch_of_one(live, prompt, seed=seed, max_tokens=10)
    tokens = sum(len(live.llm.model.tokenizer.encode(text)) for text in ("Hello", "The", "in"))
    assert answer.usage.prompt_tokens == tokens  # once each, not n times


def test_token_ids_as_prompts(live: Live) -> None:
    for prompt in ([5, 6, 7], [[5, 6, 7]]):
        answer = live.client().completions.create(
            model="tiny", prompt=prompt, temperature=0, max_tokens=4
        )
        expected = batch_of_one(live, [5, 6, 7], temperature=0, max_tokens=4)
        assert answer.choices[0].text == expected


def test_a_stop_string_never_shows(live: Live) -> None:
    asked = {"model": "tiny", "prompt": "Hello", "temperature": 0, "max_tokens": 40}
    extra = {"ignore_eos": True}
    whole = live.client().completions.create(**asked, extra_body=extra).choices[0].text
    stop = [whole[9:12], "no such text"]
    expected = whole[: whole.index(stop[0])]
    answer = live.client().completions.create(**asked, stop=stop, extra_body=extra)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
    stream = live.client().completions.create(**asked, stop=stop, stream=True, extra_body=extra)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected


def test_logprobs_of_a_chat(live: Live) -> None:
    answer = live.client().chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=3, temperature=0, max_tokens=5,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob  # greedy: the likeliest
        assert entry.logprob <= 0
    data = b"".join(bytes(entry.bytes) for entry in content)
    assert answer.choices[0].message.content == data.decode("utf-8", "replace")


def test_logprobs_of_a_completion_are_those_of_its_logits(live: Live) -> None:
    asked = {"model": "tiny", "prompt": "Hello", "seed": 3, "max_tokens": 6, "logprobs": 2}
    answer = live.client().completions.create(**asked, extra_body={"ignore_eos": True})
    found = answer.choices[0].logprobs
    ids = live.llm.model.tokenizer.encode("Hello")
    params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True)
    made = live.llm.generate([ids], params)[0].token_ids
    logits = live.llm.logits(ids + made).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [logprobs[len(ids) - 1 + n, token] for n, token in enumerate(made)]
    np.testing.assert_allclose(found.token_logprobs, expected, atol=1e-4)
    assert all(len(top) == 2 for top in found.top_logprobs)
    assert found.text_offset[0] == 0
    stream = live.client().completions.create(
        **asked, stream=True, extra_body={"ignore_eos": True}
    )
    pieces = [chunk.choices[0].logprobs for chunk in stream]
    offsets = [offset for piece in pieces if piece for offset in piece.text_offset]
    assert offsets == found.text_offset


def test_a_prefix_is_found_again(live: Live) -> None:
    asked = {"model": "tiny", "prompt": "x" * 200, "max_tokens": 1}
    live.client().completions.create(**asked)
    again = live.client().completions.create(**asked)
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_models(live: Live) -> None:
    client = live.client()
    (card,) = client.models.list().data
    assert card.id == "tiny"
    assert card.max_model_len == 512
    assert client.models.retrieve("tiny") == card
    for call in (
        lambda: client.models.retrieve("gpt-4"),
        lambda: client.completions.create(model="gpt-4", prompt="x"),
    ):
        with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
            call()


def test_tokens_and_back(live: Live) -> None:
    asked = {"prompt": "the hello", "return_token_strs": True}
    answer = live.http.post("/tokenize", json=asked).json()
    assert answer["tokens"] == live.llm.model.tokenizer.encode("the hello")
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512
    back = live.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": "the hello"}
    chat = live.http.post("/tokenize", json={"messages": HELLO}).json()
    assert chat["tokens"] == live.llm.model.encode_chat(HELLO)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "the prompt is empty"),
        ({"prompt": []}, "prompt", "prompt must be a string, a list"),
        ({"prompt": [1, "x"]}, "prompt", "prompt must be"),
        ({"prompt": [True]}, "prompt", "prompt must be"),
        ({"prompt": [99999]}, "prompt", "token ids must be from 0 to"),
        ({"prompt": "x" * 600}, None, "has 600 tokens, and this model's context holds 512"),
        ({"max_tokens": 510}, "max_tokens", "holds 512 tokens; the prompt has 4 and max_tokens"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to"),
        ({"max_tokens": "5"}, "max_tokens", 'must be an integer from 1 to 2147483647, and "5"'),
        ({"temperature": -1}, "temperature", "temperature must be a number from 0 up"),
        ({"temperature": True}, "temperature", "temperature must be a number"),
        ({"top_p": 0}, "top_p", "top_p must be above 0"),
        ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"n": 0}, "n", "n must be an integer from 1 to"),
        ({"n": 129}, "n", "n must be an integer from 1 to"),
        ({"prompt": ["x"] * 50, "n": 3}, "n", "150 answers"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "numbers from -100 to 100"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "token ids and numbers"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "token ids must be from 0 to"),
        ({"stop": [""]}, "stop", "none of them empty"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 strings"),
        ({"seed": -1}, "seed", "an integer from 0"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "goes with stream"),
        ({"echo": True}, "echo", "echo is not supported"),
        ({"temprature": 1}, "temprature", 'unknown field "temprature"'),
        ({"messages": HELLO}, "messages", 'unknown field "messages"'),
    ],
)  # fmt: skip
def test_mistakes_are_400_and_name_the_field(
    live: Live, fields: dict[str, Any], param: str | None, message: str
) -> None:
    answer = live.http.post("/v1/completions", json={"prompt": "Hello", **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "messages must be a list of messages"),
        ({"messages": ["Hi"]}, "messages", "is among them"),
        ({"messages": [{"role": "user"}]}, "messages", "content must be a string"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "text"),
        ({"tools": [{"type": "function"}]}, "tools", "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"top_logprobs": 2}, "top_logprobs", "goes with logprobs"),
        ({"max_completion_tokens": 600}, "max_completion_tokens", "context holds 512"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, None, "context holds 512"),
    ],
)  # fmt: skip
def test_mistakes_in_a_chat(
    live: Live, fields: dict[str, Any], param: str | None, message: str
) -> None:
    answer = live.http.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_what_asks_for_nothing_is_accepted(live: Live) -> None:
    fields = {
        "user": "me", "metadata": {}, "tools": [], "tool_choice": "none", "stop": None, "n": 1,
        "response_format": {"type": "text"}, "store": False, "top_k": -1, "max_tokens": 1,
    }  # fmt: skip
    answer = live.http.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert answer.status_code == 200, answer.text


def test_a_base_model_cannot_chat(tmp_path: Path) -> None:
    path = write_model(tmp_path / "base.gguf", keys={"tokenizer.chat_template": None})
    with (
        serving(LLM(path, device="cpu")) as base,
        pytest.raises(openai.BadRequestError, match="no chat template"),
    ):
        base.client().chat.completions.create(model="tiny", messages=HELLO)


def test_a_damaged_model_fails_its_request_only(tmp_path: Path) -> None:
    """Status 500 in OpenAI's shape, also inside a stream; the server goes on."""
    bad = {"output_norm.weight": np.full(64, np.nan)}
    path = write_model(tmp_path / "bad.gguf", tensors=bad)
    with serving(LLM(path, device="cpu")) as damaged:
        client = damaged.client()
        with pytest.raises(openai.InternalServerError, match="NaN among the logits"):
            client.completions.create(model="tiny", prompt="x")
        stream = client.completions.create(model="tiny", prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="NaN among the logits"):
            list(stream)
        assert damaged.http.get("/health").status_code == 200


def test_a_long_silence_is_filled_with_comments(tiny: Path) -> None:
    """A stream gets comments while its prompt waits; clients skip them."""
    llm = invariant_llm(tiny)
    with serving(llm, keep_alive=0.01) as live:
        body = {"prompt": "Hello", "max_tokens": 3, "temperature": 0, "stream": True}
        with ExitStack() as stack:
            with held(llm):
                answer = stack.enter_context(
                    live.http.stream("POST", "/v1/completions", json=body)
                )
                lines = answer.iter_lines()
                first = [next(lines) for _ in range(4)]
            rest = list(lines)
        assert first == [": still at work", ""] * 2
        data = [line for line in rest if line.startswith("data: ")]
        assert data[-1] == "data: [DONE]"
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in data[:-1])
        assert text == batch_of_one(live, "Hello", max_tokens=3, temperature=0)


def test_the_readme_s_examples_run(tiny: Path) -> None:
    """Every Python block of the README that uses the client, on a tiny model of that name."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    examples = [block for block in blocks if "from openai" in block]
    assert examples
    with serving(invariant_llm(tiny), "smollm2-135m") as live:
        for example in examples:
            assert "http://127.0.0.1:8000" in example
            code = example.replace("http://127.0.0.1:8000", live.url)
            printed = subprocess.run(
                [sys.executable, "-X", "utf8", "-c", code],
                check=True, capture_output=True, timeout=HANG_SECONDS,
            ).stdout.decode()  # fmt: skip
        params = SamplingParams(max_tokens=8, temperature=0)
        expected = live.llm.generate("The capital of France is", params)[0].text
    assert printed.endswith(expected)

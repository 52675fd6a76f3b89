"""The unpatched `openai` client against a running gateway, with the project's real model and the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage
from pydantic import SecretStr

from gateway.app import build
from gateway.config import Config, Model, Server
from tests.conftest import ROOT
from tests.gateway.backend import RUNTIME
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.provider.server import serve

pytestmark = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")

PROMPTS: dict[str, dict[str, Any]] = {
    prompt["name"]: prompt for prompt in json.loads((ROOT / "_models/test/prompts.json").read_text())
}
KEY = "sk-test"


@pytest.fixture(scope="module", params=["/v1", ""], ids=["v1", "bare"])
def base_url(request: pytest.FixtureRequest, test_model: Path) -> Iterator[str]:
    tiny = Model(
        name="tiny",
        runtime="llama.cpp",
        path=test_model,
        context_window=1024,
        tool_call_format="pythonic",
        defaults={"temperature": 0, "max_tokens": 256},
    )
    dead = Model(name="dead", runtime="openai", base_url="http://127.0.0.1:9")
    missing = Model(name="missing", runtime="llama.cpp", path=Path("/nowhere/model.gguf"))
    failing = Model(name="failing", runtime=RUNTIME)
    config = Config(
        source=ROOT / "_models/config.yaml",
        active_model="tiny",
        models={model.name: model for model in (tiny, dead, missing, failing)},
        server=Server(api_keys=(SecretStr(KEY),), max_body_bytes=100_000, **NO_COMMENTS),
    )
    with ExitStack() as stack:
        yield stack.enter_context(serve(build(config), lifespan="on", http=FAST)) + str(request.param)


@pytest.fixture
def client(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=PATIENCE) as client:
        yield client


def asked(name: str, **fields: Any) -> dict[str, Any]:
    prompt = PROMPTS[name]
    tools = {"tools": prompt["tools"]} if prompt["tools"] else {}
    return {"model": "tiny", "messages": prompt["messages"], **tools, **fields}


def expected(name: str) -> tuple[str, list[tuple[str, Any]]]:
    expect = PROMPTS[name]["expect"]
    return expect.get("content", ""), [(call["name"], call["arguments"]) for call in expect.get("tool_calls", ())]


def test_list(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "dead", "failing"]
    assert [model.id for model in client.models.list(extra_query={"all": 1})] == ["tiny", "dead", "missing", "failing"]
    assert client.models.retrieve("tiny").object == "model"


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROMPTS)
def test_whole(client: OpenAI, name: str) -> None:
    answer = client.chat.completions.create(**asked(name))
    [choice] = answer.choices
    content, calls = expected(name)
    assert choice.message.content == (content or None)
    assert [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or ()] == calls
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROMPTS)
def test_streamed(client: OpenAI, name: str) -> None:
    """By the client's own accumulator."""
    content, calls = expected(name)
    with client.chat.completions.stream(**asked(name, stream_options={"include_usage": True})) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    [choice] = answer.choices
    assert (choice.message.content or "") == content
    assert [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or ()] == calls
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert kinds.count("tool_calls.function.arguments.done") == len(calls)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_a_streamed_call_has_its_name_first(client: OpenAI) -> None:
    chunks: list[ChatCompletionChunk] = list(client.chat.completions.create(**asked("dotted_call", stream=True)))
    fragments = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first, *others = fragments
    assert first.index == 0
    assert first.id
    assert first.function is not None
    assert first.function.name == "filesystem.list_dir"
    assert all(part.id is None and part.function is not None and part.function.name is None for part in others)
    joined = "".join(part.function.arguments or "" for part in fragments if part.function is not None)
    assert json.loads(joined) == {"path": "/Users/chintan/Documents"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_round_trip(client: OpenAI, stream: bool) -> None:
    tools = PROMPTS["single_call"]["tools"]
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
    answer: ChatCompletionMessage
    if stream:
        with client.chat.completions.stream(model="default", messages=messages, tools=tools) as events:
            answer = events.get_final_completion().choices[0].message
    else:
        answer = client.chat.completions.create(model="default", messages=messages, tools=tools).choices[0].message
    assert answer.tool_calls
    messages.append(answer.model_dump(exclude_none=True, exclude={"parsed"}))
    for call in answer.tool_calls:
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Paris", "unit": "celsius"}
        messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"temp_c": 21}'})
    last = client.chat.completions.create(model="default", messages=messages, tools=tools).choices[0]
    assert (last.message.content, last.message.tool_calls, last.finish_reason) == ("The result is 21.", None, "stop")


def test_policies(client: OpenAI) -> None:
    none = client.chat.completions.create(**asked("single_call", tool_choice="none")).choices[0]
    assert none.message.tool_calls is None
    assert none.finish_reason == "stop"
    assert "get_weather(" not in (none.message.content or "")
    one = client.chat.completions.create(**asked("parallel_calls", parallel_tool_calls=False)).choices[0]
    assert one.message.tool_calls is not None
    assert len(one.message.tool_calls) == 1


def test_a_limit_cuts_the_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(**asked("counting_stream", max_tokens=5)).choices[0]
    assert whole.finish_reason == "length"
    chunks = list(client.chat.completions.create(**asked("counting_stream", max_completion_tokens=5, stream=True)))
    assert chunks[-1].choices[0].finish_reason == "length"


def test_leaving_a_stream(client: OpenAI) -> None:
    for _ in range(3):
        stream = client.chat.completions.create(**asked("long_text_stream", stream=True))
        next(iter(stream))
        stream.close()
    assert client.chat.completions.create(**asked("plain_text")).choices[0].message.content


# Errors


def fail(client: OpenAI, **fields: Any) -> Any:
    request: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], **fields}
    return client.chat.completions.create(**request)


def failing(category: str, at: str = "open", **arguments: Any) -> dict[str, Any]:
    return {"model": "failing", "extra_body": {"fail": {"with": category, "at": at, **arguments}}}


ERRORS: dict[str, tuple[dict[str, Any], type[openai.APIStatusError], str]] = {
    "unknown model": ({"model": "gpt-4o"}, openai.NotFoundError, "model_not_found"),
    "wrong type": ({"temperature": "hot"}, openai.BadRequestError, "invalid_request"),
    "no messages": ({"messages": []}, openai.BadRequestError, "invalid_request"),
    "too long for the model": (
        {"messages": [{"role": "user", "content": "word " * 3000}]}, openai.BadRequestError, "context_length_exceeded",
    ),
    "too large": (
        {"messages": [{"role": "user", "content": "x" * 200_000}]}, openai.APIStatusError, "request_too_large",
    ),
    "no engine": ({"model": "dead"}, openai.InternalServerError, "engine_unavailable"),
    "no weights": ({"model": "missing"}, openai.NotFoundError, "model_not_found"),
    "authentication": (failing("provider_authentication"), openai.AuthenticationError, "invalid_api_key"),
    "rate limit": (failing("provider_rate_limit", retry_after=3), openai.RateLimitError, "rate_limit_exceeded"),
    "content block": (
        failing("provider_unsupported_content_block"), openai.BadRequestError, "unsupported_content_block",
    ),
    "bad answer": (failing("provider_invalid_response"), openai.InternalServerError, "invalid_response"),
    "schema": (failing("structured_output_invalid"), openai.UnprocessableEntityError, "structured_output_invalid"),
    "a bug": (failing("bug"), openai.InternalServerError, "internal_error"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fields", "kind", "code"), ERRORS.values(), ids=ERRORS.keys())
def test_error_classes(
    client: OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    with pytest.raises(kind) as raised:
        fail(client, stream=stream, **fields)
    assert raised.value.code == code
    assert raised.value.type
    if code == "rate_limit_exceeded":
        assert raised.value.response.headers["retry-after"] == "3"
    # The connection is good for the next one.
    assert client.models.list().data


def test_a_wrong_key(base_url: str) -> None:
    with OpenAI(base_url=base_url, api_key="sk-wrong", max_retries=0) as client:
        for ask in (client.models.list, lambda: fail(client)):
            with pytest.raises(openai.AuthenticationError) as raised:
                ask()
            assert raised.value.code == "invalid_api_key"


def test_an_unknown_path(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.moderations.create(input="x")
    assert raised.value.code == "not_found"


def test_an_error_in_mid_stream(client: OpenAI) -> None:
    stream = fail(client, stream=True, **failing("provider_unavailable", "later"))
    seen = []
    with pytest.raises(openai.APIError, match="told to fail") as raised:
        seen += [chunk.choices[0].delta.content for chunk in stream]
    assert raised.value.code == "engine_unavailable"
    assert client.models.list().data


def test_it_retries_what_may_pass(base_url: str) -> None:
    """By its own rules: 429 and 5xx, after the time that the gateway names."""
    with OpenAI(base_url=base_url, api_key=KEY, max_retries=1, timeout=PATIENCE) as client:
        with pytest.raises(openai.RateLimitError) as raised:
            fail(client, **failing("provider_rate_limit", retry_after=1))
        assert raised.value.request.headers["x-stainless-retry-count"] == "1"

"""Fields that clients rarely send: done, or refused by name, by the real engine; none is dropped."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai import OpenAI

from gateway.wire.rare import old_answer, old_chunk, with_tools
from tests.patience import PATIENCE

HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
CITY = {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}
FUNCTION: Any = {
    "name": "get_weather",
    "description": "Current weather in a city.",
    "parameters": {"type": "object", "properties": CITY, "required": ["city"]},
}
TOOL: Any = {"type": "function", "function": FUNCTION}
UNKNOWN = {"type": "objekt"}


@pytest.fixture
def client(real: str) -> Any:
    with OpenAI(base_url=f"{real}/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as client:
        yield client


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "modalities": ("modalities", {"modalities": ["text", "audio"]}),
    "audio": ("audio", {"audio": {"voice": "alloy", "format": "wav"}}),
    "web search": ("web_search_options", {"web_search_options": {}}),
    "echo": ("echo", {"echo": True}),
    "best_of": ("best_of", {"best_of": 3}),
    "no tokens": ("max_tokens", {"max_tokens": 0}),
    "no tokens in today's word": ("max_completion_tokens", {"max_completion_tokens": 0}),
    "presence": ("presence_penalty", {"presence_penalty": 2.1}),
    "frequency": ("frequency_penalty", {"frequency_penalty": -3}),
    "a penalty that is true": ("presence_penalty", {"presence_penalty": True}),
    "a penalty that is false": ("frequency_penalty", {"frequency_penalty": False}),
    "a penalty of text": ("frequency_penalty", {"frequency_penalty": "much"}),
    "custom tool": ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
    "a tool's schema": (
        "tools[0].function.parameters",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": UNKNOWN}}]},
    ),
    "an answer's schema": (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": UNKNOWN}}},
    ),
    "a schema within": (
        "response_format.json_schema.schema",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": UNKNOWN}}},
            }
        },
    ),
    "logprobs of streamed calls": ("logprobs", {"logprobs": True, "stream": True, "tools": [TOOL]}),
    "functions and tools": ("functions", {"functions": [FUNCTION], "tools": [TOOL]}),
    "no functions": ("functions", {"functions": []}),
    "a call of no function": ("function_call", {"function_call": "auto"}),
    "a strange call": ("function_call", {"functions": [FUNCTION], "function_call": 7}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(real: str, name: str) -> None:
    param, fields = REFUSED[name]
    body = {"model": "tiny", "messages": HELLO, **fields}
    answer = httpx.post(f"{real}/v1/chat/completions", json=body, timeout=PATIENCE)
    if body.get("stream"):
        assert f'"param":"{param}"' in answer.text
        return
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["message"].partition(":")[0]) == (param, param)
    assert "engine" not in error["message"].partition(":")[0]
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_with_a_sign(real: str, name: str) -> None:
    body = json.dumps({"model": "tiny", "messages": HELLO, name: 0}).replace(f'"{name}": 0', f'"{name}": -0')
    answer = httpx.post(f"{real}/v1/chat/completions", content=body, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


HARMLESS: dict[str, dict[str, Any]] = {
    "text alone": {"modalities": ["text"]},
    "nulls": {"audio": None, "web_search_options": None, "echo": None, "best_of": None, "presence_penalty": None},
    "the defaults": {"echo": False, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 2},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_values_that_ask_for_nothing(real: str, name: str) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 1, **HARMLESS[name]}
    answer = httpx.post(f"{real}/v1/chat/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("choice", [None, "auto", {"name": "get_weather"}])
def test_functions_are_called_in_their_own_words(client: Any, choice: Any) -> None:
    asked: Any = {"model": "tiny", "messages": WEATHER, "functions": [FUNCTION], "temperature": 0}
    if choice is not None:
        asked["function_call"] = choice
    (found,) = client.chat.completions.create(**asked).choices
    assert found.finish_reason == "function_call"
    assert found.message.tool_calls is None
    call = found.message.function_call
    assert call is not None
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris", "unit": "celsius"})
    name, arguments, reason = "", "", None
    for part in client.chat.completions.create(**asked, stream=True):
        for delta in part.choices:
            assert delta.delta.tool_calls is None
            if delta.delta.function_call is not None:
                name += delta.delta.function_call.name or ""
                arguments += delta.delta.function_call.arguments or ""
            reason = delta.finish_reason or reason
    assert (name, arguments, reason) == (call.name, call.arguments, "function_call")
    result = {"role": "function", "name": "get_weather", "content": '{"celsius": 21}'}
    past = {"role": "assistant", "content": None, "function_call": {"name": call.name, "arguments": call.arguments}}
    again = client.chat.completions.create(**{**asked, "messages": [*WEATHER, past, result], "function_call": "none"})
    assert again.choices[0].finish_reason == "stop"
    assert again.choices[0].message.function_call is None


def test_an_answer_in_the_old_words_has_one_call() -> None:
    calls = b'[{"index":0,"function":{"name":"f","arguments":"{}"}},{"index":1,"function":{"name":"g","arguments":""}}]'
    chunk = old_chunk(b'{"choices":[{"delta":{"tool_calls":' + calls + b'},"finish_reason":null}]}')
    assert chunk == b'{"choices":[{"delta":{"function_call":{"name":"f","arguments":"{}"}},"finish_reason":null}]}'
    assert old_chunk(b'{"choices": []}') == b'{"choices": []}'
    whole = old_answer(b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}')
    assert whole == b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'


def test_a_past_refusal_is_text(client: OpenAI) -> None:
    refused: Any = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I can't."}]}
    answered: Any = {"role": "assistant", "content": None, "refusal": "I can't."}
    plain: Any = {"role": "assistant", "content": [{"type": "text", "text": "I can't."}]}
    counts = []
    for past in (refused, answered, plain):
        answer = client.chat.completions.create(model="tiny", messages=[*HELLO, past, *HELLO], max_tokens=1)
        assert answer.usage is not None
        counts.append(answer.usage.prompt_tokens)
    assert counts[0] == counts[1] == counts[2]


LIMITS: dict[str, tuple[str, str, list[int]]] = {
    # The path, the field, and what it can't be. Clients of engines on one's own machine know -1 as no limit.
    "a response": ("/v1/responses", "max_output_tokens", [0, -1, -2, -3]),
    "its tokens, counted": ("/v1/responses/input_tokens", "max_output_tokens", [0, -1]),
    "calls of a response": ("/v1/responses", "max_tool_calls", [-1, -3]),
    "a message": ("/v1/messages", "max_tokens", [0, -1, -2, -3]),
    "its tokens, counted in advance": ("/v1/messages/count_tokens", "max_tokens", [0, -1]),
    "a chat": ("/v1/chat/completions", "max_tokens", [0, -2, -3]),
    "a chat in today's word": ("/v1/chat/completions", "max_completion_tokens", [0, -2, -3]),
    "a completion": ("/v1/completions", "max_tokens", [-2, -3]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_is_none(real: str, name: str) -> None:
    """The error names the field that the client sent, and no engine is asked."""
    path, field, values = LIMITS[name]
    said: Any = {"/v1/completions": {"prompt": "Hello"}}.get(path, {"messages": HELLO, "max_tokens": 9})
    for value in values:
        body = {"model": "tiny", **({"input": "Hello"} if "responses" in path else said), field: value}
        answer = httpx.post(f"{real}{path}", json=body, timeout=PATIENCE)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field), answer.text
        assert field in error["message"]
        assert "engine" not in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_limit_as_engines_know_it(real: str, path: str) -> None:
    said: Any = {"messages": HELLO} if "chat" in path else {"prompt": "Hello"}
    answer = httpx.post(f"{real}{path}", json={"model": "tiny", **said, "max_tokens": -1}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text


# Truncation of responses


def turns(count: int) -> list[Any]:
    """A conversation far beyond the window, with a call and its result near its beginning."""
    found: list[Any] = [
        {"role": "developer", "content": "Answer in English."},
        {"role": "user", "content": "Call it."},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "21"},
    ]
    for number in range(count):
        found += [{"role": "user", "content": f"Number {number}."}, {"role": "assistant", "content": "word " * 50}]
    return [*found, {"role": "user", "content": "Hello"}]


def test_truncation_drops_the_oldest_items(client: Any) -> None:
    items = turns(200)
    asked: Any = {"model": "tiny", "input": items, "max_output_tokens": 16, "store": False}
    for refusing in ({}, {"truncation": "disabled"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**asked, **refusing)
        assert caught.value.code == "context_length_exceeded"
    answer = client.responses.create(**asked, truncation="auto")
    assert answer.truncation == "auto"
    assert answer.usage is not None
    assert 512 < answer.usage.input_tokens <= 1024 - 16, "it drops no more than it must"
    with client.responses.stream(**asked, truncation="auto") as stream:
        assert stream.get_final_response().status in ("completed", "incomplete")
    with pytest.raises(openai.BadRequestError, match="truncation: must be auto or disabled"):
        client.responses.create(**asked, truncation="middle")


def test_a_last_message_that_never_fits_is_refused_all_the_same(client: Any) -> None:
    items: Any = [*turns(2), {"role": "user", "content": "word " * 20_000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.responses.create(model="tiny", input=items, truncation="auto", store=False)


def test_past_calls_of_functions_become_calls_of_tools_with_their_results() -> None:
    def call(name: str, arguments: str | None) -> Any:
        return {"role": "assistant", "function_call": {"name": name, "arguments": arguments}}

    messages = [
        {"role": "function", "name": "f", "content": "before any call"},
        call("f", '{"a":1}'),
        {"role": "function", "name": "f", "content": "1"},
        {**call("g", None), "content": "so"},
        {"role": "function", "name": "g", "content": "2"},
        {"role": "function", "name": "f", "content": "3"},
    ]
    fields = {"messages": messages, "functions": [FUNCTION], "temperature": 0}
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    made = json.loads(with_tools(raw))
    assert set(made) == {"messages", "tools", "parallel_tool_calls", "temperature"}
    assert made["tools"] == [TOOL]
    assert made["parallel_tool_calls"] is False

    def called(id: str, name: str, arguments: str) -> Any:
        return [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]

    def result(id: str, name: str, content: str) -> Any:
        return {"role": "tool", "name": name, "content": content, "tool_call_id": id}

    assert made["messages"] == [
        result("call_0", "f", "before any call"),
        {"role": "assistant", "content": None, "tool_calls": called("call_1", "f", '{"a":1}')},
        result("call_1", "f", "1"),
        {"role": "assistant", "content": "so", "tool_calls": called("call_3", "g", "{}")},
        result("call_3", "g", "2"),
        result("call_1", "f", "3"),
    ]

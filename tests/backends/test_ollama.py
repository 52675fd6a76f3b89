"""Ollama's backend against the double of its server."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends import Address
from gateway.backends.ollama import OllamaBackend
from gateway.config import Model, PullSource, Runtime
from gateway.errors import (
    GatewayError,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnavailable,
    ProviderUnsupportedContentBlock,
    WeightsMissing,
)
from tests.backends.conftest import ask, folded
from tests.backends.ollama_double import OllamaDouble
from tests.gateway.double import Double, says
from tests.ports import free_port

QWEN = Model(name="qwen", runtime="ollama", model_name="qwen2.5:32b")
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
PLACES = "What is the weather in Paris and Rome?"


@pytest.fixture
def double() -> OllamaDouble:
    return OllamaDouble(
        {"qwen2.5:32b": ["completion", "tools", "thinking", "vision"], "old": None, "plain": ["completion"]}
    )


@pytest.fixture
async def address(double: OllamaDouble) -> AsyncIterator[Address]:
    async with double.serve() as at:
        yield at


def request(content: str = "hello there", **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode()


@pytest.mark.parametrize("stream", [False, True])
async def test_each_call_has_its_own_index_though_ollama_says_0(address: Address, stream: bool) -> None:
    ((content, calls, reason),) = folded(await ask(QWEN, address, request(PLACES, tools=[TOOL], stream=stream)))
    assert (content, reason) == ("", "tool_calls")
    assert [json.loads(call["text"]) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert [call["id"] for call in calls] == ["call_0paris", "call_1rome"]


async def test_one_role_and_the_usage_where_asked(address: Address) -> None:
    chunks = await ask(QWEN, address, request(stream=True, stream_options={"include_usage": True}))
    roles = [c["delta"].get("role") for chunk in chunks for c in chunk["choices"]]
    assert roles == ["assistant"] + [None] * (len(roles) - 1)
    assert folded(chunks) == [("You said: hello there", [], "stop")]
    assert chunks[-1]["usage"]["completion_tokens"] == 4


async def test_a_request_reaches_it_in_its_own_words(double: OllamaDouble, address: Address) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    empty = {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": ""}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": [call, empty]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    ]
    ((content, _, reason),) = folded(
        await ask(QWEN, address, json.dumps({"messages": messages, "max_completion_tokens": 2}).encode())
    )
    assert (content, reason) == ("The result ", "length")
    (asked,) = double.requests
    assert asked["model"] == "qwen2.5:32b"
    assert asked["options"] == {"num_predict": 2}
    assert asked["messages"][0]["role"] == "system"
    arguments = [call["function"]["arguments"] for call in asked["messages"][1]["tool_calls"]]
    assert arguments == [{"a": 1}, {}]
    assert asked["messages"][2] == {"role": "tool", "content": "7", "tool_name": "f", "tool_call_id": "call_1"}
    assert (asked["truncate"], asked["shift"]) == (False, False)


@pytest.mark.parametrize(
    ("name", "takes"),
    [("qwen2.5:32b", True), ("plain", False), ("old", True)],
    ids=["tools", "none", "by its template"],
)
async def test_takes_tools(address: Address, name: str, takes: bool) -> None:
    backend = OllamaBackend(Model(name=name, runtime="ollama"), address)
    assert await backend.takes_tools() is takes
    assert await backend.takes_tools() is takes
    await backend.ready()
    await backend.aclose()


@pytest.mark.parametrize(
    ("keep_alive", "told"),
    [(None, {}), (0, {"keep_alive": 0}), (60.0, {"keep_alive": 60}), (math.inf, {"keep_alive": -1})],
)
async def test_it_loads_and_unloads(
    keep_alive: float | None, told: dict[str, Any], double: OllamaDouble, address: Address
) -> None:
    backend = OllamaBackend(QWEN, address)
    await backend.load(keep_alive)
    assert double.requests == [{"model": "qwen2.5:32b", "stream": False, "options": {}, **told}]
    await backend.aclose()
    nobody = OllamaBackend(Model(name="nope", runtime="ollama"), address)
    with pytest.raises(WeightsMissing):
        await nobody.load(keep_alive)
    await nobody.aclose()


@pytest.mark.parametrize(
    ("pull", "cure"),
    [
        (PullSource(kind="ollama", name="nope"), "`ctxgate pull mine` or `ollama pull nope` fetches it"),
        (None, "; `ollama pull nope` fetches it"),
    ],
)
async def test_a_model_that_is_not_pulled(address: Address, pull: PullSource | None, cure: str) -> None:
    backend = OllamaBackend(Model(name="mine", runtime="ollama", model_name="nope", pull=pull), address)
    with pytest.raises(WeightsMissing, match=cure):
        await backend.ready()
    with pytest.raises(WeightsMissing, match="not found"):
        await backend.takes_tools()
    await backend.aclose()


async def test_no_ollama() -> None:
    backend = OllamaBackend(QWEN, Address(port=free_port()))
    with pytest.raises(ProviderUnavailable, match="nothing answers at"):
        await backend.ready()
    await backend.aclose()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (request("break the parser"), ProviderInvalidResponse),
        (request(messages=[{"role": "assistant", "tool_calls": [{"id": "call_1"}]}]), ProviderInvalidRequest),
        (request(messages=[{"role": "user", "content": [PICTURE]}]), ProviderUnsupportedContentBlock),
        (request(messages=[{"role": "user", "content": [{"type": "file"}]}]), ProviderUnsupportedContentBlock),
    ],
    ids=["the model's own bad call", "a call of nothing", "a picture elsewhere", "a file"],
)
async def test_errors(address: Address, body: bytes, error: type[GatewayError]) -> None:
    with pytest.raises(error):
        await ask(QWEN, address, body)


# A field of a request, and what of `/api/chat` it becomes.
FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "options": (
        {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 7, "stop": "x", "max_tokens": 3},
        {"options": {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 7, "stop": ["x"], "num_predict": 3}},
    ),
    "none given": ({"temperature": None, "stop": ["a"]}, {"options": {"stop": ["a"]}}),
    "its own options": ({"options": {"num_gpu": 1}}, {"options": {"num_gpu": 1}}),
    "passed on": ({"keep_alive": "5m"}, {"keep_alive": "5m"}),
    "json_object": ({"response_format": {"type": "json_object"}}, {"format": "json"}),
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
        {"format": {"type": "object"}},
    ),
    "text": ({"response_format": {"type": "text"}}, {"format": None}),
    "no effort": ({"reasoning_effort": "none"}, {"think": False}),
    "little effort": ({"reasoning_effort": "minimal"}, {"think": "low"}),
    "much effort": ({"reasoning_effort": "high"}, {"think": "high"}),
    "a picture": (
        {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]}]},
        {"messages": [{"role": "user", "content": "Look:", "images": ["AAAA"]}]},
    ),
    "past reasoning": (
        {"messages": [{"role": "assistant", "content": "A", "reasoning_content": "B"}]},
        {"messages": [{"role": "assistant", "content": "A", "thinking": "B"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "told"), FIELDS.values(), ids=FIELDS)
async def test_fields(double: OllamaDouble, address: Address, fields: dict[str, Any], told: dict[str, Any]) -> None:
    await ask(QWEN, address, request(**fields))
    (asked,) = double.requests
    assert {name: asked.get(name) for name in told} == told


# The context window

WINDOWED = replace(QWEN, context_window=600)


@pytest.mark.parametrize("stream", [False, True])
async def test_num_ctx_comes_from_config_and_an_oversize_prompt_is_refused_with_both_numbers(
    double: OllamaDouble, address: Address, stream: bool
) -> None:
    await ask(WINDOWED, address, request("word " * 590, stream=stream))
    assert double.requests[-1]["options"]["num_ctx"] == 600
    with pytest.raises(ProviderInvalidRequest) as caught:
        await ask(WINDOWED, address, request("word " * 596, stream=stream))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.details == {"prompt_tokens": 600, "context_window": 600}


async def test_settings_of_the_model_go_with_each_chat(double: OllamaDouble, address: Address) -> None:
    tuned = replace(QWEN, engine=Runtime(gpu_layers=0, main_gpu=1, threads=2, batch=64, mmap=False))
    await ask(tuned, address, request(options={"num_batch": 32}, temperature=0.5))
    launch = {"num_gpu": 0, "main_gpu": 1, "num_thread": 2, "num_batch": 32, "use_mmap": False}
    assert double.requests[-1]["options"].items() >= {**launch, "temperature": 0.5}.items()
    await ask(QWEN, address, request())
    assert double.requests[-1]["options"].keys().isdisjoint(launch)


async def test_what_a_request_says_of_num_ctx_wins(double: OllamaDouble, address: Address) -> None:
    await ask(WINDOWED, address, request(num_ctx=9000))
    await ask(WINDOWED, address, request(options={"num_ctx": 8000}))
    assert [asked["options"]["num_ctx"] for asked in double.requests] == [9000, 8000]


async def test_an_ollama_that_cuts_whatever_it_is_told_gets_no_prompt_that_may_not_fit(
    double: OllamaDouble, address: Address
) -> None:
    double.version = "0.12.5"
    await ask(WINDOWED, address, request("word " * 20))
    with pytest.raises(ProviderInvalidRequest, match=r"Ollama 0.12.5 would silently truncate it.* 0.12.6") as caught:
        await ask(WINDOWED, address, request("word " * 596))
    assert caught.value.code == "context_length_unknown"
    assert len(double.requests) == 1


# Its stream, as bytes of any split


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_lines_in_any_split(size: int) -> None:
    lines = [
        {"message": {"role": "assistant", "content": "", "thinking": "Hm"}, "done": False},
        {"message": {"role": "assistant", "content": "a"}, "done": False},
        {"message": {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "get_weather", "arguments": {"done": True}}}]}, "done": False},
        {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", "eval_count": 3},
    ]  # fmt: skip
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    async with Double(says(*pieces)).serve() as double:
        chunks = await ask(QWEN, double.address, request(tools=[TOOL], stream=True))
    ((content, (call,), reason),) = folded(chunks)
    assert (content, call["name"], call["text"], reason) == ("a", "get_weather", '{"done":true}', "tool_calls")
    assert chunks[0]["choices"][0]["delta"]["reasoning_content"] == "Hm"


ENDINGS: dict[str, tuple[bytes, type[GatewayError], str]] = {
    "no line": (b"", ProviderUnavailable, "ended in the middle"),
    "an error": (b'{"message": {"content": "a"}}\n{"error": "CUDA error"}\n', ProviderUnavailable, "CUDA error"),
    "no JSON": (b'{"message": {"content": "a"}}\n<html>\n', ProviderInvalidResponse, "malformed"),
}


@pytest.mark.parametrize(("body", "error", "words"), ENDINGS.values(), ids=ENDINGS)
async def test_streams_that_end_badly(body: bytes, error: type[GatewayError], words: str) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with Double(says(raw)).serve() as double:
        with pytest.raises(error, match=words):
            await ask(QWEN, double.address, request(stream=True))


@pytest.mark.parametrize(
    "said", [{"content": [{"type": "refusal", "refusal": "I won't."}]}, {"content": None, "refusal": "I won't."}]
)
async def test_a_past_refusal_is_text(double: OllamaDouble, address: Address, said: dict[str, object]) -> None:
    refusal = {"role": "assistant", **said}
    await ask(QWEN, address, json.dumps({"messages": [refusal, {"role": "user", "content": "Why?"}]}).encode())
    (asked,) = double.requests
    assert asked["messages"][0] == {"role": "assistant", "content": "I won't."}

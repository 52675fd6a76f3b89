"""Ollama's backend against the double of its server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.backends import Address
from gateway.backends.ollama import OllamaBackend
from gateway.config import Model
from gateway.engines.machine import free_port
from gateway.errors import (
    GatewayError,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnavailable,
)
from tests.backends.conftest import ask, folded
from tests.backends.ollama_double import OllamaDouble

QWEN = Model(name="qwen", runtime="ollama", model_name="qwen2.5:32b")
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
PLACES = "What is the weather in Paris and Rome?"


@pytest.fixture
def double() -> OllamaDouble:
    return OllamaDouble({"qwen2.5:32b": ["completion", "tools"], "old": None, "plain": ["completion"]})


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


async def test_what_ollama_ignores_reaches_it_in_its_own_words(double: OllamaDouble, address: Address) -> None:
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
    assert asked["max_tokens"] == 2
    assert asked["messages"][0]["role"] == "system"
    arguments = [call["function"]["arguments"] for call in asked["messages"][1]["tool_calls"]]
    assert arguments == ['{"a":1}', "{}"]


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


async def test_a_model_that_is_not_pulled(address: Address) -> None:
    backend = OllamaBackend(Model(name="mine", runtime="ollama", model_name="nope"), address)
    with pytest.raises(ProviderInvalidModel, match=r"`ctxgate pull mine` or `ollama pull nope` fetches it"):
        await backend.ready()
    with pytest.raises(ProviderInvalidModel, match="not found"):
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
        (json.dumps({"messages": [{"role": "user"}]}).encode(), ProviderInvalidRequest),
    ],
    ids=["the model's own bad call", "no content"],
)
async def test_errors(address: Address, body: bytes, error: type[GatewayError]) -> None:
    with pytest.raises(error):
        await ask(QWEN, address, body)

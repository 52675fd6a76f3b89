"""Names, ids and what a response repeats have a length; an error names the field, and holds none of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.media.requests import CreateImage, CreateSpeech, parser
from gateway.features.messages.wire.request import CreateMessage, chat_fields
from gateway.features.ollama.wire.request import Chat
from gateway.features.responses.wire.request import LONGEST_ECHO, CreateResponse, messages
from gateway.request.constraints import check_tools
from gateway.request.repair_history import LONGEST_ARGUMENTS, repair_history
from gateway.wire.body import LONGEST_ID, LONGEST_NAME
from gateway.wire.chat import LONGEST_TOOLS, ChatRequest, decode
from gateway.wire.completions import CreateCompletion
from gateway.wire.nulls import MAX_FIELDS

USER = {"role": "user", "content": "Hi"}
NAME, ID, ECHO = "n" * (LONGEST_NAME + 1), "i" * (LONGEST_ID + 1), "e" * (LONGEST_ECHO + 1)
ARGUMENTS = json.dumps({"a": "a" * LONGEST_ARGUMENTS})
Parse = Callable[[bytes], object]


def _chat(body: bytes) -> None:
    request = ChatRequest.parse(body)
    check_tools(request, "llama.cpp")
    repair_history(decode(request.fields["messages"]))


def _response(body: bytes) -> None:
    messages(None, CreateResponse.parse(body).items)


def _message(body: bytes) -> None:
    chat_fields(CreateMessage.parse(body))


def _tool(name: str = "f", kind: str = "object") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": kind}}}


TOO_LONG: dict[str, tuple[Parse, dict[str, Any], str]] = {
    "a model": (_chat, {"messages": [USER], "model": NAME}, "model"),
    "a model of Ollama's API": (Chat.parse, {"messages": [USER], "model": NAME}, "model"),
    "a tool": (_chat, {"messages": [USER], "tools": [_tool(NAME)]}, "tools[0].function.name"),
    "a tool without its function": (
        *(_chat, {"messages": [USER], "tools": [{"type": "function", "name": NAME}]}),
        "tools[0].function.name",
    ),
    "a type": (_chat, {"messages": [USER], "tools": [_tool(kind=ID)]}, "tools[0].function.parameters"),
    "a type of tools": (_chat, {"messages": [USER], "tools": [{"type": ID, "name": "f"}]}, "tools[0].type"),
    "tools": (
        *(_chat, {"messages": [USER], "tools": [_tool() | {"description": "d" * LONGEST_TOOLS}]}),
        "tools",
    ),
    "a call's id": (
        _chat,
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [{"id": ID, "function": {"name": "f", "arguments": "{}"}}]},
            ]
        },
        "messages.tool_calls.id",
    ),
    "a call's arguments": (
        _chat,
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ARGUMENTS}}]},
            ]
        },
        "messages.tool_calls.function.arguments",
    ),
    "a block's id": (
        _message,
        {
            "max_tokens": 9,
            "messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": ID, "name": "f"}]}],
        },
        "messages[1].content[0].id",
    ),
    "an item's id": (
        *(_response, {"input": [{"type": "function_call", "call_id": ID, "name": "f", "arguments": "{}"}]}),
        "input[0].call_id",
    ),
    "instructions": (_response, {"input": "Hi", "instructions": ECHO}, "instructions"),
    "tools to repeat": (
        *(_response, {"input": "Hi", "tools": [{"type": "function", "name": "f", "description": ECHO}]}),
        "tools",
    ),
    "metadata": (_response, {"input": "Hi", "metadata": {"a": NAME}}, "metadata"),
    "an effort": (_response, {"input": "Hi", "reasoning": {"effort": NAME}}, "reasoning.effort"),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_what_is_too_long(name: str) -> None:
    parse, body, param = TOO_LONG[name]
    with pytest.raises(ProviderInvalidRequest) as caught:
        parse(json.dumps(body).encode())
    assert caught.value.param == param
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (ChatRequest.parse, {"messages": [USER]}),
        (CreateCompletion.parse, {"prompt": "x"}),
        (parser(CreateSpeech), {"model": "m", "input": "x"}),
        (parser(CreateImage), {"model": "m", "prompt": "x"}),
    ],
    ids=["chat", "completion", "speech", "image"],
)
def test_a_request_has_so_many_fields(parse: Parse, body: dict[str, Any]) -> None:
    more = {f"f{number}": 0 for number in range(MAX_FIELDS - len(body))}
    parse(json.dumps(body | more).encode())
    with pytest.raises(ProviderInvalidRequest, match=f"at most {MAX_FIELDS} fields"):
        parse(json.dumps(body | more | {"one more": 0}).encode())

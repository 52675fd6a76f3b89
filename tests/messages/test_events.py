"""The order of the events of /v1/messages, by Anthropic's published specification.

Each event is also validated against the types of the `anthropic` package, which are generated from that specification.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import groupby
from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.errors import ProviderInvalidResponse
from gateway.features.messages.wire.answer import MessageEncoder
from gateway.wire.pieces import CallArguments, CallStart, End, Piece, ReasoningPiece, TextPiece, UsagePiece
from tests.api.asking import USAGE, USAGE_CHUNK, WEATHER, call, frames, said
from tests.gateway.double import Json, Script, answers, chunk, completion, streams
from tests.gateway.running import running


@cache
def published(name: str) -> TypeAdapter[Any]:
    """A type of the specification."""
    # Importing it takes seconds; at the top of the file each worker of pytest-xdist would pay them.
    from anthropic import types

    return TypeAdapter(getattr(types, name))


TOOLS: list[Json] = [
    {"name": "get_weather", "description": "Weather.", "input_schema": WEATHER},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
THINKING: Json = {"thinking": {"type": "enabled", "budget_tokens": 1024}}

START = ["message_start", "ping"]
TEXT = ["content_block_start text", "content_block_delta text_delta", "content_block_stop"]
THOUGHT = [
    "content_block_start thinking",
    "content_block_delta thinking_delta",
    "content_block_delta signature_delta",
    "content_block_stop",
]
USE = ["content_block_start tool_use", "content_block_delta input_json_delta", "content_block_stop"]
EMPTY = ["content_block_start text", "content_block_stop"]
END = ["message_delta", "message_stop"]

CASES: dict[str, tuple[Json, Script, list[str], str]] = {
    "a text": ({}, said(chunk(role="assistant", content=""), chunk("Hel"), chunk("lo")), TEXT, "end_turn"),
    "nothing": ({}, said(), EMPTY, "end_turn"),
    "a call": (
        {}, said(*call(0, "call_1", "get_weather", '{"city":', '"Paris"}'), reason="tool_calls"), USE, "tool_use",
    ),
    "a call without arguments": ({}, said(*call(0, "c", "now"), reason="tool_calls"), USE, "tool_use"),
    "two calls without arguments": (
        {},
        said(*call(0, "a", "now"), *call(1, "b", "now"), reason="tool_calls"),
        [*USE, *USE],
        "tool_use",
    ),
    "two calls": (
        {},
        said(*call(0, "a", "get_weather", '{"city":"A"}'), *call(1, "b", "now", "{}"), reason="tool_calls"),
        [*USE, *USE],
        "tool_use",
    ),
    "a text, then a call": (
        {}, said(chunk("Let me see."), *call(0, "c", "now", "{}"), reason="tool_calls"), [*TEXT, *USE], "tool_use",
    ),
    "thinking, then a text": (
        THINKING, said(chunk(reasoning_content="Hm"), chunk(reasoning="m."), chunk("Yes.")), [*THOUGHT, *TEXT],
        "end_turn",
    ),
    "thinking that nobody asked for": (
        {}, said(chunk(reasoning_content="Hm."), chunk("Yes.")), TEXT, "end_turn",
    ),
    "thinking that is not to be told": (
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        said(chunk(reasoning_content="Hm."), *call(0, "c", "now", "{}"), reason="tool_calls"),
        [THOUGHT[0], *THOUGHT[2:], *USE],
        "tool_use",
    ),
    "a limit": ({}, said(chunk("Hel"), reason="length"), TEXT, "max_tokens"),
    "a filter": ({}, said(chunk("Hel"), reason="content_filter"), TEXT, "refusal"),
}  # fmt: skip


def body(**fields: Any) -> Json:
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}], **fields}


async def asked(script: Script, **fields: Any) -> list[Json]:
    async with running(script) as gateway:
        answer = await gateway.ask(body(tools=TOOLS, stream=True, **fields), "/v1/messages?beta=true")
    assert answer.status == 200, answer.body
    found = []
    for name, event in frames(answer):
        assert event["type"] == name
        if name not in ("ping", "error"):  # these two the package handles before its types
            published("RawMessageStreamEvent").validate_python(event)
        found.append(event)
    return found


def named(event: Json) -> str:
    inner = event.get("content_block") or (event.get("delta") if "index" in event else None) or {}
    return f"{event['type']} {inner.get('type', '')}".strip()


async def test_usage_without_details() -> None:
    """Not every engine says how many tokens were cached."""
    bare = {**USAGE_CHUNK, "usage": {"prompt_tokens": 11, "completion_tokens": 7}}
    events = await asked(streams(chunk("Hi"), chunk(reason="stop"), bare))
    usage = {"input_tokens": 11, "cache_read_input_tokens": 0, "output_tokens": 7}
    assert events[-2]["usage"].items() >= usage.items()


@pytest.mark.parametrize("name", CASES)
async def test_order(name: str) -> None:
    fields, script, expected, stop_reason = CASES[name]
    events = await asked(script, **fields)
    assert [key for key, _ in groupby(map(named, events))] == [*START, *expected, *END]
    assert events[-2]["delta"] == {"stop_reason": stop_reason, "stop_sequence": None}
    assert events[-2]["usage"].items() >= {"input_tokens": 7, "cache_read_input_tokens": 4, "output_tokens": 7}.items()
    # Blocks are numbered from 0, and no two are open at once.
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert starts == [*range(len(starts))]
    open_block: int | None = None
    for event in events:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
        elif "index" in event:
            assert event["index"] == open_block
            open_block = None if event["type"] == "content_block_stop" else open_block
    for event in events:
        if named(event) == "content_block_start tool_use":
            parts = [e["delta"]["partial_json"] for e in events if e.get("index") == event["index"] and "delta" in e]
            assert isinstance(json.loads("".join(parts) or "{}"), dict)


async def test_an_engine_whose_stream_breaks() -> None:
    events = await asked(streams(chunk("Hel"), done=False))
    assert named(events[-1]) == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert all(value is not None for value in events[-1]["error"].values())


async def test_a_stop_sequence_that_the_engine_names() -> None:
    last = chunk(reason="stop")
    last["choices"][0]["stop_reason"] = "###"
    events = await asked(streams(chunk("Hello"), last))
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "###"}


async def test_whole() -> None:
    function = {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    whole = {
        **completion("Let me see.", reason="tool_calls", tool_calls=calls, reasoning_content="Hm."),
        "usage": USAGE,
    }
    async with running(answers(whole)) as gateway:
        message = (await gateway.ask(body(tools=TOOLS, **THINKING), "/v1/messages")).json
    published("Message").validate_python(message)
    thinking, text, use = message["content"]
    assert (thinking["type"], thinking["thinking"], text) == (
        "thinking",
        "Hm.",
        {"type": "text", "text": "Let me see."},
    )
    assert use == {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}}
    assert (message["stop_reason"], message["model"]) == ("tool_use", "m")


ERRORS: dict[str, tuple[Json | bytes, int, str]] = {
    "no JSON": (b"{", 400, "invalid_request_error"),
    "no max_tokens": ({"messages": [{"role": "user", "content": "x"}]}, 400, "invalid_request_error"),
    "no such model": (body(model="claude-x"), 404, "not_found_error"),
    "a PDF": (
        body(messages=[{"role": "user", "content": [
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}]}]),
        400,
        "invalid_request_error",
    ),
    "a role": (body(messages=[{"role": "robot", "content": "x"}]), 400, "invalid_request_error"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
async def test_errors(name: str) -> None:
    sent, status, kind = ERRORS[name]
    async with running(answers()) as gateway:
        answer = await gateway.ask(sent, "/v1/messages")
    assert (answer.status, answer.json["type"], answer.error["type"]) == (status, "error", kind)
    assert all(value is not None for value in answer.error.values())


async def test_the_key_in_x_api_key() -> None:
    async with running(answers(), keys=("sk-test",)) as gateway:
        assert (await gateway.ask(body(), "/v1/messages", "x-api-key: sk-test\r\n")).status == 200
        assert (await gateway.ask(body(), "/v1/messages", "authorization: Bearer sk-test\r\n")).status == 200
        wrong = await gateway.ask(body(), "/v1/messages", "x-api-key: sk-wrong\r\n")
        assert (wrong.status, wrong.error["type"]) == (401, "authentication_error")
        async with await gateway.connect() as client:
            await client.send(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await client.answer(bodyless=True)).status == 200


async def test_a_busy_engine_is_overloaded() -> None:
    async with running(answers({"error": {"message": "Loading model", "code": 503}}, status=503)) as gateway:
        answer = await gateway.ask(body(), "/v1/messages")
    assert (answer.status, answer.error["type"]) == (503, "overloaded_error")
    assert answer.headers["retry-after"]


def test_arguments_for_a_call_that_has_ended_are_an_error() -> None:
    encoder = MessageEncoder("m", thinking=False)
    encoder.feed([CallStart(0, "a", "now"), CallArguments(0, "{}"), CallStart(1, "b", "later")])
    with pytest.raises(ProviderInvalidResponse, match="call 0, which has ended"):
        encoder.feed([CallArguments(0, '{"n": 1}')])


def test_the_end_of_the_stream_repeats_calls_without_arguments() -> None:
    encoder = MessageEncoder("m", thinking=False)
    encoder.feed([CallStart(0, "a", "now"), CallStart(1, "b", "later"), CallArguments(0, "{}"), CallArguments(1, "{")])
    encoder.feed([CallArguments(1, '"n":1}')])
    encoder.finish()
    assert [block["input"] for block in encoder.message["content"]] == [{}, {"n": 1}]


@pytest.mark.parametrize(("reason", "found"), [("length", {}), ("tool_calls", None)])
def test_arguments_that_are_no_json_are_left_out_only_if_the_limit_cut_them(reason: str, found: Json | None) -> None:
    encoder = MessageEncoder("m", thinking=False)
    encoder.feed([CallStart(0, "a", "now"), CallArguments(0, '{"n": '), End(reason)])
    if found is None:
        with pytest.raises(ProviderInvalidResponse, match="not valid JSON"):
            encoder.finish()
    else:
        encoder.finish()
        assert encoder.message["content"] == [{"type": "tool_use", "id": "a", "name": "now", "input": found}]


def test_blocks_are_as_pieces_change() -> None:
    """Neighbouring pieces of one kind share a block; a call never does."""
    encoder = MessageEncoder("m", thinking=True)
    said: list[Piece] = [
        ReasoningPiece("H"),
        ReasoningPiece("m."),
        TextPiece("S"),
        TextPiece(""),
        TextPiece("o"),
        CallStart(0, "a", "f"),
    ]
    encoder.feed([*said, CallStart(1, "b", "f"), TextPiece("!"), UsagePiece(prompt=9, completion=2, cached=4)])
    encoder.finish()
    first, *others = encoder.message["content"]
    assert (first["type"], first["thinking"]) == ("thinking", "Hm.")
    assert first["signature"]
    assert others == [
        {"type": "text", "text": "So"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
        {"type": "tool_use", "id": "b", "name": "f", "input": {}},
        {"type": "text", "text": "!"},
    ]
    assert encoder.message["usage"] == {
        "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 2,
    }  # fmt: skip
    assert encoder.opening()[0]["message"]["content"] == [], "the message begins without content"


@pytest.mark.parametrize(
    ("tier", "named"), [("priority", "priority"), ("flex", "batch"), ("default", "standard"), ("auto", "standard")]
)
def test_a_tier_has_anthropic_s_name(tier: str, named: str) -> None:
    encoder = MessageEncoder("m", thinking=False)
    encoder.name_tier(None)
    assert "service_tier" not in encoder.message["usage"]
    encoder.name_tier(tier)
    assert encoder.message["usage"]["service_tier"] == named
    encoder.feed([UsagePiece(prompt=1)])
    assert encoder.message["usage"].items() >= {"service_tier": named, "input_tokens": 1}.items()

"""A streamed answer is the whole answer in pieces, however the bytes are cut."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.provider import (
    Capabilities,
    OpenAIProvider,
    ReasoningDelta,
    Response,
    StructuredOutputInvalid,
    TextDelta,
    Tool,
    ToolCallDelta,
    UserMessage,
)
from gateway.provider.mapping.openai import OpenAICall as Call
from gateway.provider.stream import read_events
from gateway.wire.sse import DEFAULT_MAX_EVENT_SIZE
from tests.patience import PATIENCE

from .doubles import answering, provider_of
from .server import Receive, Scope, Send, answer, read_json, serve
from .strategies import json_values

HI = [UserMessage("hi")]
WEATHER = Tool("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
DONE = "[DONE]"


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]}


def piece(index: int, arguments: str, **entry: Any) -> dict[str, Any]:
    return {"index": index, **entry, "function": {**entry.pop("function", {}), "arguments": arguments}}


def begun(index: int, arguments: Any = "") -> dict[str, Any]:
    call = {"index": index, "id": f"call_{index}", "type": "function"}
    return {**call, "function": {"name": "get_weather", "arguments": arguments}}


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
LAST = {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": USAGE, "timings": {"n": 1}}

TEXT = [
    chunk(role="assistant", content=""),
    chunk(content="Grüß"),
    chunk(content=" dich\u2028!"),
    chunk("stop"),
    LAST,
    DONE,
]
CALLS = [
    chunk(role="assistant", content=None),
    chunk(reasoning_content="hm"),
    chunk(tool_calls=[begun(0)]),
    chunk(tool_calls=[piece(0, '{"ci')]),
    chunk(tool_calls=[piece(0, 'ty":"Paris"}'), begun(1, "{}")]),
    chunk("tool_calls"),
    LAST,
    DONE,
]


def sse(*events: Any, end: str = "\n") -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event, ensure_ascii=False) for event in events]
    return "".join(f"data: {line}{end}{end}" for line in lines).encode()


def call(**arguments: Any) -> Call:
    return Call.check("m", Capabilities(), HI, tools=[WEATHER], stream=True, **arguments)


async def read(body: bytes, cuts: tuple[int, ...] = (), **arguments: Any) -> list[Any]:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for start, end in zip((0, *cuts), (*cuts, len(body)), strict=True):
            yield body[start:end]

    return [event async for event in read_events(pieces(), call(**arguments))]


def whole(message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}
    fixed = {"id": "c1", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice]}
    return {**fixed, "usage": USAGE, "timings": {"n": 1}}


WHOLE_TEXT = whole({"content": "Grüß dich\u2028!"}, "stop")
WHOLE_CALLS = whole(
    {
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [begun(0, '{"city":"Paris"}'), begun(1, "{}")],
    },
    "tool_calls",
)
for entry in WHOLE_CALLS["choices"][0]["message"]["tool_calls"]:
    del entry["index"]


@pytest.mark.parametrize(("events", "body"), [(TEXT, WHOLE_TEXT), (CALLS, WHOLE_CALLS)], ids=["text", "calls"])
async def test_ends_in_the_response_of_the_whole_answer(events: list[Any], body: dict[str, Any]) -> None:
    *_, last = await read(sse(*events))
    assert last == call().response(body)


async def test_deltas() -> None:
    assert (await read(sse(*TEXT)))[:-1] == [TextDelta("Grüß"), TextDelta(" dich\u2028!")]
    assert (await read(sse(*CALLS)))[:-1] == [
        ReasoningDelta("hm"),
        ToolCallDelta(0, "call_0", "get_weather", ""),
        ToolCallDelta(0, None, None, '{"ci'),
        ToolCallDelta(0, None, None, 'ty":"Paris"}'),
        ToolCallDelta(1, "call_1", "get_weather", "{}"),
    ]


@given(st.sampled_from([TEXT, CALLS]), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_any_split_of_the_bytes_gives_the_same_events(events: list[Any], end: str, data: st.DataObject) -> None:
    body = b": keepalive 1/1\r\n\r\n" + sse(*events, end=end)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=12).map(lambda cuts: tuple(sorted(cuts))))
    assert asyncio.run(read(body, cuts)) == asyncio.run(read(sse(*events)))


async def test_an_endless_event_is_refused() -> None:
    with pytest.raises(GatewayError, match="event exceeds") as caught:
        await read(b"x" * (DEFAULT_MAX_EVENT_SIZE + 1))
    assert caught.value.category == "provider_invalid_response"


@pytest.mark.parametrize(
    ("body", "category"),
    [
        pytest.param(sse(*TEXT[:2]), "provider_unavailable", id="broken off"),
        pytest.param(sse(*TEXT[:2], DONE), "provider_invalid_response", id="ended without finish_reason"),
        pytest.param(b"", "provider_invalid_response", id="empty"),
        pytest.param(sse(DONE), "provider_invalid_response", id="nothing but the end"),
        pytest.param(b"<html>", "provider_invalid_response", id="no events"),
        pytest.param(sse("{"), "provider_invalid_response", id="not JSON"),
        pytest.param(sse("[]"), "provider_invalid_response", id="no object"),
        pytest.param(sse({"choices": {}}, {"choices": 1}), "provider_invalid_response", id="choices no array"),
        pytest.param(sse({"choices": [1]}), "provider_invalid_response", id="choice no object"),
        pytest.param(sse({"choices": [{"delta": "x"}]}), "provider_invalid_response", id="delta no object"),
        pytest.param(
            sse(chunk("stop", tool_calls=[piece(3, "{}")]), DONE),
            "provider_invalid_response",
            id="call without a beginning",
        ),
        pytest.param(sse(chunk(tool_calls=["x"])), "provider_invalid_response", id="call no object"),
        pytest.param(sse(chunk(tool_calls=[{"index": 0, "function": 1}])), "provider_invalid_response", id="function"),
        pytest.param(sse(chunk(tool_calls=[begun(0, ["x"])])), "provider_invalid_response", id="arguments no text"),
        pytest.param(
            sse(chunk("stop", tool_calls=[begun(0, "{")]), DONE), "provider_invalid_response", id="bad arguments"
        ),
        pytest.param(
            sse(TEXT[1], {"error": {"message": "x", "category": "provider_rate_limit"}}),
            "provider_rate_limit",
            id="error frame of the gateway",
        ),
        pytest.param(sse({"error": {"code": 500, "message": "x"}}), "provider_unavailable", id="error frame, 500"),
        pytest.param(sse({"error": {"code": 401, "message": "x"}}), "provider_authentication", id="error frame, 401"),
        pytest.param(
            sse({"error": {"type": "invalid_request_error"}}), "provider_invalid_request", id="error frame, type"
        ),
        pytest.param(sse({"error": "boom"}), "provider_unavailable", id="error frame, text"),
    ],
)
async def test_failures_in_the_stream(body: bytes, category: str) -> None:
    with pytest.raises(GatewayError) as caught:
        await read(body)
    assert caught.value.category == category


@given(st.lists(json_values, max_size=4))
def test_no_json_event_escapes_the_categories(events: list[Any]) -> None:
    for wrapped in (events, [{"choices": [{"delta": event}]} for event in events], [{"choices": events}]):
        with pytest.raises(GatewayError):
            asyncio.run(read(sse(*map(json.dumps, wrapped), DONE)))


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*TEXT[:-1]], id="no [DONE]"),
        pytest.param([*TEXT[:3], chunk("stop"), LAST, DONE, "anything"], id="more after [DONE]"),
        pytest.param([*TEXT[:1], {"choices": None, "id": "c1"}, *TEXT[1:]], id="null choices"),
        pytest.param([TEXT[0], {"choices": [{"index": 1, "delta": {"content": "x"}}]}, *TEXT[1:]], id="second choice"),
    ],
)
async def test_streams_that_servers_really_send(events: list[Any]) -> None:
    *_, last = await read(sse(*events))
    assert last == (await read(sse(*TEXT)))[-1]


async def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    entries = [begun(0, "{}"), begun(1, "")]
    for item in entries:
        del item["index"]
    fragment = {"function": {"arguments": '{"city":"Bonn"}'}}
    *_, last = await read(sse(chunk(tool_calls=entries), chunk("tool_calls", tool_calls=[fragment]), DONE))
    assert [(c.id, c.arguments) for c in last.message.tool_calls] == [("call_0", {}), ("call_1", {"city": "Bonn"})]


async def test_indices_count_up_from_wherever_the_server_begins() -> None:
    *events, last = await read(
        sse(chunk(tool_calls=[begun(1, "{}")]), chunk("tool_calls", tool_calls=[begun(7, "{}")]), DONE)
    )
    assert [event.index for event in events] == [0, 1]
    assert [call.id for call in last.message.tool_calls] == ["call_1", "call_7"]


async def test_logprobs_and_both_names_of_reasoning() -> None:
    first, second = chunk(reasoning_content="a", reasoning="a"), chunk("stop", content="b")
    first["choices"][0]["logprobs"] = {"content": [1], "refusal": None}
    second["choices"][0]["logprobs"] = {"content": [2], "refusal": None}
    *events, last = await read(sse(first, second, DONE))
    assert events == [ReasoningDelta("a"), TextDelta("b")]
    assert last.raw["choices"][0]["logprobs"] == {"content": [1, 2], "refusal": None}


async def test_structured_output_of_a_stream() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    *_, last = await read(sse(chunk(content='{"a"'), chunk("stop", content=":1}"), DONE), response_schema=schema)
    assert last.parsed == {"a": 1}
    with pytest.raises(StructuredOutputInvalid) as caught:
        await read(sse(chunk("length", content='{"a"'), DONE), response_schema=schema)
    assert (caught.value.output_content, caught.value.finish_reason) == ('{"a"', "length")


async def begin(receive: Receive, send: Send) -> None:
    body = await read_json(receive)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": sse(*TEXT[:2]), "more_body": True})


class Dripping:
    """Sends the first token, and the others when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await begin(receive, send)
        if await asyncio.to_thread(self.go_on.wait, PATIENCE):
            await send({"type": "http.response.body", "body": sse(*TEXT[2:])})


class Leaving:
    """Sends the first token and waits for what the client does then."""

    def __init__(self) -> None:
        self.event: Future[str] = Future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await begin(receive, send)
        self.event.set_result((await receive())["type"])


async def test_a_token_is_there_before_the_next_one_is_written() -> None:
    app = Dripping()
    with serve(app) as url:
        async with OpenAIProvider(url, "m") as provider, await provider.complete(HI, stream=True) as stream:
            assert await anext(stream) == TextDelta("Grüß")
            app.go_on.set()
            response = await stream.response()
    assert response.message.content == "Grüß dich\u2028!"


async def test_leaving_the_stream_ends_the_call() -> None:
    app = Leaving()
    with serve(app) as url:
        async with OpenAIProvider(url, "m") as provider:
            async with await provider.complete(HI, stream=True) as stream:
                assert await anext(stream) == TextDelta("Grüß")
            with pytest.raises(GatewayError, match="closed before"):
                await stream.response()
            assert await asyncio.to_thread(app.event.result, PATIENCE) == "http.disconnect"


async def test_refusals_come_before_the_stream() -> None:
    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 429, {"error": {"message": "busy"}})

    with serve(busy) as url:
        async with OpenAIProvider(url, "m") as provider:
            with pytest.raises(GatewayError) as caught:
                await provider.complete(HI, stream=True)
    assert caught.value.category == "provider_rate_limit"


async def test_a_whole_body_is_no_stream() -> None:
    provider = provider_of(answering(httpx.Response(200, json=WHOLE_TEXT)))
    with pytest.raises(GatewayError, match="whole body"):
        await provider.complete(HI, stream=True)


async def test_a_connection_that_is_cut_in_the_stream() -> None:
    class Cut(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield sse(*TEXT[:2])
            raise httpx.ReadError("cut")

    headers = {"content-type": "text/event-stream"}
    provider = provider_of(answering(httpx.Response(200, headers=headers, stream=Cut())))
    stream = await provider.complete(HI, stream=True)
    assert await anext(stream) == TextDelta("Grüß")
    with pytest.raises(GatewayError) as caught:
        await stream.response()
    assert caught.value.category == "provider_unavailable"
    assert isinstance(caught.value.__cause__, httpx.ReadError)


def test_the_last_event_is_the_response() -> None:
    *_, last = asyncio.run(read(sse(*TEXT)))
    assert isinstance(last, Response)

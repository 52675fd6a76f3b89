"""Calls in a stream: held until they are complete, or piece by piece, as `call_deltas` says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.ollama_double import OllamaDouble
from tests.gateway.accumulator import Call, from_stream, from_whole
from tests.gateway.client import Client, chat
from tests.gateway.double import Exchange, Json, answers, chunk, completion, streams
from tests.gateway.running import Running, running

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": PARAMETERS}}]
PIECES = ["Look: ", "<|tool_call_start|>", "[note(te", 'xt="a', " b", ' c")', "]", "<|tool_call_end|>"]
BROKEN = ["<|tool_call_start|>", '[note(text="a', " b", '"', "+ 1", ")]", "<|tool_call_end|>"]
QUICK = {"progress_after_seconds": 0.05, "keep_alive_seconds": 0.05}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def body(**fields: Any) -> Json:
    return chat(tools=TOOLS, **fields)


def deltas(payloads: list[bytes]) -> list[Json]:
    """The fragments of calls."""
    chunks = [json.loads(payload) for payload in payloads if payload != b"[DONE]"]
    return [call for each in chunks for choice in each["choices"] for call in choice["delta"].get("tool_calls") or ()]


@pytest.mark.parametrize("of_model", ["guarded", "always", "complete"])
@pytest.mark.parametrize("of_request", [None, "guarded", "always", "complete"])
async def test_calls_leave_as_the_model_or_the_request_says(of_model: str, of_request: str | None) -> None:
    wanted = {} if of_request is None else {"call_deltas": of_request}
    script = streams(*map(chunk, PIECES), chunk(reason="stop"))
    async with running(script, tool_call_format="pythonic", call_deltas=of_model) as gateway:
        answer = await gateway.ask(body(stream=True, **wanted))
        (asked,) = gateway.engine.requests
    fragments = deltas(answer.events)
    assert "call_deltas" not in asked.json
    assert json.loads("".join(part["function"]["arguments"] for part in fragments)) == {"text": "a b c"}
    assert (len(fragments) > 2) == ((of_request or of_model) == "always")


async def test_another_word_is_refused() -> None:
    async with running(answers(), tool_call_format="pythonic") as gateway:
        answer = await gateway.ask(body(call_deltas="sometimes"))
    assert (answer.status, answer.error["param"]) == (400, "call_deltas")


@asynccontextmanager
async def writing(protocol: str, pieces: list[str], reason: str) -> AsyncIterator[Running]:
    """A gateway before an engine that writes these pieces streamed, then their text whole."""
    if protocol == "ollama":
        double = OllamaDouble({"m": ["completion", "tools"]}, script=lambda _: (pieces, []), reason=reason)
        async with double.serve() as at:
            settings: Json = {"runtime": "ollama", "base_url": f"http://127.0.0.1:{at.port}"}
            async with running(answers(), tool_call_format="pythonic", **settings) as gateway:
                yield gateway
    else:
        whole = answers(completion("".join(pieces), reason=reason))
        scripts = streams(*map(chunk, pieces), chunk(reason=reason)), whole
        async with running(*scripts, tool_call_format="pythonic") as gateway:
            yield gateway


@pytest.mark.parametrize("protocol", ["openai", "ollama"])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    "pieces", [PIECES, BROKEN, PIECES[:-3], BROKEN[:2]], ids=["good", "broken", "cut", "cut early"]
)
@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_whole_and_streamed_are_equal(pieces: list[str], reason: str, declared: bool, protocol: str) -> None:
    fields: dict[str, Any] = {"tools": TOOLS} if declared else {}
    async with writing(protocol, pieces, reason) as gateway:
        streamed = from_stream((await gateway.ask(chat(stream=True, **fields))).events[:-1])[0]
        whole = from_whole((await gateway.ask(chat(**fields))).body)[0]
    assert (streamed.content, streamed.calls, streamed.reason) == (whole.content, whole.calls, whole.reason)
    if not declared:
        assert (whole.content, whole.calls, whole.reason) == ("".join(pieces), [], reason)
    elif reason == "length" and pieces == PIECES[:-3]:
        assert whole.calls == [Call("note", '{"text": "a b')]


class Slow:
    """An engine that writes half of a call, and the rest when it is told to."""

    def __init__(self, *before: str) -> None:
        self._before = before
        self.more = asyncio.Event()

    async def streams(self, exchange: Exchange) -> None:
        await exchange.start()
        half = len(PIECES) - 3
        await exchange.event(*map(chunk, (*self._before, *PIECES[1:half])))
        await self.more.wait()
        await exchange.event(*map(chunk, PIECES[half:]), chunk(reason="stop"))
        await exchange.end()


async def until(client: Client, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += await client.part()
    return seen


@pytest.mark.parametrize("before", [(), ("Look: ",)], ids=["at once", "behind text"])
async def test_comments_say_how_far_a_held_call_is(http: str, before: tuple[str, ...]) -> None:
    slow = Slow(*before)
    async with (
        running(slow.streams, http=http, progress=QUICK, tool_call_format="pythonic") as gateway,
        await gateway.connect() as client,
    ):
        await client.post(body(stream=True))
        await client.head()
        seen = await until(client, b": ctxgate calling note characters=15\n\n")
        assert b"tool_calls" not in seen
        slow.more.set()
        rest = b"".join([part async for part in client.parts()])
    assert b'\\"a b c\\"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_anthropics_api_pings_while_a_call_is_held() -> None:
    slow = Slow("Look: ")
    tools = [{"name": "note", "input_schema": PARAMETERS}]
    asked = {"model": "m", "max_tokens": 50, "stream": True, "tools": tools}
    asked["messages"] = [{"role": "user", "content": "Hi"}]
    async with (
        running(slow.streams, progress=QUICK, tool_call_format="pythonic") as gateway,
        await gateway.connect() as client,
    ):
        await client.post(asked, "/v1/messages")
        await client.head()
        await until(client, b": ctxgate calling note characters=15\n\n" + PING)
        slow.more.set()
        rest = b"".join([part async for part in client.parts()])
    assert b'"partial_json":"{\\"text\\": \\"a b c\\"}"' in rest


async def test_a_cut_call_on_anthropics_and_ollamas_api() -> None:
    """Neither can express half of an object."""
    cut = completion("".join(PIECES[:-3]), reason="length")
    ask = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    async with running(answers(cut), answers(cut), tool_call_format="pythonic") as gateway:
        tools = [{"name": "note", "input_schema": PARAMETERS}]
        messages = (await gateway.ask({**ask, "max_tokens": 9, "tools": tools}, "/v1/messages")).json
        ollama = (await gateway.ask({**ask, "stream": False, "tools": TOOLS}, "/api/chat")).json
    assert messages["stop_reason"] == "max_tokens"
    assert [(block["name"], block["input"]) for block in messages["content"] if block["type"] == "tool_use"] == [
        ("note", {})
    ]
    assert (ollama["done_reason"], ollama["message"].get("tool_calls")) == ("length", None)

"""The order of the events of /v1/responses, by OpenAI's published specification.

Each event is also validated against the types of the `openai` package, which are generated from that specification.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.asking import USAGE_CHUNK, call, frames, said
from tests.gateway.double import Json, Script, chunk, completion, streams
from tests.gateway.running import running
from tests.responses.events import CASES, MESSAGE, REASONING, START, SUMMED, TOOLS

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def asked(script: Script, **fields: Any) -> list[Json]:
    body = {"model": "m", "input": "Hello", "tools": TOOLS, "stream": True, "store": False, **fields}
    async with running(script) as gateway:
        answer = await gateway.ask(body, "/v1/responses")
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for number, (name, event) in enumerate(frames(answer)):
        assert event["type"] == name
        assert event["sequence_number"] == number
        EVENT.validate_python(event)
        found.append(event)
    return found


def named(event: Json) -> str:
    inner = event.get("item") or event.get("part") or {}
    return f"{event['type']} {inner.get('type', '')}".strip()


@pytest.mark.parametrize("name", CASES)
async def test_order(name: str) -> None:
    script, expected = CASES[name]
    events = await asked(script)
    # However many deltas there are, they stand in one place.
    assert [key for key, _ in groupby(map(named, events))] == [*expected, "response.completed"]
    laws(events)


def laws(events: list[Json]) -> None:
    """What the events say of each item is what the response says in the end."""
    final = events[-1]["response"]
    Response.model_validate(final)
    for index, item in enumerate(final["output"]):
        about = [event for event in events if event.get("output_index") == index]
        assert about[0]["type"] == "response.output_item.added"
        assert about[-1]["type"] == "response.output_item.done"
        assert about[-1]["item"] == item
        assert all(event.get("item_id", item["id"]) == item["id"] for event in about)
        deltas = "".join(
            event["delta"] for event in about if event["type"].endswith(".delta") and "summary_index" not in event
        )
        whole = {
            "message": lambda item: item["content"][0]["text"],
            "reasoning": lambda item: item["content"][0]["text"],
            "function_call": lambda item: item["arguments"],
            "custom_tool_call": lambda item: item["input"],
        }[item["type"]](item)
        assert deltas == whole


REASONED = said(chunk(reasoning_content="Hmm."), chunk("Yes."))
SUMMARIES: dict[str, tuple[Json | None, str | None]] = {
    "automatic": ({"summary": "auto"}, "auto"),
    "detailed": ({"effort": "low", "summary": "detailed"}, "detailed"),
    "concise, in the old word": ({"generate_summary": "concise"}, "concise"),
    "none": ({"summary": "none"}, None),
    "null": ({"effort": "low", "summary": None}, None),
    "not asked for": (None, None),
}


@pytest.mark.parametrize("name", SUMMARIES)
async def test_a_summary_of_the_reasoning(name: str) -> None:
    """Nobody writes another one, so it is the text itself, which many clients look for there alone."""
    reasoning, summary = SUMMARIES[name]
    events = await asked(REASONED, reasoning=reasoning)
    assert list(map(named, events)) == [*START, *(SUMMED if summary else REASONING), *MESSAGE, "response.completed"]
    laws(events)
    response = events[-1]["response"]
    item = response["output"][0]
    assert response["reasoning"]["summary"] == summary
    assert item["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert item["summary"] == ([{"type": "summary_text", "text": "Hmm."}] if summary else [])
    parts = [event for event in events if "summary_index" in event]
    assert {event["summary_index"] for event in parts} == ({0} if summary else set())
    texts = [event["part"]["text"] for event in parts if "part" in event]
    assert texts == (["", "Hmm."] if summary else [])


async def test_a_summary_is_read_again_once() -> None:
    """Whatever of the item a client sends back: the text is in it twice."""
    item = (await asked(REASONED, reasoning={"summary": "auto"}))[-1]["response"]["output"][0]
    lefts: list[Json] = [{}, {"content": []}, {"content": None}, {"summary": []}]
    for left in lefts:
        past = [{"role": "user", "content": "Hi"}, {**item, **left}, {"role": "assistant", "content": "Yes."}]
        async with running(said(chunk("Fine."))) as gateway:
            await gateway.ask({"input": past, "stream": True, "store": False}, "/v1/responses")
            assert (await gateway.engine.asked()).json["messages"][1]["reasoning_content"] == "Hmm."


async def test_a_call_whole() -> None:
    events = await asked(CASES["a call"][0])
    (item,) = events[-1]["response"]["output"]
    assert item.items() >= {"type": "function_call", "name": "get_weather", "call_id": "call_1"}.items()
    assert json.loads(item["arguments"]) == {"city": "Paris"}
    assert item["status"] == "completed"
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    }


async def test_usage_without_details() -> None:
    """Not every engine says how many tokens were cached or reasoning."""
    bare = {**USAGE_CHUNK, "usage": {"prompt_tokens": 11, "completion_tokens": 7}}
    events = await asked(streams(chunk("Hi"), chunk(reason="stop"), bare))
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_verbosity_is_echoed(stream: bool) -> None:
    for text, found in (
        ({"verbosity": "low"}, {"format": {"type": "text"}, "verbosity": "low"}),
        ({}, {"format": {"type": "text"}}),
    ):
        script = said(chunk("Hi")) if stream else streams_whole(completion("Hi"))
        async with running(script) as gateway:
            answer = await gateway.ask({"input": "Hi", "text": text, "stream": stream, "store": False}, "/v1/responses")
        response = frames(answer)[-1][1]["response"] if stream else answer.json
        assert response["text"] == found


async def test_a_namespace_and_a_custom_tool_keep_their_names() -> None:
    (item,) = (await asked(CASES["a tool in a namespace"][0]))[-1]["response"]["output"]
    assert item.items() >= {"namespace": "agents", "name": "close"}.items()
    (item,) = (await asked(CASES["a custom tool"][0]))[-1]["response"]["output"]
    assert item.items() >= {"name": "apply_patch", "input": "*** Begin\nx"}.items()


async def test_a_limit() -> None:
    events = await asked(said(chunk("Hello wor"), reason="length"))
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    laws(events)


async def test_an_engine_whose_stream_breaks() -> None:
    """What had come is whole, then an `error` event, then the response as failed."""
    events = await asked(streams(chunk("Hel"), done=False))
    assert [named(event) for event in events[-5:]] == [
        "response.output_text.done",
        "response.content_part.done output_text",
        "response.output_item.done message",
        "error",
        "response.failed",
    ]
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert response["output"][0]["content"][0]["text"] == "Hel"
    assert all(value is not None for value in (events[-2]["code"], events[-2]["message"]))


async def test_a_client_that_stores_nothing_gets_sealed_reasoning() -> None:
    script = said(chunk(reasoning_content="Hm."), *call(0, "c", "now", "{}"), reason="tool_calls")
    events = await asked(script, store=False, include=["reasoning.encrypted_content"])
    reasoning, called = events[-1]["response"]["output"]
    del reasoning["content"]  # as Codex replays it
    past = [
        {"role": "user", "content": "Hello"},
        reasoning,
        called,
        {"type": "function_call_output", "call_id": called["call_id"], "output": "noon"},
    ]
    async with running(said(chunk("It is noon."))) as gateway:
        await gateway.ask({"input": past, "tools": TOOLS, "stream": True, "store": False}, "/v1/responses")
        sent = (await gateway.engine.asked()).json["messages"]
    assert sent[1]["reasoning_content"] == "Hm."
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("name", ["a text", "two calls", "reasoning, then a text", "a custom tool"])
async def test_whole_and_streamed_are_the_same(name: str) -> None:
    """The engine's whole answer gives the response that its stream ends with."""
    streamed = (await asked(CASES[name][0], store=False))[-1]["response"]
    message: Json = {"content": None}
    calls = [
        {"id": "c", "type": "function", "function": {"name": item["name"], "arguments": _arguments(item)}}
        for item in streamed["output"]
        if "call_id" in item
    ]
    for item in streamed["output"]:
        if item["type"] == "message":
            message["content"] = item["content"][0]["text"]
        if item["type"] == "reasoning":
            message["reasoning_content"] = item["content"][0]["text"]
    if calls:
        message["tool_calls"] = [{**one, "id": f"call_{at}"} for at, one in enumerate(calls)]
    whole = {**completion(**message), "usage": USAGE_CHUNK["usage"]}
    async with running(streams_whole(whole)) as gateway:
        answer = await gateway.ask({"input": "Hello", "tools": TOOLS, "store": False}, "/v1/responses")
    body = answer.json
    Response.model_validate(body)
    strip = {"id", "created_at", "completed_at"}
    assert {k: v for k, v in body.items() if k not in {*strip, "output"}} == {
        k: v for k, v in streamed.items() if k not in {*strip, "output"}
    }
    assert list(map(_bare, body["output"])) == list(map(_bare, streamed["output"]))


def streams_whole(body: Json) -> Script:
    async def script(exchange: Any) -> None:
        await exchange.whole(body)

    return script


def _arguments(item: Json) -> str:
    return item["arguments"] if "arguments" in item else json.dumps({"input": item["input"]})


def _bare(item: Json) -> Json:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}

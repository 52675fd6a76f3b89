"""An answer that looks like a call which nobody read: the request log says so, and the answer stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.answer.normalize import Answer
from gateway.observe.request_log import LEFT, OK, repairs
from gateway.wire.chat import ChatRequest
from normalizers import registry
from normalizers.unread import MAX_CHARACTERS
from tests.api.allowed_tools import TOOLS, allowing, says, wrote
from tests.gateway.client import chat
from tests.gateway.double import Json, chunk, completion
from tests.gateway.running import running

LOST = "[TOOL_CALL] get_weather in Paris"
NAMED = '{"name": "get_weather", "arguments": {"city": '
JSON_ORDER: Json = {"type": "json_object"}


def answer(format: str, content: str | None, *, stream: bool, fields: Json, **message: Any) -> Answer:
    """An answer that has ended. Streamed, it comes in pieces of three characters."""
    request = ChatRequest.parse(json.dumps(chat(tools=TOOLS, stream=stream) | fields).encode())
    read = Answer(request, registry.get(format))
    if not stream:
        read.whole(json.dumps(completion(content, **message)).encode())
        return read
    text = content or ""
    pieces = [chunk("", role="assistant", **message), *(chunk(text[at : at + 3]) for at in range(0, len(text), 3))]
    read.feed([json.dumps(piece).encode() for piece in [*pieces, chunk(reason="stop")]], [])
    read.finish(done=True)
    return read


CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
NATIVE: Json = {"index": 0, "id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
CASES: dict[str, tuple[str, str | None, Json, Json, bool]] = {
    "a foreign mark": ("hermes", LOST, {}, {}, True),
    "the engine should have read it": ("native_json", LOST, {}, {}, True),
    "after words": ("hermes", f"I look. {LOST}", {}, {}, True),
    "a call that was cut": ("hermes", NAMED, {}, {}, True),
    "an undeclared tool": ("hermes", '<tool_call>{"name": "x", "arguments": {}}</tool_call>', {}, {}, True),
    "one that isn't allowed": ("hermes", CALL, {"tool_choice": allowing("rm")}, {}, True),
    "one that the engine read, but isn't allowed": (
        "native_json", "", {"tool_choice": allowing("rm")}, {"tool_calls": [NATIVE]}, True,
    ),
    "in the reasoning alone": ("native_json", "", {}, {"reasoning_content": f"So: {LOST}"}, True),
    "in the reasoning, by both names": (
        "native_json", "", {}, {"reasoning_content": f"So: {LOST}", "reasoning": f"So: {LOST}"}, True,
    ),
    "in reasoning that is text": ("hermes", f"<think>So: {LOST}</think>", {}, {}, True),
    "in the reasoning, before an answer": ("native_json", "Sunny.", {}, {"reasoning_content": LOST}, False),
    "words": ("hermes", "It is sunny in Paris.", {}, {}, False),
    "nothing": ("hermes", "", {}, {}, False),
    "null": ("native_json", None, {}, {}, False),
    "a call": ("hermes", CALL, {}, {}, False),
    "a call beside it": ("hermes", f"{CALL}\n{LOST}", {}, {}, False),
    "a call of the engine's beside it": ("native_json", LOST, {}, {"tool_calls": [NATIVE]}, False),
    "no tools": ("hermes", LOST, {"tools": []}, {}, False),
    "calls are forbidden": ("hermes", LOST, {"tool_choice": "none"}, {}, False),
    "JSON by order": ("native_json", NAMED, {"response_format": JSON_ORDER}, {}, False),
    "far behind": ("native_json", "word " * MAX_CHARACTERS + LOST, {}, {}, False),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CASES)
def test_which_answers_are_marked(name: str, stream: bool) -> None:
    format, content, fields, message, unread = CASES[name]
    read = answer(format, content, stream=stream, fields=fields, **message)
    assert read.contents.unread is unread
    found = repairs(read)
    assert ("unread_call" in found.warnings if found is not None else False) is unread
    left = repairs(read, LEFT)
    assert left is None or "unread_call" not in left.warnings


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_log_and_the_metrics_say_so_and_the_answer_stays(stream: bool) -> None:
    async with running(says((LOST, []), ("Sunny.", []), wrote("native_json", ("ls", "{}")))) as gateway:
        first = await gateway.ask(chat(stream=stream, tools=TOOLS))
        for _ in range(2):
            await gateway.ask(chat(stream=stream, tools=TOOLS))
        async with await gateway.connect() as client:
            await client.send(b"GET /-/requests HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            log = (await client.answer()).json["requests"]
            await client.send(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            metrics = (await client.answer()).body.decode()
    assert [entry["warnings"] for entry in log] == [[], [], ["unread_call"]]
    assert {entry["outcome"] for entry in log} == {OK}
    assert 'ctxgate_normalizer_repairs_total{kind="warning",model="m",what="unread_call"} 1.0' in metrics
    if not stream:
        assert first.json["choices"][0]["message"]["content"] == LOST
        assert "ctxgate" not in first.json


UNMARKED = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", ["native_json", "hermes", "auto"])
async def test_a_call_without_marks_is_told_in_the_answer_and_in_the_log(format: str, stream: bool) -> None:
    async with running(says((UNMARKED, [])), tool_call_format=format) as gateway:
        answer = await gateway.ask(chat(stream=stream, tools=TOOLS))
        async with await gateway.connect() as client:
            await client.send(b"GET /-/requests HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            (entry,) = (await client.answer()).json["requests"]
    told = [json.loads(each) for each in answer.events[:-1]] if stream else [answer.json]
    assert [each["ctxgate"]["mended"] for each in told if "ctxgate" in each] == ["unmarked"]
    assert stream or answer.headers["x-ctxgate-mended"] == "unmarked"
    assert (entry["mended"], entry["warnings"]) == ("unmarked", [])

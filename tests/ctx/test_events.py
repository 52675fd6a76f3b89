"""Chunks of an answer become canonical events: whole, in order, nothing of the engine's own in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.ctx.events import AnswerTooLong, Delta, Done, Error, Event, EventReader, Start, decode, line
from tests.ctx.served import FORBIDDEN
from tests.gateway.double import chunk


def read(*chunks: dict[str, Any], limit: int = 1 << 20) -> list[dict[str, Any]]:
    reader = EventReader("r1", limit)
    events = reader.feed([json.dumps(one).encode() for one in chunks]) + reader.finish()
    lines = [line(event) for event in events]
    assert [one.count(b"\n") for one in lines] == [1] * len(lines)
    return [json.loads(one) for one in lines]


def call(index: int, arguments: str = "", **first: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": first["name"]} if first else {})}
    return {"index": index, "function": function, **({"id": first["id"], "type": "function"} if first else {})}


R1 = {"run": "r1"}
CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "text": (
        [chunk("", role="assistant"), chunk("Hel"), chunk("lo"), chunk(reason="stop")],
        [
            {"type": "delta", **R1, "text": "Hello"},
            {"type": "message", **R1, "role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
        ],
    ),
    "nothing": (
        [chunk(reason="stop")],
        [{"type": "message", **R1, "role": "assistant", "content": [{"type": "text", "text": ""}]}],
    ),
    "reasoning": (
        [chunk(reasoning_content="Hm"), chunk(reasoning_content="m."), chunk("Yes"), chunk(reasoning_content="!")],
        [
            {"type": "reasoning_delta", **R1, "text": "Hmm."},
            {"type": "delta", **R1, "text": "Yes"},
            {"type": "reasoning_delta", **R1, "text": "!"},
            {"type": "reasoning_message", **R1, "content": [{"type": "text", "text": "Hmm.!"}]},
            {"type": "message", **R1, "role": "assistant", "content": [{"type": "text", "text": "Yes"}]},
        ],
    ),
    "calls in turns": (
        [
            chunk(tool_calls=[call(0, '{"a"', id="x", name="f"), call(1, "", id="y", name="g")]),
            chunk(tool_calls=[call(0, ": 1}")]),
            chunk(reason="tool_calls"),
        ],
        [
            {"type": "tool_call", "id": "call-1", **R1, "name": "f", "arguments": {"a": 1}},
            {"type": "tool_call", "id": "call-2", **R1, "name": "g", "arguments": {}},
        ],
    ),
    "calls that the engine writes over several lines": (
        [
            chunk(tool_calls=[call(0, '{\n  "a": ["b c\\n",\r\n 1.0]\n}\n', id="x", name="f")]),
            chunk(tool_calls=[call(1, "[\n" * 900 + "]" * 900, id="y", name="g")]),
        ],
        [
            {"type": "tool_call", "id": "call-1", **R1, "name": "f", "arguments": {"a": ["b c\n", 1.0]}},
            {"type": "tool_call", "id": "call-2", **R1, "name": "g", "arguments": json.loads("[" * 900 + "]" * 900)},
        ],
    ),
    "a call that was cut": (
        [chunk(tool_calls=[call(0, '{"a"', id="x", name="f")])],
        [{"type": "tool_call", "id": "call-1", **R1, "name": "f", "arguments": '{"a"'}],
    ),
    "usage below zero, as a broken engine counts": (
        [chunk(reason="stop"), {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": -1}}],
        [
            {"type": "message", **R1, "role": "assistant", "content": [{"type": "text", "text": ""}]},
            {"type": "usage", **R1, "input_tokens": 0, "output_tokens": 0},
        ],
    ),
    "usage": (
        [
            chunk("a"),
            {"usage": {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}},
        ],
        [
            {"type": "delta", **R1, "text": "a"},
            {"type": "message", **R1, "role": "assistant", "content": [{"type": "text", "text": "a"}]},
            {"type": "usage", **R1, "input_tokens": 10, "output_tokens": 1, "cached_tokens": 8},
        ],
    ),
    "only the first of several answers": (
        [chunk("a"), chunk("b", index=1)],
        [
            {"type": "delta", **R1, "text": "a"},
            {"type": "message", **R1, "role": "assistant", "content": [{"type": "text", "text": "a"}]},
        ],
    ),
    "ids of the provider": (
        [{**chunk("a"), "response_id": "x", "thread_id": "y", "conversation_id": "z"}],
        [
            {"type": "delta", **R1, "text": "a"},
            {"type": "message", **R1, "role": "assistant", "content": [{"type": "text", "text": "a"}]},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_chunks(name: str) -> None:
    chunks, expected = CASES[name]
    found = read(*chunks)
    assert found == expected
    assert not FORBIDDEN & set(json.dumps(found).replace('"', " ").split())


@given(st.lists(st.text(max_size=20), max_size=10), st.data())
def test_any_batching_gives_the_same_text(texts: list[str], data: st.DataObject) -> None:
    payloads = [json.dumps(chunk(text)).encode() for text in texts]
    reader = EventReader("r1", 1 << 20)
    events: list[Event] = []
    while payloads:
        size = data.draw(st.integers(1, len(payloads)))
        events += reader.feed(payloads[:size])
        payloads = payloads[size:]
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "".join(texts)
    assert [json.loads(line(event)) for event in reader.finish()][-1]["content"][0]["text"] == "".join(texts)


@pytest.mark.parametrize("delta", [{"content": "a" * 99}, {"reasoning_content": "\x01" * 20}, {"content": "é" * 60}])
def test_an_answer_has_a_limit(delta: dict[str, Any]) -> None:
    with pytest.raises(AnswerTooLong):
        read(chunk(**delta), limit=100)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Start(run="r1", model="debug/echo"), '{"type":"start","run":"r1","model":"debug/echo"}'),
        (Delta(run="r1", text="hello"), '{"type":"delta","run":"r1","text":"hello"}'),
        (Delta(id="event-2", run="r1", text="é\n"), '{"type":"delta","id":"event-2","run":"r1","text":"é\\n"}'),
        (Error(code="EINVAL", message="no"), '{"type":"error","code":"EINVAL","message":"no"}'),
        (Done(run="r1", status="ok"), '{"type":"done","run":"r1","status":"ok"}'),
    ],
)
def test_lines_as_the_abi_prints_them(event: Event, expected: str) -> None:
    assert line(event) == expected.encode() + b"\n"
    assert decode(line(event)) == event

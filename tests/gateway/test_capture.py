"""The recording of one exchange: what came, what went out, and where it was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.answer import capture
from gateway.answer.capture import RecordedAnswer
from gateway.answer.normalize import Answer
from gateway.wire.chat import ChatRequest
from normalizers import registry
from tests.gateway.double import chunk, completion


def request(text: str = "Hi", **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return ChatRequest.parse(json.dumps(body).encode())


def encoded(*chunks: Any) -> list[bytes]:
    return [json.dumps(each).encode() for each in chunks]


def answer(asked: ChatRequest, name: str = "hermes") -> RecordedAnswer:
    return RecordedAnswer(asked, registry.get(name))


CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def test_a_stream_is_recorded_as_it_came_and_as_it_went_out() -> None:
    came = encoded(chunk("Hello"), chunk(CALL), chunk(reason="stop"))
    recorded = answer(request(stream=True, tools=TOOLS))
    out: list[bytes] = []
    for payload in came:
        recorded.feed([payload], out)
    out += recorded.finish(done=True)
    recording = recorded.recording
    assert recording.raw == came
    assert recording.clean == out
    assert recording.clean != came
    assert (recording.tool_call_format, recording.cut) == ("hermes", False)
    fields = sum(len(bytes(value)) for value in recording.request.values())
    assert recording.size == fields + sum(map(len, came)) + sum(map(len, out))


def test_a_whole_answer_is_recorded() -> None:
    came = json.dumps(completion(CALL)).encode()
    recorded = answer(request(tools=TOOLS))
    clean = recorded.whole(came)
    assert (recorded.recording.raw, recorded.recording.clean) == ([came], [clean])


def test_a_long_answer_is_cut_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_RECORDING", 1000)
    recorded = answer(request(stream=True))
    out: list[bytes] = []
    for payload in encoded(chunk("Hello"), chunk("x" * 2000), chunk("again"), chunk(reason="stop")):
        recorded.feed([payload], out)
    assert len(out) == 4
    assert recorded.recording.cut
    assert len(recorded.recording.raw) < 4
    assert recorded.recording.size <= 1000
    assert not any(b"again" in payload for payload in recorded.recording.raw), "the recording ends where it was cut"


def test_a_long_request_is_recorded_without_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_RECORDING", 1000)
    recording = answer(request("x" * 2000, seed=1)).recording
    assert recording.cut
    assert set(recording.request) == {"model", "seed"}
    assert recording.size == sum(len(bytes(value)) for value in recording.request.values())
    kept = answer(request("x" * 100, seed=1)).recording
    assert not kept.cut
    assert "messages" in kept.request


def test_what_the_engine_got_otherwise_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most half of what is left: the answer needs room, too."""
    monkeypatch.setattr(capture, "MAX_RECORDING", 1000)
    asked = request(seed=1, user="ann")

    def sent(prompt: str) -> dict[str, Any]:
        own = {"messages": asked.fields["messages"], "model": asked.fields["model"]}
        got = {**own, "seed": Raw(b"2"), "prompt": Raw(json.dumps(prompt).encode())}
        found = RecordedAnswer(asked, registry.get("hermes"), sent=got).recording.sent
        return {name: value and bytes(value) for name, value in found.items()}

    assert sent("x" * 300) == {"seed": b"2", "prompt": b'"%b"' % (b"x" * 300), "user": None}
    assert sent("x" * 600) == {"user": None}


@pytest.mark.parametrize("body", [b"Hi", b"[1]", b'{"a":"\xff"}', b'{"a":' + b"[" * 5000])
def test_a_refused_body_that_is_no_object_is_not_recorded(body: bytes) -> None:
    assert capture.asked(body) is None
    found = capture.asked(b'{"seed": 1}')
    assert found is not None
    assert {name: bytes(value) for name, value in found.request.items()} == {"seed": b"1"}


def fed(*chunks: Any, name: str = "hermes", **fields: Any) -> list[Any]:
    reading = Answer(request(stream=True, **fields), registry.get(name))
    out: list[bytes] = []
    reading.feed(encoded(*chunks), out)
    return [json.loads(payload) for payload in [*out, *reading.finish(done=True)]]


def test_a_null_usage_stays_where_text_is_held_back() -> None:
    """OpenAI sends `usage: null` with every chunk but the last."""
    begun = {**chunk("<tool_"), "usage": None}
    found = fed(begun, {**chunk("box"), "usage": None}, chunk(reason="stop"), tools=TOOLS)
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in found) == "<tool_box"


def test_counts_that_an_engine_leaves_out_are_0() -> None:
    last = {**chunk(reason="stop"), "timings": {"prompt_n": 5, "predicted_n": 3, "cache_n": "unknown"}}
    found = fed(chunk("Hello"), last, stream_options={"include_usage": True})
    usage = next(each["usage"] for each in found if each.get("usage"))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 3)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}

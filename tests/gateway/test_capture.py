"""The recording of one exchange: what came, what went out, and where it was cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest
from msgspec import Raw

from gateway.answer import capture
from gateway.answer.capture import RecordedAnswer, asked, model_in, recorded
from gateway.answer.normalize import Answer
from gateway.errors import ProviderInvalidResponse
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


def values(fields: Mapping[str, Raw | None]) -> dict[str, Any]:
    return {name: None if value is None else json.loads(bytes(value)) for name, value in fields.items()}


def with_sent(given: ChatRequest, **sent: Any) -> capture.Recording:
    fields = {name: Raw(json.dumps(value).encode()) for name, value in sent.items()}
    return RecordedAnswer(given, registry.get("hermes"), sent=fields).recording


def test_what_the_engine_got_otherwise_is_recorded() -> None:
    before = monotonic()
    given = request(seed=1, top_k=7)
    recording = with_sent(given, model="m", messages=[{"role": "user", "content": "Ho"}], seed=1, max_tokens=9)
    assert values(recording.sent) == {
        **{"messages": [{"role": "user", "content": "Ho"}], "max_tokens": 9},
        **{"top_k": None},
    }
    kept = [value for value in (*recording.request.values(), *recording.sent.values()) if value is not None]
    assert recording.size == sum(len(bytes(value)) for value in kept)
    assert before <= recording.accepted <= monotonic()
    assert answer(given).recording.sent == {}


def test_what_the_engine_got_leaves_the_answer_half_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    given = request()
    monkeypatch.setattr(capture, "MAX_RECORDING", recorded(given.fields).size + 200)
    rest = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert values(with_sent(given, **rest, stop="x" * 98).sent) == {"stop": "x" * 98}, "100 bytes with its quotes"
    assert with_sent(given, **rest, stop="x" * 99).sent == {}


def test_a_megabyte_is_recorded() -> None:
    assert not recorded({"text": Raw(b"1" * 2**20)}).cut
    assert recorded({"text": Raw(b"1" * (2**20 + 1))}).cut


def test_short_fields_may_fill_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_RECORDING", 2048)
    fields = {**{name: Raw(b"1" * 1024) for name in ("one", "two")}, "long": Raw(b"1" * 1025)}
    assert set(recorded(fields).request) == {"one", "two"}


def test_a_long_request_keeps_its_short_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_RECORDING", 3000)
    fields = {"short": Raw(b"1" * 1024), "long": Raw(b"1" * 1025), "longest": Raw(b"1" * 2000)}
    assert set(recorded(fields).request) == {"short"}
    fits = recorded({"short": fields["short"], "rest": Raw(b"1" * 1976)})
    assert (set(fits.request), fits.size, fits.cut) == ({"short", "rest"}, 3000, False)
    several = recorded({f"f{number}": Raw(b"1" * 1024) for number in range(3)})
    assert (several.request, several.size, several.cut) == ({}, 0, True), "short fields can be too many, too"


def test_a_recording_that_is_just_full_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recorded({"model": Raw(b"12345678")})
    monkeypatch.setattr(capture, "MAX_RECORDING", 20)
    recording.add([b"123456"], [b"123456"])
    assert (recording.cut, recording.size) == (False, 20)
    recording.add([b""], [b"1"])
    assert recording.cut
    recording.add([b""], [])
    assert recording.raw == [b"123456"], "nothing follows the cut, however short it is"


def test_a_request_that_no_engine_accepts_has_no_time() -> None:
    recording = recorded({"model": Raw(b'"m"')})
    assert (recording.accepted, recording.reasoning_open, recording.tool_call_format) == (0, False, "")
    assert (recording.cut, recording.completion_id) == (False, None)


def test_the_steps_of_an_answer_have_their_times() -> None:
    reading = answer(request(stream=True, tools=TOOLS))
    came = encoded(chunk("Hello"), chunk("<tool_"), chunk(reason="stop"))
    before = monotonic()
    for payload in came:
        reading.feed([payload], [])
    reading.finish(done=True)
    marks = reading.recording.marks
    maximum = 1000 * (monotonic() - reading.recording.accepted) + 0.1
    assert before >= reading.recording.accepted
    assert all(0 <= one[0] <= other[0] <= maximum for one, other in pairwise(marks))
    assert [mark[1:] for mark in marks] == [(1, 1), (1, 0), (1, 2), (0, 0)]
    assert reading.recording.completion_id == "chatcmpl-1"


def test_a_time_is_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recorded({})
    recording.accepted = 10.0
    monkeypatch.setattr(capture, "monotonic", lambda: 12.34567)
    recording.add([b"{}"], [])
    assert recording.marks == [(2345.7, 1, 0)]


def test_what_was_held_back_when_the_engine_failed_is_recorded() -> None:
    reading = answer(request(stream=True, tools=TOOLS))
    out: list[bytes] = []
    reading.feed(encoded(chunk("<tool_")), out)
    rest = reading.remaining()
    assert rest
    assert (reading.recording.clean, reading.recording.raw) == ([*out, *rest], encoded(chunk("<tool_")))


def test_a_payload_that_no_client_could_read_is_recorded() -> None:
    reading = answer(request(stream=True))
    with pytest.raises(ProviderInvalidResponse):
        reading.feed([b"oops"], [])
    assert (reading.recording.raw, reading.recording.clean) == ([b"oops"], [])
    whole = answer(request())
    with pytest.raises(ProviderInvalidResponse):
        whole.whole(b"oops")
    assert (whole.recording.raw, whole.recording.clean) == ([b"oops"], [])


def test_a_recording_that_was_dropped_holds_nothing() -> None:
    reading = answer(request())
    reading.whole(json.dumps(completion()).encode())
    recording = reading.recording
    assert recording.kept
    assert recorded(request().fields).kept, "a request alone"
    recording.request = {}
    assert recording.kept, "an answer alone"
    recording.clear()
    assert not recording.kept
    assert (recording.request, recording.sent, recording.raw, recording.clean) == ({}, {}, [], [])
    assert (recording.size, recording.marks) == (0, [])


@pytest.mark.parametrize(
    ("body", "model"),
    [(b'{"model": "m", "messages": 7}', "m"), (b'{"model": 7}', ""), (b"{}", ""), (b"[1]", ""), (b"oops", "")],
)
def test_a_request_that_was_refused_unread(body: bytes, model: str) -> None:
    recording = asked(body)
    assert model_in(body) == model
    if body.startswith(b"{"):
        assert recording is not None
        assert values(recording.request) == json.loads(body)
        assert not recording.cut
    else:
        assert recording is None


def test_an_answer_without_an_id_has_none() -> None:
    for body in (b'{"id": 7}', b"{}"):
        recording = recorded({})
        recording.add([], [body])
        assert recording.completion_id is None


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


def test_a_long_model_is_no_name() -> None:
    assert capture.model_in(b'{"model":"m","x":1}') == "m"
    assert capture.model_in(b'{"model":"' + b"m" * 5000 + b'"}') == ""
    assert capture.model_in(b'{"model":[' + b"[]," * 5000 + b"1]}") == ""

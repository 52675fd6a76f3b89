"""What is counted and remembered of answers."""

from __future__ import annotations

from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.answer.capture import MAX_RECORDING, RecordedAnswer, Recording
from gateway.answer.normalize import Answer
from gateway.errors import ProviderInvalidRequest
from gateway.observe.request_log import (
    BOUNDS,
    LEFT,
    OK,
    UNSETTLED,
    Histogram,
    RepairNotes,
    RequestLog,
    Row,
    Stats,
)
from gateway.wire.chat import NOBODY, ChatRequest, encode
from gateway.wire.usage import MAX_TOKENS
from normalizers import registry
from tests.gateway.double import chunk, completion
from tests.operations.rows import row


def request_log(*rows: Row, size: int = 10) -> RequestLog:
    made = RequestLog(size)
    made.rows += rows
    return made


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_a_histogram_puts_each_duration_into_the_first_bucket_that_holds_it(durations: list[float]) -> None:
    found = Histogram()
    found.observe(durations)
    bounds = [*BOUNDS, float("inf")]
    expected = [0] * len(bounds)
    for duration in durations:
        expected[next(at for at, bound in enumerate(bounds) if duration <= bound)] += 1
    assert found.counts == expected
    assert found.sum == pytest.approx(sum(durations))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([OK, LEFT, "provider_unavailable"])), max_size=40))
def test_however_often_it_is_settled_the_counts_are_the_same(answers: list[tuple[str, str]]) -> None:
    together, apart = request_log(*(row(*answer) for answer in answers), size=100), RequestLog(100)
    for answer in answers:
        apart.rows.append(row(*answer))
        apart.settle()
    for model in "abc":
        assert together.stats(model).outcomes == apart.stats(model).outcomes
        assert together.stats(model).duration.counts == apart.stats(model).duration.counts
    assert [entry.id for entry in together.entries()] == [*range(len(answers), 0, -1)]
    assert [entry.model for entry in together.entries()] == [entry.model for entry in apart.entries()]


USAGES: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4, 0)),
    ({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}, (3, 4, 2)),
    ({"prompt_tokens": "three", "completion_tokens": None}, (0, 0, 0)),
    ({"prompt_tokens": 3, "prompt_tokens_details": None}, (3, 0, 0)),
    ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": "x"}}, (3, 0, 0)),
    ({"total_tokens": 9}, (0, 0, 0)),
    ({}, (0, 0, 0)),
]


@pytest.mark.parametrize(("usage", "told"), USAGES)
def test_tokens_are_those_that_the_engine_told(usage: dict[str, Any], told: tuple[int, int, int]) -> None:
    good = {"prompt_tokens": 10, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 5}}
    found = request_log(row(usage=usage), row(usage=good)).stats("m")
    assert (found.prompt_tokens - 10, found.completion_tokens - 20, found.cached_tokens - 5) == told


COUNTS = ("prompt_tokens", "completion_tokens", "restored_tokens", "seconds_saved", "prefix", "prompt_tokens_details")
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.just("cached_tokens"), st.one_of(st.integers(), st.floats(), st.text(max_size=3))),
    st.sampled_from([10**30, -5, 1e308]),
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(COUNTS), ANYTHING), max_size=6))
def test_nothing_that_a_server_sends_as_its_counts_costs_another_one_his(usages: list[dict[str, Any]]) -> None:
    good = row("good", usage={"prompt_tokens": 7, "completion_tokens": 2})
    log = request_log(*(row("odd", usage=usage) for usage in usages), good)
    assert log.stats("good").prompt_tokens == 7
    odd = log.stats("odd")
    counted = (odd.prompt_tokens, odd.completion_tokens, odd.cached_tokens, odd.restored_tokens, odd.seconds_saved)
    assert all(0 <= count <= len(usages) * MAX_TOKENS for count in counted)
    for entry in log.entries():
        assert 0 <= entry.prompt_tokens <= MAX_TOKENS
        assert entry.seconds_saved >= 0
        assert all(isinstance(line, str) for line in entry.prefix)


def test_generated_counts_chunks_of_streams_and_tokens_of_whole_answers() -> None:
    streamed = row(stream=True, chunks=7, usage={"completion_tokens": 6})
    assert request_log(streamed, row(usage={"completion_tokens": 5})).stats("m").generated == 12


def test_repairs_are_counted_by_kind() -> None:
    unmarked = [row(repairs=RepairNotes(mended)) for mended in ("unmarked", "unmarked, schema")]
    repairs = RepairNotes("schema", {"ids": 2}, ["calls_not_allowed", "calls_not_allowed"])
    found = request_log(row(repairs=repairs), row(repairs=RepairNotes("lexical")), *unmarked, row()).stats("m")
    assert found.mended == {"schema": 2, "lexical": 1, "unmarked": 2}
    assert found.healed == {"ids": 2}
    assert found.warnings == {"calls_not_allowed": 2}


def test_a_model_that_was_never_asked_has_counts_of_nothing() -> None:
    assert request_log(row()).stats("other").outcomes == {}


def test_only_the_last_ones_are_remembered_and_all_are_counted() -> None:
    made = request_log(*(row() for _ in range(UNSETTLED + 5)), size=3)
    assert [entry.id for entry in made.entries()] == [UNSETTLED + 5, UNSETTLED + 4, UNSETTLED + 3]
    assert made.stats("m").outcomes[OK] == UNSETTLED + 5
    made.configure(1, bodies=False)
    assert [entry.id for entry in made.entries()] == [UNSETTLED + 5]
    assert request_log(row(), size=0).find("1") is None


def test_recordings_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observe.request_log.MAX_RECORDED", 1000)
    made = RequestLog(10, bodies=True)
    for number in range(4):
        answer = recorded()
        answer.recording.add([b"x" * 300], [encode({"id": f"c{number}"})])
        recording = made.keep(answer.recording)
        made.rows.append(row(recording=recording))
    assert [entry.recorded for entry in made.entries()] == [True, True, False, False]
    found = made.find("c3")
    assert found is not None
    assert found[0].id == 4
    assert made.find("c0") is None
    assert made.find("1") is not None


def test_many_recordings_cost_each_answer_the_same() -> None:
    """If each looked at all before it, this would take minutes."""
    made = RequestLog(40_000, bodies=True)
    for _ in range(40_000):
        recording = made.keep(Recording({"a": Raw(b"1")}, "", False, False, 1))
        made.rows.append(row(recording=recording))
        if len(made.rows) >= UNSETTLED:
            made.settle()
    assert sum(entry.recorded for entry in made.entries()) == 40_000


def test_a_recording_goes_with_its_row() -> None:
    made = RequestLog(1, bodies=True)
    first = recorded().recording
    gone = ref(first)
    made.rows.append(row(recording=made.keep(first)))
    del first
    made.rows.append(row(recording=made.keep(recorded().recording)))
    made.settle()
    assert gone() is None
    assert [entry.recorded for entry in made.entries()] == [True]


@pytest.mark.parametrize("traced", [False, True])
def test_what_is_recorded_follows_the_settings(traced: bool) -> None:
    made = RequestLog(10, traced=traced)
    assert (made.bodies, made.records) == (False, traced)
    for bodies in (True, False):
        made.configure(10, bodies=bodies)
        assert (made.bodies, made.records) == (bodies, bodies or traced)


REQUEST = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


def recorded(**fields: Any) -> RecordedAnswer:
    return RecordedAnswer(ChatRequest.parse(encode({**REQUEST, **fields})), registry.get("pythonic"))


RAW = [encode(chunk(piece)) for piece in ("<|tool_call", "_start|>[f(a=1)]", "<|tool_call_end|>")]


def test_a_recorded_answer_is_the_same_answer() -> None:
    request = ChatRequest.parse(encode(REQUEST))
    plain, kept = Answer(request, registry.get("pythonic")), recorded()
    outs: list[list[bytes]] = [[], []]
    for answer, out in zip((plain, kept), outs, strict=True):
        answer.feed(RAW, out)
        out += answer.finish(done=True)
    ids = [[part.split(b'"id":"call_')[0] for part in out] for out in outs]
    assert ids[0] == ids[1]
    assert kept.recording.raw == RAW
    assert kept.recording.clean == outs[1]
    assert kept.recording.completion_id == "chatcmpl-1"


def test_a_whole_answer_that_fails_is_recorded_too() -> None:
    kept = recorded(stream=False)
    with pytest.raises(Exception, match="not JSON"):
        kept.whole(b"nonsense")
    assert (kept.recording.raw, kept.recording.clean) == ([b"nonsense"], [])
    good = recorded(stream=False)
    body = encode(completion())
    assert good.whole(body) == body
    assert (good.recording.raw, good.recording.clean) == ([body], [body])


def test_a_recording_is_bounded() -> None:
    kept = recorded()
    kept.recording.add([b"x" * MAX_RECORDING], [])
    kept.recording.add([b"y"], [])
    assert kept.recording.cut
    assert kept.recording.raw == []
    long = recorded(messages=[{"role": "user", "content": "x" * MAX_RECORDING}], tools=[])
    assert long.recording.cut
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * MAX_RECORDING}}]
    heavy = recorded(messages=[{"role": "user", "content": "Hi"}], tools=tools).recording
    assert heavy.cut
    assert "tools" not in heavy.request
    assert heavy.size == sum(len(bytes(value)) for value in heavy.request.values())
    assert {*long.recording.request} == {"stream", "tools"}
    long.recording.clear()
    assert long.recording == Recording({}, "pythonic", False, True, 0, accepted=long.recording.accepted)
    assert not long.recording.kept


def test_stats_stand_alone() -> None:
    assert Stats().outcomes == {}


def test_refused_requests_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observe.request_log.MAX_RECORDED", 1000)
    made = RequestLog(10, bodies=True)
    for name in ("a", "b", "c", "d" * 1000):
        body = encode({"model": name, "messages": "x" * 400})
        made.refused("chat", NOBODY, ProviderInvalidRequest("messages: expected `array`"), body)
    assert [(entry.model, entry.recorded) for entry in made.entries()] == [
        *(("d" * 100, True), ("c", False), ("b", False), ("a", False)),
    ]
    assert made.stats("a").outcomes == {}
    assert made.models() == []
    entry = next(made.entries())
    assert entry.error is not None
    assert (entry.error["message"], entry.error["status"]) == ("messages: expected `array`", 400)

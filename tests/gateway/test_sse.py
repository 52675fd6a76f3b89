"""Laws of `SSEReader`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.sse import DONE, EventTooLarge, SSEReader, event


def read(*pieces: bytes, finish: bool = True) -> list[bytes]:
    reader = SSEReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + (reader.finish() if finish else [])


CASES: dict[str, tuple[bytes, list[bytes]]] = {
    "one": (b'data: {"a":1}\n\n', [b'{"a":1}']),
    "two at once": (b"data: 1\n\ndata: 2\n\n", [b"1", b"2"]),
    "CRLF": (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [b"1", b"2"]),
    "mixed line ends": (b"data: 1\r\n\ndata: 2\n\r\n", [b"1", b"2"]),
    "CR": (b"data: 1\r\rdata: 2\r\r", [b"1", b"2"]),
    "all three line ends": (b"data: a\r\rdata: b\r\n\r\ndata: c\n\n", [b"a", b"b", b"c"]),
    "a lone CR ends a line": (b"data: 1\rdata: 2\n\n", [b"1\n2"]),
    "last event after a CR": (b"data: 1\r", [b"1"]),
    "no space": (b"data:1\n\n", [b"1"]),
    "two spaces: one is data": (b"data:  1\n\n", [b" 1"]),
    "space at the end is data": (b"data: 1 \n\n", [b"1 "]),
    "comments": (b": ping\n\n:\ndata: 1\n: between\n\n", [b"1"]),
    "other fields": (b"event: message\nid: 7\nretry: 10\ndata: 1\n\n", [b"1"]),
    "event without data": (b"event: ping\n\ndata: 1\n\n", [b"1"]),
    "several lines": (b"data: {\ndata: }\n\n", [b"{\n}"]),
    "several lines, CRLF": (b"data: {\r\ndata: }\r\n\r\n", [b"{\n}"]),
    "empty data": (b"data:\n\ndata: \n\n", [b"", b""]),
    "blank lines": (b"\n\n\ndata: 1\n\n\n\n", [b"1"]),
    "last event without blank line": (b"data: 1\n\ndata: 2\n", [b"1", b"2"]),
    "last event without line break": (b"data: 1\n\ndata: 2", [b"1", b"2"]),
    "last event without blank line, CRLF": (b"data: 1\r\n", [b"1"]),
    "a field that only begins like data": (b"database: 1\n\ndata: 2\n\n", [b"2"]),
    "done": (b"data: 1\n\n" + DONE, [b"1", b"[DONE]"]),
    "a comment at the end": (b"data: 1\n\n: bye", [b"1"]),
    "nothing": (b"", []),
    "not utf-8": (b"data: \xff\n\n", [b"\xff"]),
}


@pytest.mark.parametrize(("stream", "events"), CASES.values(), ids=CASES.keys())
def test_cases(stream: bytes, events: list[bytes]) -> None:
    assert read(stream) == events


@pytest.mark.parametrize("stream", [case[0] for case in CASES.values()], ids=CASES.keys())
def test_byte_by_byte_and_in_any_two_pieces(stream: bytes) -> None:
    whole = read(stream)
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == whole
    for cut in range(len(stream)):
        assert read(stream[:cut], stream[cut:]) == whole


lines = st.lists(
    st.sampled_from(
        [b"data: 1", b"data:2", b"data: ", b": c", b"", b"", b"event: x", b"id", b"data", b'data: {"a":"b"}']
    )
    | st.binary(max_size=12),
    max_size=12,
)


ENDS = st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=12, max_size=12)


@given(lines, ENDS, st.lists(st.integers(0, 200), max_size=8))
def test_any_split_of_the_same_bytes_gives_the_same_events(
    source: list[bytes], ends: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(line + end for line, end in zip(source, ends, strict=False))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert read(*pieces) == read(stream)


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=8))
def test_what_is_written_is_read(payloads: list[bytes]) -> None:
    assert read(b"".join(map(event, payloads)), finish=False) == payloads


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * 101],
        [b"data: ", *[b"x" * 10] * 11],
        [b"data: 1234567890\n"] * 12,
        [b": " + b"x" * 200],
        [b"data:\n"] * 30,
    ],
    ids=["one line", "a line in pieces", "many lines", "a comment", "lines without data"],
)
def test_an_event_that_does_not_end_is_refused_in_bounded_memory(pieces: list[bytes]) -> None:
    reader = SSEReader(max_event_size=100)
    with pytest.raises(EventTooLarge, match="exceeds 100 bytes"):
        list(map(reader.feed, pieces))


def test_the_bound_is_for_one_event_not_for_the_stream() -> None:
    reader = SSEReader(max_event_size=100)
    events = [event for _ in range(50) for event in reader.feed(b"data: " + b"x" * 90 + b"\n\n")]
    assert len(events) == 50


def test_the_bound_is_of_one_event() -> None:
    """However many came before, and in however many pieces."""
    reader = SSEReader(max_event_size=30)
    for _ in range(5):
        assert reader.feed(b": comment\ndata: 0123456789\ndata: 0") == []
        assert reader.feed(b"12\n\n") == [b"0123456789\n012"]
    assert reader.feed(b"data: 0123456789\ndata: 01234567\n") == []
    with pytest.raises(EventTooLarge, match="exceeds 30 bytes"):
        reader.feed(b"d")

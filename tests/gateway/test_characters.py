"""Half characters: whole and streamed never differ, and both are UTF-8, however an engine cuts them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.collect import Collector
from gateway.backends.ollama_chat import OllamaChat
from gateway.wire.chat import decode
from gateway.wire.lenient import (
    BROKEN,
    MAX_INVALID,
    MAX_REPAIRED,
    EscapeJoiner,
    LenientReader,
    joined,
    without_half_escapes,
)
from gateway.wire.values import STEP
from tests.gateway.double import Json, chunk, completion
from tests.gateway.normalizing import answer, streamed

SLOT = "@@"
UNITS = st.sampled_from(
    [
        *(rb"\ud83d", rb"\ude00", rb"\uDC80", rb"\udbff", rb"\u0041", rb"\u0000", rb"\\", rb"\"", rb"\n"),
        *(b"a", b"\0", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xc3", b"\xff", b"\xed\xa0\xbd", "é\U0001f600".encode()),
    ]
)
"""What a text of JSON may consist of, each in one piece; a cut within an escape would be no JSON."""
PARTS = st.lists(st.lists(UNITS, max_size=4).map(b"".join), min_size=1, max_size=6)


def filled(body: Json, part: bytes) -> bytes:
    return json.dumps(body).encode().replace(SLOT.encode(), part)


def delta(field: str) -> Json:
    made = chunk()
    made["choices"][0]["delta"][field] = SLOT
    return made


def text_of(payload: bytes, field: str) -> str:
    """A text of a chunk or an answer, which has to be UTF-8 throughout."""
    [choice] = json.loads(payload.decode())["choices"] or [{}]
    said = choice.get("delta") or choice.get("message") or {}
    text = said.get(field) or ""
    text.encode()
    assert isinstance(text, str)
    return text


def whole(field: str, parts: list[bytes]) -> str:
    body = completion(**{"content": "", field: SLOT})
    return text_of(answer().whole(filled(body, b"".join(parts))), field)


def as_events(field: str, parts: list[bytes], last: list[Json]) -> str:
    payloads = [filled(delta(field), part) for part in parts]
    ends = [json.dumps(each).encode() for each in last]
    return "".join(text_of(each, field) for each in streamed(answer(), [payloads, ends]))


def collected(field: str, parts: list[bytes], last: list[Json]) -> str:
    collector = Collector()
    for payload in [filled(delta(field), part) for part in parts] + [json.dumps(x).encode() for x in last]:
        assert collector.feed(payload)
    return text_of(answer().whole(collector.body(done=True)), field)


def as_lines(field: str, parts: list[bytes], last: list[Json]) -> str:
    name = {"content": "content", "reasoning_content": "thinking"}[field]
    chat = OllamaChat("m", usage=False)
    lines = [filled({"message": {name: SLOT}, "done": False}, part) for part in parts]
    payloads = [made for line in lines for made in chat.chunks(line)]
    payloads += chat.chunks(b'{"done":true}') if last else chat.broken_off({"done": True})
    return "".join(text_of(each, field) for each in streamed(answer(), [payloads]))


@pytest.mark.parametrize("last", [[chunk(reason="stop")], []], ids=["an end", "no finish_reason"])
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
@given(parts=PARTS)
def test_whole_and_streamed_never_differ(field: str, last: list[Json], parts: list[bytes]) -> None:
    text = whole(field, parts)
    assert as_events(field, parts, last) == text
    assert as_lines(field, parts, last) == text
    assert collected(field, parts, last) == text


@given(parts=st.lists(st.text(st.characters(codec=None, categories=None), max_size=4), max_size=5))
def test_texts_are_joined_as_one(parts: list[str]) -> None:
    held, found = "", ""
    for part in parts:
        clean, held = joined(held + part, last=False)
        found += clean
    found += joined(held)[0]
    assert found == joined("".join(parts))[0]
    assert found.encode().decode() == found


@pytest.mark.parametrize("before", range(STEP - 5, STEP + 2))
@pytest.mark.parametrize("character", ["\ud83d\ude00", "\udcf0\udc9f\udc98\udc80"], ids=["UTF-16", "UTF-8"])
def test_no_piece_of_a_long_text_cuts_a_character(character: str, before: int) -> None:
    one = joined(character)[0]
    assert len(one) == 1
    assert joined("a" * before + character * 3 + "b" * STEP)[0] == "a" * before + one * 3 + "b" * STEP


ESCAPES = st.sampled_from([r"\ud83d", r"\ude00", r"\uD83D", r"\\", r"\n", r"\u0041", r"\"", "a", "ud83d", "é"])


@given(pieces=st.lists(ESCAPES, max_size=8), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_escapes_are_joined_as_one(pieces: list[str], cuts: list[int]) -> None:
    """Of arguments, which are JSON within JSON: there an escape may be cut anywhere."""
    text = "".join(pieces)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    joiner = EscapeJoiner()
    found = "".join(joiner.feed(text[a:b]) for a, b in pairwise(places)) + joiner.finish()
    assert found == without_half_escapes(text)
    json.loads(f'"{found}"').encode()


KINDS: dict[str, tuple[bytes, Any]] = {
    "a byte order mark": (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
    "NUL": (b'{"a":"\0"}', {"a": "\0"}),
    "NaN": (b'{"a":NaN}', {"a": None}),
    "Infinity": (b'{"a":[Infinity]}', {"a": [None]}),
    "-Infinity": (b'{"logprob":-Infinity}', {"logprob": -9999.0}),
    "1e999": (b'{"a":1e999}', {"a": None}),
    "-1e999": (b'{"logprob":-1e999}', {"logprob": -9999.0}),
    "too many digits": (b'{"a":NaN,"b":%b}' % (b"9" * 5000), {"a": None, "b": None}),
    "a name": (b'{"\xff":1}', {"\ufffd": 1}),
    "half a character in a name": (rb'{"\ud83d":1}', {"\ufffd": 1}),
    "half a character in a field that nobody joins": (rb'{"id":"\ud83d"}', {"id": "\ufffd"}),
    "half a character in arguments that are an object": (
        rb'{"done":true,"arguments":{"text":"\ud83d"}}',
        {"done": True, "arguments": {"text": "\ufffd"}},
    ),
}


@pytest.mark.parametrize(("payload", "value"), KINDS.values(), ids=KINDS.keys())
def test_almost_json_is_read(payload: bytes, value: Any) -> None:
    reader = LenientReader()
    assert reader.read(payload) == value
    assert reader.repaired
    assert reader.rest() is None


@pytest.mark.parametrize("payload", [b"", b"{", b"[1,]", b"{'a':1}", b"\xff", b'{"a":1}\0', b"[" * 100_000])
def test_what_is_no_json_is_refused_as_ever(payload: bytes) -> None:
    with pytest.raises(BROKEN) as strict:
        decode(payload)
    with pytest.raises(type(strict.value)):
        LenientReader().read(payload)


def test_what_costs_too_much_to_repair_is_refused() -> None:
    text = b'{"a":"%b"}'
    assert LenientReader().read(text % (b"\xff" * MAX_INVALID)) == {"a": "\ufffd" * MAX_INVALID}
    with pytest.raises(BROKEN, match="of its bytes are not UTF-8"):
        LenientReader().read(text % (b"\xff" * (MAX_INVALID + 1)))
    long = b"a" * MAX_REPAIRED
    assert LenientReader().read(text % long) == {"a": long.decode()}
    with pytest.raises(BROKEN, match="aren't repaired"):
        LenientReader().read(text % (long + b"\xff"))

"""Forms, read in pieces of any size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.media.wire.form import (
    MAX_FIELD,
    MAX_HEAD,
    MAX_PARTS,
    BadForm,
    Event,
    Field,
    FileStart,
    FormReader,
)

KIND = "multipart/form-data; boundary=x"
SOUND = b"\r\n--y\r\n--\r\n\r\n-" + bytes(range(256))
FORM = (
    b"a preamble\r\n--x\r\nContent-Disposition: form-data; name=model\r\n\r\nm\xc3\xa9\r\n"
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".wav"\r\nContent-Type: audio/wav\r\n\r\n'
    + SOUND
    + b'\r\n--x\r\nContent-Disposition: form-data; name="t[]"\r\n\r\n\r\n'
    b'--x\r\nContent-Disposition: form-data; name="t[]"\r\n\r\nword\r\n--x--\r\nan epilogue'
)


def read(form: bytes, cuts: list[int], kind: str = KIND) -> list[Event]:
    """The events, the pieces of each file joined."""
    reader = FormReader(kind)
    found: list[Event] = []
    places = [0, *sorted(cuts), len(form)]
    for begin, end in pairwise(places):
        for event in reader.feed(form[begin:end]):
            if isinstance(event, bytes) and isinstance(found[-1], bytes):
                found[-1] += event
            else:
                found.append(event)
    reader.finish()
    return found


@given(st.lists(st.integers(0, len(FORM)), max_size=20))
def test_any_split_gives_the_same(cuts: list[int]) -> None:
    wanted = [
        Field("model", "mé"),
        FileStart("file", 'a "b".wav', "audio/wav"),
        SOUND,
        Field("t[]", ""),
        Field("t[]", "word"),
    ]
    assert read(FORM, cuts) == wanted
    assert read(FORM, [*range(len(FORM))]) == wanted


PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
WRONG = {
    "no form": (b"", "application/json", "must be multipart/form-data"),
    "no boundary": (b"", "multipart/form-data", "must be multipart/form-data"),
    "a long boundary": (b"", f"multipart/form-data; boundary={'a' * 201}", "must be multipart/form-data"),
    "nothing": (b"", KIND, "last boundary"),
    "a type of many options": (b"", f"multipart/form-data; boundary=x{';a=b' * 65}", "more than 64 semicolons"),
    "a field of many options": (PART[:-4] + b";a=b" * 65 + b"\r\n\r\nb\r\n--x--", KIND, "more than 64 semicolons"),
    "no end": (PART + b"b\r\n--x", KIND, "last boundary"),
    "a field without a name": (b"--x\r\nContent-Disposition: form-data\r\n\r\nb\r\n--x--", KIND, "no name"),
    "twice": (PART + b"b\r\n" + PART + b"b\r\n--x--", KIND, "there twice"),
    "a long field": (PART + b"b" * (MAX_FIELD + 10) + b"\r\n--x--", KIND, f"more than {MAX_FIELD} bytes"),
    "a long head": (b"--x\r\nA: " + b"b" * MAX_HEAD, KIND, f"within {MAX_HEAD} bytes"),
    "many parts": (PART.replace(b'"a"', b'"a[]"') * (MAX_PARTS + 1) + b"--x--", KIND, "last boundary"),
    "no UTF-8": (PART + b"\xff\r\n--x--", KIND, "must be UTF-8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_form(name: str) -> None:
    form, kind, reason = WRONG[name]
    with pytest.raises(BadForm, match=reason):
        read(form, [], kind)


def test_many_parts() -> None:
    part = PART.replace(b'"a"', b'"a[]"') + b"b\r\n"
    assert len(read(part * MAX_PARTS + b"--x--", [])) == MAX_PARTS
    with pytest.raises(BadForm, match="more than"):
        read(part * (MAX_PARTS + 1) + b"--x--", [])

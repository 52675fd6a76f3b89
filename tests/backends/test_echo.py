"""The echo, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Model
from gateway.errors import ProviderInvalidRequest
from tests.backends.conftest import ask, folded

ECHO = Model(name="echo", runtime="echo")


def request(*messages: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"messages": messages, **more}).encode()


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@given(text=st.text(), stream=st.booleans())
async def test_it_says_what_the_user_said(text: str, stream: bool) -> None:
    assert folded(await ask(ECHO, None, request(user(text), stream=stream))) == [(text, [], "stop")]


CASES: dict[str, tuple[bytes, tuple[str, str]]] = {
    "the last user message": (
        request(user("one"), {"role": "assistant", "content": "x"}, user("two"), {"role": "tool", "content": "y"}),
        ("two", "stop"),
    ),
    "parts": (request(user([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}])), ("a b", "stop")),
    "max_tokens": (request(user("one two three"), max_tokens=2), ("one two ", "length")),
    "max_completion_tokens": (request(user("one two"), max_completion_tokens=1), ("one ", "length")),
    "enough tokens": (request(user("one two"), max_tokens=2), ("one two", "stop")),
    "white space before the first word": (request(user(" \n one two"), max_tokens=1), (" \n one ", "length")),
    "white space alone": (request(user(" " * 1_000_000), max_tokens=1), (" " * 1_000_000, "stop")),
    "no user": (request({"role": "system", "content": "x"}), ("", "stop")),
}


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
async def test_cases(body: bytes, expected: tuple[str, str]) -> None:
    ((content, calls, reason),) = folded(await ask(ECHO, None, body))
    assert (content, reason) == expected
    assert not calls


async def test_a_part_whose_text_is_none_is_refused() -> None:
    with pytest.raises(ProviderInvalidRequest, match="the text of a part must be a string"):
        await ask(ECHO, None, request(user([{"type": "text", "text": {}}])))


async def test_usage() -> None:
    expected = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    body = {"messages": [{"role": "system", "content": "x"}, user("a b")]}
    (whole,) = await ask(ECHO, None, json.dumps(body).encode())
    assert whole["usage"] == expected
    chunks = await ask(ECHO, None, json.dumps({**body, "stream": True}).encode())
    assert not any("usage" in chunk for chunk in chunks)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    *_, last = await ask(ECHO, None, json.dumps(asked).encode())
    assert (last["choices"], last["usage"]) == ([], expected)

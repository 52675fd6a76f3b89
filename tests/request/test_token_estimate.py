"""The estimate of a prompt's tokens: near what a tokenizer says, and larger for whatever makes a prompt longer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.request.token_estimate import PER_MESSAGE, PER_PICTURE, estimate
from gateway.wire.chat import ChatRequest

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
TOOL = {"type": "function", "function": {"name": "now", "description": "d" * 340, "parameters": {"type": "object"}}}


def tokens(*messages: Any, **fields: Any) -> int:
    return estimate(ChatRequest.parse(json.dumps({"messages": list(messages), **fields}).encode()))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_prose_is_about_a_token_for_three_to_four_and_a_half_bytes() -> None:
    text = "The gateway estimates how many tokens a prompt has. " * 50
    assert len(text) / 4.5 <= tokens(user(text)) <= len(text) / 3 + PER_MESSAGE


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_message_costs_its_marks(count: int) -> None:
    assert tokens(*[user("")] * count) == PER_MESSAGE * count


def test_parts_of_text_count_as_their_text() -> None:
    text = "Describe it. " * 20
    assert tokens(user([{"type": "text", "text": text}])) == tokens(user(text))


def test_a_picture_counts_as_one_however_large_its_data() -> None:
    one = tokens(user([{"type": "text", "text": "x" * 36}, PICTURE]))
    assert one == tokens(user("x" * 36)) + PER_PICTURE
    assert tokens(user([PICTURE, PICTURE])) == PER_MESSAGE + 2 * PER_PICTURE


def test_tools_and_past_calls_count() -> None:
    assert tokens(user("Hi"), tools=[TOOL]) > tokens(user("Hi")) + 340 / 4.5
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": "a" * 360}}]}
    assert tokens(user("Hi"), called) >= tokens(user("Hi")) + PER_MESSAGE + 100


def test_bytes_count_rather_than_letters() -> None:
    assert tokens(user("é" * 180)) == tokens(user("e" * 360))

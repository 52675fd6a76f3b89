"""An engine's counts of tokens, whatever it sends as such."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.usage import MAX_TOKENS, count, spent, tokens_of


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        (7, 7),
        (7.9, 7),
        (0, 0),
        (-1, 0),
        (float("nan"), 0),
        (float("inf"), 1 << 40),
        (1 << 40, 1 << 40),
        ((1 << 40) + 1, 1 << 40),
        (True, 0),
        ("7", 0),
        (None, 0),
        ([7], 0),
    ],
)
def test_a_count(value: Any, counted: int) -> None:
    assert count(value) == counted
    assert type(count(value)) is int
    assert MAX_TOKENS == 1 << 40


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, (0, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 3}, (5, 0, 3)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}, (5, 4, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {}}, (5, 0, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, (5, 0, 0)),
        ({"completion_tokens": "3", "prompt_tokens_details": [4]}, (0, 0, 0)),
    ],
)
def test_prompt_cached_and_completion_tokens(usage: dict[str, Any], tokens: tuple[int, int, int]) -> None:
    assert tokens_of(usage) == tokens
    assert spent(usage) == tokens[0] + tokens[2]

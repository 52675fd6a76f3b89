"""The guards of all formats for one set of tools, and texts made up from their grammars."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest

from normalizers import registry
from normalizers.write.grammar import guarded
from tests.support.thorough import examples

Json = dict[str, Any]

TEXTS = int(os.environ.get("CTXGATE_GUARD_TEXTS", examples(12)))
"""For each mark of each format."""

TOOLS: list[Json] = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "it's"]},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
    {"name": "now", "parameters": {}},
    {
        "name": "save.all",
        "parameters": {
            "type": "object",
            "properties": {
                "items": {"type": "array", "items": {"type": ["number", "null"]}},
                "options": {"type": "object"},
                "any": {},
                "flag": {"type": "boolean"},
                "either": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"const": 1}}}]},
            },
        },
    },
    {
        "name": "book",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "maximum": 9}},
            "required": ["title", "days"],
        },
    },
]

GUARDS = {name: guarded(registry.get(name), TOOLS) for name in registry.names()}


@cache
def llguidance_bytes() -> Any:
    """A tokenizer with one token for each byte, and one for the end."""
    llguidance = pytest.importorskip("llguidance")
    wrapper = pytest.importorskip("llguidance._tokenizer").TokenizerWrapper

    class Bytes:
        def __init__(self) -> None:
            self.tokens = [bytes([code]) for code in range(256)] + [b"<end>"]
            self.eos_token_id = 256
            self.bos_token_id = None
            self.special_token_ids = [256]

        def __call__(self, text: bytes | str) -> list[int]:
            return list(text if isinstance(text, bytes) else text.encode())

    return llguidance.LLTokenizer(wrapper(Bytes()))


def matcher(grammar: str) -> Callable[[], Any]:
    llguidance = pytest.importorskip("llguidance")
    first = llguidance.LLMatcher(llguidance_bytes(), grammar)
    assert not first.is_error(), first.get_error()
    return lambda: first.deep_copy()


def sampled(matching: Any, random: Random, begin: str, size: int, ends: Sequence[str]) -> str:
    """Bytes that the matcher allows, at random; after `size` of them what may end a value, a call or a region."""
    text = bytearray(begin.encode())
    assert matching.consume_tokens(list(text))
    while True:
        mask = matching.compute_bitmask()
        over = len(text) - len(begin) >= size
        allowed = [code for code in range(256) if mask[code >> 3] >> (code & 7) & 1]
        if mask[32] & 1 and (over or not allowed or random.random() < 0.02):
            return text.decode()
        plain = [code for code in allowed if 32 <= code < 127] or allowed
        piece = bytes([random.choice(plain)])
        if over:
            assert len(text) < 20_000
            fitting = [
                end.encode() for end in ends if matching.validate_tokens(list(end.encode())) == len(end.encode())
            ]
            piece = random.choice(fitting) if fitting else piece
        text += piece
        assert matching.consume_tokens(list(piece))


def many(tools: int, **parameter: Json) -> list[Json]:
    properties = {f"key_{number}": {"type": ["string", "integer"][number % 2]} for number in range(6)} | parameter
    return [
        {"name": f"tool_{number}", "parameters": {"type": "object", "properties": properties}}
        for number in range(tools)
    ]

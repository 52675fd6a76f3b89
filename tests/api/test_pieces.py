"""A chat answer as pieces, which the encoders of the other APIs read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ProviderInvalidResponse
from gateway.wire.pieces import (
    CallArguments,
    CallStart,
    Citation,
    End,
    Piece,
    ReasoningPiece,
    TextPiece,
    UsagePiece,
    pieces,
)

Json = dict[str, Any]

ENTRY: Json = {"token": "a", "logprob": -0.5}


def function(**fields: Any) -> Json:
    return {"function": fields}


OF_CHOICES: dict[str, tuple[Json, list[Piece]]] = {
    "text": ({"delta": {"content": "Hi"}}, [TextPiece("Hi")]),
    "no text": ({"delta": {"content": ""}}, []),
    "nulls": ({"delta": {"content": None, "tool_calls": None, "reasoning": None}, "logprobs": None}, []),
    "text with logprobs": ({"delta": {"content": "a"}, "logprobs": {"content": [ENTRY]}}, [TextPiece("a", [ENTRY])]),
    "logprobs alone": ({"delta": {}, "logprobs": {"content": [ENTRY]}}, [TextPiece("", [ENTRY])]),
    "no logprobs after all": ({"delta": {"content": "a"}, "logprobs": {"content": None}}, [TextPiece("a")]),
    "a refusal": ({"delta": {"refusal": "No"}}, [TextPiece("No", refused=True)]),
    "no refusal": ({"message": {"content": "Hi", "refusal": None}}, [TextPiece("Hi")]),
    "a page behind the text": (
        {"message": {"content": "Hi", "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}]}},
        [TextPiece("Hi"), Citation("u")],
    ),
    "reasoning": ({"delta": {"reasoning_content": "hm"}}, [ReasoningPiece("hm")]),
    "reasoning by its other name": ({"delta": {"reasoning": "hm"}}, [ReasoningPiece("hm")]),
    "reasoning before text": ({"delta": {"content": "Hi", "reasoning": "hm"}}, [ReasoningPiece("hm"), TextPiece("Hi")]),
    "a call begins": (
        {"delta": {"tool_calls": [{"index": 2, "id": "c", **function(name="f", arguments="")}]}},
        [CallStart(2, "c", "f")],
    ),
    "its arguments": ({"delta": {"tool_calls": [{"index": 2, **function(arguments="{}")}]}}, [CallArguments(2, "{}")]),
    "whole calls, which have no index": (
        {"message": {"content": None, "tool_calls": [{"id": c, **function(name=c, arguments="{}")} for c in "ab"]}},
        [CallStart(0, "a", "a"), CallArguments(0, "{}"), CallStart(1, "b", "b"), CallArguments(1, "{}")],
    ),
    "a call without a function": ({"delta": {"tool_calls": [{"id": "c"}]}}, [CallStart(0, "c", "")]),
    "the end": ({"delta": {}, "finish_reason": "length"}, [End("length")]),
    "the end at a sequence": ({"delta": {}, "finish_reason": "stop", "stop_reason": "##"}, [End("stop", "##")]),
    "the end at a token": ({"delta": {}, "finish_reason": "stop", "stop_reason": 2}, [End("stop")]),
    "the end behind the text": (
        {"message": {"content": "Hi"}, "finish_reason": "stop"},
        [TextPiece("Hi"), End("stop")],
    ),
    "a text completion": ({"text": "Hi", "finish_reason": None}, [TextPiece("Hi")]),
    "another choice": ({"index": 1, "delta": {"content": "Hi"}, "finish_reason": "stop"}, []),
}


@pytest.mark.parametrize("name", OF_CHOICES)
def test_choices(name: str) -> None:
    choice, expected = OF_CHOICES[name]
    assert list(pieces(json.dumps({"choices": [choice]}).encode())) == expected


COUNTS: Json = {"prompt_tokens": 11, "completion_tokens": 7}
OF_USAGE: dict[str, tuple[Json, list[Piece]]] = {
    "none": ({"usage": None, "timings": {"prompt_ms": 1}}, []),
    "counts": ({"usage": COUNTS}, [UsagePiece(11, 7)]),
    "empty": ({"usage": {}}, [UsagePiece()]),
    "details": (
        {
            "usage": {
                **COUNTS,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 3},
            }
        },
        [UsagePiece(11, 7, cached=4, reasoning=3)],
    ),
    "details without numbers": (
        {"usage": {**COUNTS, "prompt_tokens_details": {}, "completion_tokens_details": {"reasoning_tokens": None}}},
        [UsagePiece(11, 7)],
    ),
    "times": (
        {"usage": COUNTS, "timings": {"prompt_ms": 500, "predicted_ms": 2500.0}},
        [UsagePiece(11, 7, prompt_seconds=0.5, completion_seconds=2.5)],
    ),
    "times of another kind": ({"usage": COUNTS, "timings": {"prompt_ms": "fast"}}, [UsagePiece(11, 7)]),
    "no times": ({"usage": COUNTS, "timings": ["x"]}, [UsagePiece(11, 7)]),
}


@pytest.mark.parametrize("name", OF_USAGE)
def test_usage(name: str) -> None:
    fields, expected = OF_USAGE[name]
    assert list(pieces(json.dumps({"choices": [], **fields}).encode())) == expected


@pytest.mark.parametrize("payload", [b"", b"<html>", b"[]", b'{"choices":7}', b'{"choices":[{"delta":"x"}]}'])
def test_what_is_no_answer_is_the_engines_fault(payload: bytes) -> None:
    with pytest.raises(ProviderInvalidResponse, match="the engine's answer is malformed"):
        list(pieces(payload))

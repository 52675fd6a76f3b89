"""JSON that the request's schema asks for is the answer, though it looks like a call without marks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.accumulator import from_stream, from_whole
from tests.gateway.double import chunk, completion
from tests.gateway.normalizing import answer, streamed

STEP: dict[str, Any] = {
    "type": "object",
    "properties": {"tool": {"type": "string"}, "args": {"$ref": "#/$defs/args"}},
    "required": ["tool", "args"],
    "additionalProperties": False,
    "$defs": {"args": {"type": "object"}},
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
CALL = '{"tool": "get_weather", "args": {"city": "Paris"}}'
OTHER = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ASKED: list[tuple[Any, str]] = [
    (STEP, CALL),
    (STEP, CALL.replace('"', "'")),
    (STEP, f"```json\n{CALL}\n```"),
    (STEP, f"\n {CALL}\n"),
    ({"anyOf": [PERSON, STEP]}, CALL),
    ({"type": "array", "items": STEP}, f"[{CALL}, {CALL}]"),
    ({"type": "object", "properties": {"name": {"const": "get_weather"}, "arguments": {"type": "object"}}}, OTHER),
]
CALLED: list[tuple[Any, str]] = [
    (STEP, OTHER),
    (PERSON, OTHER),
    ({"type": "object"}, CALL),
    ({**STEP, "properties": {**STEP["properties"], "tool": {"enum": ["search"]}}}, CALL),
    (None, CALL),
]
FORMATS = ["hermes", "llama3_json", "llama4_json", "mistral", "qwen3_coder", "auto", "native_json"]


def both(format: str, text: str, **fields: Any) -> tuple[str, list[str]]:
    """The content and the calls' arguments: the same whole, by letters and cut in two anywhere."""
    whole = from_whole(answer(format, **fields).whole(json.dumps(completion(text)).encode()))
    for pieces in (list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        batches = [[json.dumps(each).encode()] for each in (*map(chunk, pieces), chunk(reason="stop"))]
        stream = from_stream(streamed(answer(format, **fields), batches))
        assert [(one.content, [call.arguments for call in one.calls]) for one in stream.values()] == [
            (one.content, [call.arguments for call in one.calls]) for one in whole.values()
        ]
    [one] = whole.values()
    return one.content, [call.arguments for call in one.calls]


def by_schema(schema: Any) -> dict[str, Any]:
    if schema is None:
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("schema", "text"), ASKED)
def test_what_fits_the_schema_is_the_answer(format: str, schema: Any, text: str) -> None:
    content, calls = both(format, text, **by_schema(schema))
    assert calls == []
    assert content.strip() == text.strip()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("schema", "text"), CALLED)
def test_what_the_schema_does_not_describe_is_a_call(format: str, schema: Any, text: str) -> None:
    assert both(format, text, **by_schema(schema)) == ("", ['{"city": "Paris"}'])


def test_a_call_that_the_request_demands_is_one() -> None:
    assert both("hermes", CALL, tool_choice="required", **by_schema(STEP))[1] == ['{"city": "Paris"}']


def test_a_marked_call_is_one() -> None:
    assert both("hermes", f"<tool_call>{CALL}</tool_call>", **by_schema(STEP))[1] == ['{"city": "Paris"}']

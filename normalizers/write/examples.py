"""Example turns of a conversation, made from the tools of a request: they show a model when to call and when not to.

Small models imitate turns where they don't follow rules in words. The same tools give the same turns, so that an engine
still knows the beginning of its prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal

Json = dict[str, Any]

Example = Literal["ask", "call", "calls", "chain", "hello"]
"""`ask`: a request that lacks a value, and a question back. `call`: a complete one, its call, the result and its end.
`calls`: the same for two calls in one answer. `chain`: for two calls, one after the other's result. `hello`: a greeting
and a greeting."""

_DEPTH = 8
"""Objects and arrays of an example value within each other; deeper ones are empty."""

_NAMED = 3
"""Values that a question asks for; more would only be longer."""


def example_turns(tools: Sequence[Mapping[str, Any]], order: Sequence[Example]) -> list[Json]:
    """The messages of these examples, in OpenAI's form. Empty where the tools give nothing to show.

    tools: OpenAI's. `ask` takes the first one that needs a value, `call` the first one, `calls` and `chain` the first
    two.
    """
    functions = [tool.get("function", tool) for tool in tools]
    unique: dict[str, Mapping[str, Any]] = {}
    for function in functions:
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            unique.setdefault(function["name"], function)
    named = [*unique.values()]
    ids = (f"example_{number}" for number in count(1))
    turns: list[Json] = []
    for kind in order if named else ():
        if kind == "hello":
            turns += [_said("user", "Hello, who are you?"), _said("assistant", "Hello! How can I help you?")]
        elif kind == "ask":
            asked = next((function for function in named if _required(function)), None)
            turns += _ask(asked) if asked is not None else []
        elif kind == "chain":
            turns += _call(*([function] for function in named[:2]), ids=ids)
        else:
            turns += _call(named[: 2 if kind == "calls" else 1], ids=ids)
    return turns


def _said(role: str, content: str) -> Json:
    return {"role": role, "content": content}


def _ask(function: Mapping[str, Any]) -> list[Json]:
    wanted = " and ".join(name.replace("_", " ") for name in [*_required(function)][:_NAMED])
    return [_said("user", f"Use {function['name']}."), _said("assistant", f"Please tell me {wanted}.")]


def _call(*steps: Sequence[Mapping[str, Any]], ids: Iterator[str]) -> list[Json]:
    """steps: the tools that each answer calls."""
    turns: list[Json] = []
    for step in steps:
        calls = [_called(function, next(ids)) for function in step]
        turns.append({"role": "assistant", "content": "", "tool_calls": calls})
        turns += [{"role": "tool", "tool_call_id": call["id"], "content": '{"ok": true}'} for call in calls]
    wish = ", then ".join(" and ".join(map(_wish, step)) for step in steps)
    return [_said("user", f"Use {wish}."), *turns, _said("assistant", "Done.")]


def _called(function: Mapping[str, Any], id: str) -> Json:
    called = {"name": function["name"], "arguments": _json(_required(function))}
    return {"id": id, "type": "function", "function": called}


def _wish(function: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} = {_json(value)}" for name, value in _required(function).items())
    return f"{function['name']} with {values}" if values else str(function["name"])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _required(function: Mapping[str, Any]) -> Json:
    """The arguments that a call of the tool needs, with values that fit."""
    return _members(function.get("parameters"), _DEPTH)


def _members(schema: Any, depth: int) -> Json:
    if not isinstance(schema, Mapping) or depth == 0:
        return {}
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return {}
    wanted = {name for name in required if isinstance(name, str)}
    return {name: _value(inner, depth - 1) for name, inner in properties.items() if name in wanted}


def _value(schema: Any, depth: int) -> Any:
    """A value that fits the schema, and that no user would have meant."""
    if not isinstance(schema, Mapping):
        return "abc"
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    if schema.get("default") is not None:
        return schema["default"]
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key] and depth:
            return _value(schema[key][0], depth - 1)
    kinds = schema.get("type")
    kind = next((each for each in kinds if each != "null"), None) if isinstance(kinds, list) else kinds
    if kind == "array":
        return [_value(schema.get("items"), depth - 1)] if depth else []
    if kind == "object" or (kind is None and "properties" in schema):
        return _members(schema, depth)
    if kind in ("integer", "number"):
        return _number(schema, 3 if kind == "integer" else 2.5)
    return {"boolean": True, "null": None}.get(str(kind), _text(schema))


def _number(schema: Mapping[str, Any], value: float) -> float:
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(low, int | float) and value < low:
        return low
    return high if isinstance(high, int | float) and value > high else value


_FORMATS = {
    "date": "2001-02-03",
    "date-time": "2001-02-03T04:05:06Z",
    "time": "04:05:06",
    "email": "abc@example.com",
    "uri": "https://example.com/abc",
}


def _text(schema: Mapping[str, Any]) -> str:
    return _FORMATS.get(str(schema.get("format")), "abc")

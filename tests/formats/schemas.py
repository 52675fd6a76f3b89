"""Random tools: JSON Schemas of every kind that a grammar holds a model to."""

from __future__ import annotations

from random import Random
from typing import Any

Schema = dict[str, Any]

WORDS = ("city", "user-id", "from", "count", "3d", "größe", "note", "kind", "max_size", "a.b")


def random_tool(random: Random, name: str) -> Schema:
    return {"type": "function", "function": {"name": name, "parameters": _parameters(random)}}


def _parameters(random: Random) -> Schema:
    schema = _object(random, 2)
    if random.random() < 0.2:
        node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
        schema["$defs"] = {"node": {**node, "required": ["v"]}}
        schema["properties"]["tree"] = {"$ref": "#/$defs/node"}
    return schema


def _object(random: Random, depth: int) -> Schema:
    keys = random.sample(WORDS, random.randint(1, 3))
    properties = {key: _value(random, depth - 1) for key in keys}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [key for key in keys if random.random() < 0.6]:
        schema["required"] = required
    return schema


def _value(random: Random, depth: int) -> Schema:
    kinds = [_string, _integer, _number, _plain, _enum, _any_of]
    kinds += [_array, lambda random: _object(random, depth)] if depth > 0 else []
    return random.choice(kinds)(random)


def _string(random: Random) -> Schema:
    low = random.choice([None, None, 0, 1, 5])
    high = random.choice([12, 24, 40])
    return {"type": "string", "maxLength": high} | ({} if low is None else {"minLength": low})


def _bounds(random: Random, low: float, high: float) -> Schema:
    schema: Schema = {}
    if random.random() < 0.7:
        schema[random.choice(["minimum", "exclusiveMinimum"])] = low
    if random.random() < 0.7:
        schema[random.choice(["maximum", "exclusiveMaximum"])] = high
    return schema


def _integer(random: Random) -> Schema:
    low = random.choice([-1500, -7, 0, 1, 98])
    return {"type": "integer"} | _bounds(random, low, low + random.choice([2, 13, 250, 40000]))


def _number(random: Random) -> Schema:
    low = random.choice([-90.5, -1, 0, 0.25, 17])
    return {"type": "number"} | _bounds(random, low, low + random.choice([0.5, 1, 180, 99.75]))


def _plain(random: Random) -> Schema:
    kinds = ["boolean", "null", ["boolean", "null"], ["integer", "null"]]
    return {"type": random.choice(kinds)}


def _enum(random: Random) -> Schema:
    choices: list[Schema] = [
        {"type": "string", "enum": ["red", "it's", 'say "x"', "a\nb"]},
        {"enum": [1, True, None, "one"]},
        {"const": {"k": [1, "x"]}},
    ]
    return random.choice(choices)


def _any_of(random: Random) -> Schema:
    return {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "array", "items": {"type": "boolean"}}]}


def _array(random: Random) -> Schema:
    low = random.choice([0, 1, 2])
    schema = {"type": "array", "items": _value(random, 0), "minItems": low, "maxItems": low + random.choice([0, 1, 3])}
    if random.random() < 0.2:
        schema = {"type": "array", "prefixItems": [{"type": "boolean"}, _integer(random)], "items": False}
    return schema

"""Grows each part of a JSON example: long, wide and deep, one part at a time. What can stay valid stays valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

KEPT = 64
"""How many grown values are kept: most are needed again and again."""
HERE = "\x00grown\x00"
"""Stands where the grown part goes: bodies are put together as text, since Python writes no deep value."""


@dataclass(frozen=True)
class Grown:
    """A body in which one part has grown. It is made when it is needed: all of them together would fill the memory."""

    name: str
    make: Callable[[], bytes]


def deep_arrays(size: int) -> bytes:
    return b"[" * (size // 2) + b"]" * (size // 2)


def deep_objects(size: int) -> bytes:
    return b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6)


def wide_array(size: int) -> bytes:
    return b"[" + b"[]," * (size // 3) + b"1]"


def wide_object(size: int) -> bytes:
    return b"{" + b",".join(b'"k%d":0' % at for at in range(size // 12)) + b"}"


def text(size: int) -> bytes:
    return b'"' + b"a b " * (size // 4) + b'"'


def escaped(size: int) -> bytes:
    return b'"' + b"\\u00e9" * (size // 6) + b'"'


def marks(size: int) -> bytes:
    """Control tokens of many models, and the beginnings of calls."""
    return b'"' + b"<|im_end|><tool_call>[TOOL_CALLS]</s>{[f(" * (size // 43) + b'"'


def digits(size: int) -> bytes:
    return b"9" * size


NESTED = 400
"""A value this deep is within what parsers take, so that it gets further than one without an end."""

ANYTHING: tuple[Callable[[int], bytes], ...] = (deep_arrays, deep_objects, wide_array, wide_object)
STRINGS: tuple[Callable[[int], bytes], ...] = (text, escaped, marks)
WHOLE: tuple[Callable[[int], bytes], ...] = (*ANYTHING, text, digits)
"""Bodies without an example."""


def nested(size: int) -> bytes:
    return b'{"a":[' * (NESTED // 2) + b"[]," * (size // 3) + b"1" + b"]}" * (NESTED // 2)


def schema_deep(size: int) -> bytes:
    begin = b'{"type":"object","properties":{"a":'
    return begin * (NESTED // 2) + b'{"type":"string"}' + b"}}" * (NESTED // 2)


def schema_wide(size: int) -> bytes:
    properties = b",".join(b'"k%d":{"type":"string"}' % at for at in range(size // 27))
    return b'{"type":"object","properties":{' + properties + b"}}"


def schema_refs(size: int) -> bytes:
    defs = b",".join(b'"d%d":{"$ref":"#/$defs/d%d"}' % (at, at + 1) for at in range(size // 34))
    return b'{"$ref":"#/$defs/d0","$defs":{' + defs + b"}}"


SCHEMAS = (schema_deep, schema_wide, schema_refs)
SCHEMA_KEYS = ("parameters", "schema", "input_schema", "inputSchema")


Put = Callable[[Any], Any]


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any, Put]]:
    """Each part of a value: its path, what is there, and what returns the value with another part in its place."""
    yield path, value, lambda new: new
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _inside(parts(inner, f"{path}.{key}"), partial(_with_key, value, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _inside(parts(inner, f"{path}[{index}]"), partial(_with_item, value, index))


def _inside(inner: Iterator[tuple[str, Any, Put]], outer: Put) -> Iterator[tuple[str, Any, Put]]:
    for path, part, put in inner:
        yield path, part, partial(_both, outer, put)


def _both(outer: Put, inner: Put, new: Any) -> Any:
    return outer(inner(new))


def _with_key(value: dict[str, Any], key: str, new: Any) -> dict[str, Any]:
    return {**value, key: new}


def _with_item(value: list[Any], index: int, new: Any) -> list[Any]:
    return [*value[:index], new, *value[index + 1 :]]


@lru_cache(KEPT)
def _grown(way: Callable[[int], bytes], size: int) -> bytes:
    return way(size)


def _ways(path: str, part: Any) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    if path.rpartition(".")[2] in SCHEMA_KEYS:
        yield from ((way.__name__, way) for way in SCHEMAS)
    elif ".properties" not in path:
        yield from ((way.__name__, way) for way in (*ANYTHING, nested))
    match part:
        case str():
            yield from ((way.__name__, way) for way in STRINGS)
        case bool() | None:
            pass
        case int() | float():
            yield "digits", digits
        case [first, *_]:
            element = json.dumps(first).encode()
            yield "repeated", lambda size: b"[" + b",".join([element] * (size // (len(element) + 1))) + b"]"
        case dict():
            rest = json.dumps(part).encode()[1:-1]
            yield "with more keys", lambda size: b"{" + rest + b"," * bool(rest) + wide_object(size)[1:]


def grown(example: Any, size: int) -> Iterator[Grown]:
    """The example with each of its parts grown in each way that suits it, to about `size` bytes."""
    for path, part, put in parts(example):
        if not path and not isinstance(part, dict):
            continue
        for name, way in _ways(path, part):
            if not path and name != "with more keys":
                continue  # bodies without an example do that

            def make(put: Callable[[Any], Any] = put, way: Callable[[int], bytes] = way) -> bytes:
                before, _, after = json.dumps(put(HERE)).encode().partition(json.dumps(HERE).encode())
                # The functions of this module are few; those of one example's part aren't kept.
                return before + (_grown(way, size) if way.__name__ != "<lambda>" else way(size)) + after

            yield Grown(f"{path or 'the body'}: {name}", make)

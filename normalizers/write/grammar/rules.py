"""From schemas to rules: expressions for the values of a schema, in JSON or in Python's spelling of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normalizers.write.grammar.gbnf import INT_DIGITS, either, grouped, integers, literal, times
from normalizers.write.grammar.schemas import (
    ANY,
    COMPOSED,
    Schema,
    bound,
    count,
    items,
    merged,
    parameters,
    properties,
    resolved,
    target,
    without,
)

MAX_SIZE, MAX_DEPTH = 4000, 40
"""Schemas read for one grammar, and within each other. Beyond these bounds any value is accepted: a schema can
refer to itself without end."""

_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_NOTES = ("title", "description", "default", "examples", "deprecated")
_JSON_ESCAPES = r'"\\" (["\\/bfnrt] | "u" code)'
_PYTHON_ESCAPES = r'"\\" (["\\bfnrt] | "u" code)'


class Rules:
    """The rules written so far, by name. With `python`, values are spelled as Python literals."""

    def __init__(self, *, python: bool) -> None:
        self.python = python
        self._rules: dict[str, str] = {}
        self._refs: dict[tuple[int, str], str] = {}
        self._numbers: dict[str, int] = {}
        """The last number of each name that several rules wanted."""
        self._size = 0
        self._depth = 0
        self._shared = {
            "char": r"[^\"\\\x00-\x1f\x7f] | " + (_PYTHON_ESCAPES if python else _JSON_ESCAPES),
            # Excludes lone surrogates.
            "code": "[0-9a-cefA-CEF] hex{3} | [dD] [0-7] hex{2}",
            "hex": "[0-9a-fA-F]",
            "string": r'"\"" char* "\""',
            "integer": f'"-"? ("0" | [1-9] [0-9]{{0,{INT_DIGITS}}})',
            "number": f'integer ("." [0-9]{{1,{INT_DIGITS}}})? ([eE] [-+]? [0-9]{{1,2}})?',
            "boolean": '"True" | "False"' if python else '"true" | "false"',
            "null": '"None"' if python else '"null"',
            "array": '"[" (value (", " value)*)? "]"',
            "object": '"{" (member (", " member)*)? "}"',
            "member": 'string ": " value',
            "value": "string | number | boolean | null | array | object",
        }

    def text(self, root: str) -> str:
        return "".join(f"{name} ::= {body}\n" for name, body in [("root", root), *self._rules.items()])

    def shared(self, name: str) -> str:
        """Add a rule that every grammar may use, and those that it needs."""
        if name not in self._rules:
            body = self._rules[name] = self._shared[name]
            for word in re.findall(r"[a-z]+", re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', " ", body)):
                self.shared(word)
        return name

    def rule(self, hint: str, body: str) -> str:
        """Add a rule for `body`; returns its name."""
        name = self._free(hint)
        self._rules[name] = body
        return name

    def _free(self, hint: str) -> str:
        base = name = "x-" + (re.sub(r"[^a-zA-Z0-9]+", "-", hint[:64]).strip("-") or "x")
        number = self._numbers.get(base, 1)
        while name in self._rules:
            number += 1
            name = f"{base}-{number}"
        self._numbers[base] = number
        return name

    # -- values ----------------------------------------------------------------------------------

    def constant(self, value: object) -> str:
        return literal(_spelled(value, python=self.python))

    def value(self, schema: object, root: Schema, hint: str) -> str:
        """An expression for the values of a schema."""
        self._size += 1
        if not isinstance(schema, Mapping) or self._size > MAX_SIZE or self._depth > MAX_DEPTH:
            return self.shared("value")
        self._depth += 1
        try:
            return self._value(schema, root, hint)
        finally:
            self._depth -= 1

    def _value(self, schema: Schema, root: Schema, hint: str) -> str:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._reference(reference, root, hint)
        if "const" in schema:
            return self.constant(schema["const"])
        if values := items(schema, "enum"):
            return either([self.constant(value) for value in values])
        if parts := items(schema, "allOf"):
            return self.value(merged(without(schema, "allOf"), *(target(part, root) for part in parts)), root, hint)
        for keyword in COMPOSED:
            if branches := items(schema, keyword):
                return self._branches(without(schema, keyword, *_NOTES), branches, root, hint)
        if kinds := items(schema, "type"):
            return either([self.value({**schema, "type": one}, root, hint) for one in kinds])
        return self._typed(schema, root, hint)

    def _typed(self, schema: Schema, root: Schema, hint: str) -> str:
        """The values of a schema with one type, or with none that is known."""
        match _type(schema):
            case None:
                return self.shared("value")
            case "string":
                return self._string(schema)
            case "integer" | "number" as kind:
                return self._number(schema, whole=kind == "integer")
            case "array":
                return self._array(schema, root, hint)
            case "object":
                return self._object(schema, root, hint)
            case kind:
                return self.shared(kind)

    def _reference(self, reference: str, root: Schema, hint: str) -> str:
        key = (id(root), reference)
        if key not in self._refs:
            name = self._refs[key] = self._free(reference)
            self._rules[name] = ""  # reserves the name: the schema may refer to itself
            self._rules[name] = self.value(resolved(reference, root), root, hint)
        return self._refs[key]

    def _branches(self, base: Schema, branches: Sequence[Any], root: Schema, hint: str) -> str:
        """A choice of the branches; the keywords beside them apply to each."""
        each = branches if not base else [merged(base, target(branch, root)) for branch in branches]
        return either([self.value(branch, root, hint) for branch in each])

    def _string(self, schema: Schema) -> str:
        low, high = count(schema, "minLength"), count(schema, "maxLength")
        if not low and high is None:
            return self.shared("string")
        return rf'"\"" {self.shared("char")}{times(low or 0, high)} "\""'

    def _number(self, schema: Schema, *, whole: bool) -> str:
        low, high = bound(schema, "minimum", 1), bound(schema, "maximum", -1)
        if low is None and high is None:
            return self.shared("integer" if whole else "number")
        least = None if low is None else math.ceil(low[0])
        most = None if high is None else math.floor(high[0])
        # The first and the last whole number; an exclusive bound is neither.
        first = least if low is None or least is None else least + (low[1] and least == low[0])
        last = most if high is None or most is None else most - (high[1] and most == high[0])
        found = integers(first, last)
        if not whole:
            # The fraction leads away from 0, by less than 1.
            positive = integers(max(first or 0, 0), None if most is None else most - 1)
            negative = integers(None if least is None else least + 1, -1 if last is None else min(last, -1))
            found += [f'({text}) "." [0-9]{{1,{INT_DIGITS}}}' for text in (*positive, *negative)]
        if found:
            return either(found)
        # No whole number fits, so there are two bounds: any number between them does.
        between = [limit[0] for limit in (low, high) if limit is not None]
        return literal(json.dumps(sum(between) / len(between)))

    def _array(self, schema: Schema, root: Schema, hint: str) -> str:
        low, high = count(schema, "minItems") or 0, count(schema, "maxItems")
        first = [self.value(item, root, hint) for item in items(schema, "prefixItems")[:high]]
        rest = schema.get("items", ANY)
        if high == 0 or (rest is False and not first):
            return '"[]"'
        item = self.rule(f"{hint}-item", self.value(rest, root, hint)) if rest is not False else ""
        if first:
            head = ' ", " '.join(f"({one})" for one in first)
            more = f' (", " {item}){times(max(low - len(first), 0), _less(high, len(first)))}' if item else ""
            return f'"[" {head}{more} "]"'
        more = f'{item} (", " {item}){times(max(low - 1, 0), _less(high, 1))}'
        return f'"[" {more} "]"' if low else f'"[" ({more})? "]"'

    def _object(self, schema: Schema, root: Schema, hint: str) -> str:
        if not properties(schema):
            further = schema.get("additionalProperties")
            if further is False:
                return '"{}"'
            if not isinstance(further, Mapping):
                return self.shared("object")
            member = self.rule(f"{hint}-any", f'{self.shared("string")} ": " {self.value(further, root, hint)}')
            return f'"{{" ({member} (", " {member})*)? "}}"'
        return f'"{{" {self.members(schema, root, hint, self.json_member)} "}}"'

    # -- members -----------------------------------------------------------------------------------

    def json_member(self, key: str, value: str) -> str:
        return f"{literal(json.dumps(key, ensure_ascii=False) + ': ')} {value}"

    def members(
        self, schema: Schema, root: Schema, hint: str, write: Callable[[str, str], str], separator: str = '", "'
    ) -> str:
        """The members of an object: the required ones, then each optional one at most once."""
        known = properties(schema)
        wanted = dict.fromkeys(key for key in items(schema, "required") if isinstance(key, str))
        required = [*(key for key in known if key in wanted), *(key for key in wanted if key not in known)]
        optional = [key for key in known if key not in wanted]
        written = {
            key: self.rule(f"{hint}-{key}", write(key, grouped(self.value(known.get(key, ANY), root, f"{hint}-{key}"))))
            for key in (*required, *optional)
        }
        joined = f" {separator} " if separator else " "
        between = f"{separator} " if separator else ""
        rest, alternatives = "", []
        for key in reversed(optional):
            alternatives.append(f"{written[key]} {rest}".strip())
            rest = self.rule(f"{hint}-rest", f"({between}{written[key]})? {rest}".strip())
        if required:
            return f"{joined.join(written[key] for key in required)} {rest}".strip()
        return f"({' | '.join(reversed(alternatives))})?" if alternatives else '""'

    def arguments(self, function: Schema) -> str:
        """A tool's arguments as one JSON object."""
        schema = parameters(function)
        if not properties(schema) and not items(schema, "required"):
            return '"{}"'
        return f'"{{" {self.members(schema, schema, function["name"], self.json_member)} "}}"'


def _type(schema: Schema) -> str | None:
    """The schema's type, or the one that its keywords imply."""
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else None


def _less(limit: int | None, taken: int) -> int | None:
    return None if limit is None else max(limit - taken, 0)


def _spelled(value: object, *, python: bool) -> str:
    match value:
        case None | bool() if python:
            return repr(value)
        case Mapping():
            members = (f"{json.dumps(k, ensure_ascii=False)}: {_spelled(v, python=python)}" for k, v in value.items())
            return "{" + ", ".join(members) + "}"
        case list() | tuple():
            return "[" + ", ".join(_spelled(one, python=python) for one in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)

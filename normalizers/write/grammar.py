"""Grammars that force a format: from the tools' JSON Schemas to GBNF, which llama.cpp samples by.

What such a grammar lets through is a complete call of a declared tool, whose arguments fit its schema. Held to:
types, enum, const, anyOf, oneOf, allOf, local $ref, required, additionalProperties, length of strings and arrays,
ranges of integers and numbers. Not held to: pattern, format, multipleOf, uniqueItems, not, if, and that only one
branch of a oneOf fits. Form is certain, meaning isn't. Nor is that a string's bytes are UTF-8: llama.cpp lets a lead
byte be followed by anything, so a model at a high temperature can write what is no text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from normalizers.spec import FormatSpec, NamedSyntax, TagSyntax

MAX_CALLS = 8
"""In one answer: a weak model would go on listing calls."""

MAX_REPEAT = 1000
"""The longest counted repetition; llama.cpp unrolls each."""

MAX_SIZE, MAX_DEPTH = 4000, 40
"""Schemas read for one grammar, and within each other; what is beyond may be any value. A schema can name itself in
ways without end."""

_LINE = "\n"
_INT_DIGITS = 15
_MAX_BRANCHES = 6
_ANY: Mapping[str, Any] = {}
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_COMPOSED = ("anyOf", "oneOf")
_NOTES = ("title", "description", "default", "examples", "deprecated")

Schema = Mapping[str, Any]


def grammar(
    spec: FormatSpec,
    tools: Sequence[Schema],
    *,
    only: Collection[str] | None = None,
    calls: int = MAX_CALLS,
    answer: Schema | None = None,
) -> str | None:
    """GBNF for one to `calls` calls of the OpenAI `tools` (of those named by `only`) in that format.

    answer: a JSON Schema; a JSON text that conforms to it may stand in the place of the calls.
    None where the format has no grammar yet, or no tool is left.
    """
    functions = [tool.get("function", tool) for tool in tools]
    named = [f for f in functions if isinstance(f, Mapping) and isinstance(f.get("name"), str)]
    chosen = [f for f in named if only is None or f["name"] in only]
    write = _FORMS.get(spec.dialect)
    if write is None or not chosen:
        return None
    rules = _Rules(python=spec.dialect == "pythonic")
    root = write(rules, spec, chosen, calls)
    if root is None or answer is None:
        return None if root is None else rules.text(root)
    json_rules = _Rules(python=False)
    json_root = json_rules.value(answer, answer, "answer")
    both = _renamed(rules.text(root), "calls-") + _renamed(json_rules.text(json_root), "answer-")
    return f"root ::= calls-root | answer-root\n{both}"


def _renamed(text: str, prefix: str) -> str:
    """The rules with other names, so that they can stand beside further ones."""
    return re.sub(
        r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|([a-zA-Z][\w-]*)',
        lambda match: f"{prefix}{match[1]}" if match[1] else match[0],
        text,
    )


def literal(text: str) -> str:
    """A terminal for exactly that text."""
    return '"' + "".join(_ESCAPES.get(char, char) if char >= " " else f"\\x{ord(char):02x}" for char in text) + '"'


_ESCAPES = {"\\": "\\\\", '"': '\\"'}
_JSON_ESCAPES = r'"\\" (["\\/bfnrt] | "u" code)'
_PYTHON_ESCAPES = r'"\\" (["\\bfnrt] | "u" code)'


class _Rules:
    """The grammar being written: rules by name, values in JSON or in Python's spelling of it."""

    def __init__(self, *, python: bool) -> None:
        self.python = python
        self._rules: dict[str, str] = {}
        self._refs: dict[tuple[int, str], str] = {}
        self._size = 0
        self._depth = 0
        self._shared = {
            "char": r"[^\"\\\x00-\x1f\x7f] | " + (_PYTHON_ESCAPES if python else _JSON_ESCAPES),
            # No lone surrogates.
            "code": "[0-9a-cefA-CEF] hex{3} | [dD] [0-7] hex{2}",
            "hex": "[0-9a-fA-F]",
            "string": r'"\"" char* "\""',
            "integer": f'"-"? ("0" | [1-9] [0-9]{{0,{_INT_DIGITS}}})',
            "number": f'integer ("." [0-9]{{1,{_INT_DIGITS}}})? ([eE] [-+]? [0-9]{{1,2}})?',
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
        """A rule of the table, and those that it needs."""
        if name not in self._rules:
            body = self._rules[name] = self._shared[name]
            for word in re.findall(r"[a-z]+", re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', " ", body)):
                self.shared(word)
        return name

    def rule(self, hint: str, body: str) -> str:
        """A rule of its own for `body`; its name, a reference."""
        name = self._free(hint)
        self._rules[name] = body
        return name

    def _free(self, hint: str) -> str:
        base = name = "x-" + (re.sub(r"[^a-zA-Z0-9]+", "-", hint[:64]).strip("-") or "x")
        number = 1
        while name in self._rules:
            number += 1
            name = f"{base}-{number}"
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
        if values := _items(schema, "enum"):
            return _either([self.constant(value) for value in values])
        if parts := _items(schema, "allOf"):
            return self.value(_merged(_without(schema, "allOf"), *(_target(part, root) for part in parts)), root, hint)
        for keyword in _COMPOSED:
            if branches := _items(schema, keyword):
                return self._branches(_without(schema, keyword, *_NOTES), branches, root, hint)
        if kinds := _items(schema, "type"):
            return _either([self.value({**schema, "type": one}, root, hint) for one in kinds])
        kind = schema.get("type")
        if kind not in _TYPES:
            kind = "object" if "properties" in schema else "array" if "items" in schema else None
        match kind:
            case None:
                return self.shared("value")
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(schema, whole=kind == "integer")
            case "array":
                return self._array(schema, root, hint)
            case "object":
                return self._object(schema, root, hint)
            case _:
                return self.shared(kind)

    def _reference(self, reference: str, root: Schema, hint: str) -> str:
        key = (id(root), reference)
        if key not in self._refs:
            name = self._refs[key] = self._free(reference)
            self._rules[name] = ""  # taken: the schema may name itself
            self._rules[name] = self.value(_resolved(reference, root), root, hint)
        return self._refs[key]

    def _branches(self, base: Schema, branches: Sequence[Any], root: Schema, hint: str) -> str:
        """What stands beside the branches holds for each of them."""
        found = []
        for branch in branches:
            target = branch if not base else _merged(base, _target(branch, root))
            found.append(self.value(target, root, hint))
        return _either(found)

    def _string(self, schema: Schema) -> str:
        low, high = _count(schema, "minLength"), _count(schema, "maxLength")
        if not low and high is None:
            return self.shared("string")
        return rf'"\"" {self.shared("char")}{_times(low or 0, high)} "\""'

    def _number(self, schema: Schema, *, whole: bool) -> str:
        low, high = _bound(schema, "minimum", 1), _bound(schema, "maximum", -1)
        if low is None and high is None:
            return self.shared("integer" if whole else "number")
        least = None if low is None else math.ceil(low[0])
        most = None if high is None else math.floor(high[0])
        # The first and the last whole number; an open bound isn't one of them.
        first = least if low is None or least is None else least + (low[1] and least == low[0])
        last = most if high is None or most is None else most - (high[1] and most == high[0])
        found = _integers(first, last)
        if not whole:
            # The fraction leads away from 0, by less than 1.
            positive = _integers(max(first or 0, 0), None if most is None else most - 1)
            negative = _integers(None if least is None else least + 1, -1 if last is None else min(last, -1))
            found += [f'({text}) "." [0-9]{{1,{_INT_DIGITS}}}' for text in (*positive, *negative)]
        if found:
            return _either(found)
        between = [bound[0] for bound in (low, high) if bound is not None]
        return literal(json.dumps(sum(between) / len(between)))

    def _array(self, schema: Schema, root: Schema, hint: str) -> str:
        low, high = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        first = [self.value(item, root, hint) for item in _items(schema, "prefixItems")[:high]]
        rest = schema.get("items", _ANY)
        if high == 0 or (rest is False and not first):
            return '"[]"'
        item = self.rule(f"{hint}-item", self.value(rest, root, hint)) if rest is not False else ""
        if first:
            head = ' ", " '.join(f"({one})" for one in first)
            more = f' (", " {item}){_times(max(low - len(first), 0), _less(high, len(first)))}' if item else ""
            return f'"[" {head}{more} "]"'
        more = f'{item} (", " {item}){_times(max(low - 1, 0), _less(high, 1))}'
        return f'"[" {more} "]"' if low else f'"[" ({more})? "]"'

    def _object(self, schema: Schema, root: Schema, hint: str) -> str:
        properties = _properties(schema)
        if not properties:
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
        """The members of an object: those required, then each of the others at most once."""
        properties = _properties(schema)
        wanted = [key for key in _items(schema, "required") if isinstance(key, str)]
        required = [*(key for key in properties if key in wanted), *(key for key in wanted if key not in properties)]
        optional = [key for key in properties if key not in wanted]
        written = {
            key: self.rule(f"{hint}-{key}", write(key, self._grouped(properties.get(key, _ANY), root, f"{hint}-{key}")))
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

    def _grouped(self, schema: object, root: Schema, hint: str) -> str:
        return f"({self.value(schema, root, hint)})"

    def arguments(self, function: Schema) -> str:
        """A tool's arguments as one JSON object."""
        schema = _parameters(function)
        if not _properties(schema) and not _items(schema, "required"):
            return '"{}"'
        return f'"{{" {self.members(schema, schema, function["name"], self.json_member)} "}}"'


# -- formats -----------------------------------------------------------------------------------------


def _pythonic(rules: _Rules, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str:
    def member(key: str, value: str) -> str:
        if re.fullmatch(r"[^\W\d][\w.\-]*", key):
            return f"{literal(key + '=')} {value}"
        return f'"**{{" {rules.json_member(key, value)} "}}"'

    def call(function: Schema) -> str:
        schema = _parameters(function)
        body = rules.members(schema, schema, function["name"], member)
        return f'{literal(function["name"] + "(")} {body} ")"'

    one = rules.rule("call", _either([rules.rule(f["name"], call(f)) for f in functions]))
    if spec.lines:
        return _framed(spec, _several(one, calls, "\n"))
    return _framed(spec, f'"[" {_several(one, calls, ", ")} "]"')


def _json(rules: _Rules, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str:
    key = "parameters" if spec.name == "llama3_json" else "arguments"

    def call(function: Schema) -> str:
        head = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{key}": '
        return f'{literal(head)} {rules.arguments(function)} "}}"'

    one = rules.rule("call", _either([rules.rule(f["name"], call(f)) for f in functions]))
    if spec.close:
        return _several(_framed(spec, one, gap="\n"), calls, "\n")
    if spec.open and spec.listed:
        return _framed(spec, f'"[" {_several(one, calls, ", ")} "]"')
    return _framed(spec, _several(one, calls, "; "))


def _named(rules: _Rules, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str | None:
    syntax = spec.syntax
    if not isinstance(syntax, NamedSyntax) or syntax.quotes or syntax.bare_keys:
        return None
    before, _, after = syntax.written.partition("{arguments}")

    def call(function: Schema) -> str:
        # Numbers of calls can't be counted here; an id that another call has is replaced when it is read.
        head = _filled(before, name=function["name"], index="0")
        return f"{literal(head)} {rules.arguments(function)}" + (f" {literal(after)}" if after else "")

    one = rules.rule("call", _either([rules.rule(f["name"], call(f)) for f in functions]))
    if syntax.tail:
        return _framed(spec, _several(one, calls, ""))
    return _several(_framed(spec, one), calls, "" if spec.open else "\n")


def _tags(rules: _Rules, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str | None:
    syntax = spec.syntax
    if not isinstance(syntax, TagSyntax):
        return None
    text = rules.rule("text", '([^<] | "<" [^/<])*')

    def call(function: Schema) -> str:
        schema = _parameters(function)
        properties = _properties(schema)

        def member(key: str, value: str) -> str:
            found = _texts(properties.get(key), schema, text)
            forms = [("true", plain) for plain in found] if found else []
            if rest := _not_text(properties.get(key), schema):
                forms.append(("false", rules.value(rest, schema, f"{function['name']}-{key}") if found else value))
            return _either(
                [
                    f"{literal(_parameter(syntax, key, string))} {form} {literal(syntax.parameter_end + _LINE)}"
                    for string, form in forms
                ]
            )

        body = rules.members(schema, schema, function["name"], member, separator="")
        end = f" {literal(syntax.call_end[0])}" if syntax.call_end else ""
        return f"{literal(_filled(syntax.call[0], name=function['name']) + _LINE)} {body}{end}"

    one = rules.rule("call", _either([rules.rule(f["name"], call(f)) for f in functions]))
    if syntax.call_end:
        return _framed(spec, _several(one, calls, "\n"), gap="\n")
    return _several(_framed(spec, one), calls, "\n")


def _parameter(syntax: TagSyntax, key: str, string: str) -> str:
    return _filled(syntax.parameter[0], key=key, string=string).replace("</arg_key> <", "</arg_key>\n<")


_FORMS: dict[str, Callable[[_Rules, FormatSpec, Sequence[Schema], int], str | None]] = {
    "pythonic": _pythonic,
    "json": _json,
    "named": _named,
    "tags": _tags,
}


def _framed(spec: FormatSpec, body: str, gap: str = "") -> str:
    opening = literal(spec.open[0] + gap) + " " if spec.open else ""
    closing = " " + literal(gap + spec.close[0]) if spec.close else ""
    return f"{opening}{body}{closing}"


def _several(one: str, calls: int, separator: str) -> str:
    more = f"{literal(separator)} {one}" if separator else one
    return one if calls <= 1 else f"{one} ({more}){{0,{calls - 1}}}"


def _filled(template: str, **fields: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: fields[match[1]], template)


# -- schemas -----------------------------------------------------------------------------------------


def _parameters(function: Schema) -> Schema:
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping):
        return _ANY
    reference = parameters.get("$ref")
    if isinstance(reference, str):
        return {**parameters, **_resolved(reference, parameters)}
    if parts := _items(parameters, "allOf"):
        return _merged(_without(parameters, "allOf"), *(_target(part, parameters) for part in parts))
    return parameters


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else _ANY


def _resolved(reference: str, root: Schema) -> Schema:
    node: object = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        part = part.replace("~1", "/").replace("~0", "~")
        node = node.get(part) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else _ANY


def _target(schema: object, root: Schema) -> Schema:
    """A branch, its reference followed."""
    for _ in range(16):
        if not isinstance(schema, Mapping):
            return _ANY
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = _resolved(reference, root)
    return _ANY


def _merged(base: Schema, *others: Schema) -> Schema:
    merged = dict(base)
    for other in others:
        properties = {**_properties(merged), **_properties(other)}
        required = _items(merged, "required") + [
            key for key in _items(other, "required") if key not in _items(merged, "required")
        ]
        merged |= other
        if properties:
            merged["properties"] = properties
        if required:
            merged["required"] = required
    return merged


def _without(schema: Schema, *keys: str) -> Schema:
    return {name: value for name, value in schema.items() if name not in keys}


def _items(schema: Schema, key: str) -> list[Any]:
    value = schema.get(key)
    return list(value) if isinstance(value, list | tuple) else []


def _texts(schema: object, root: Schema, text: str, depth: int = 0) -> list[str]:
    """Expressions for those values that are strings, and stand without quotes."""
    target, found = _target(schema, root), []
    values = _items(target, "enum") or ([target["const"]] if "const" in target else [])
    if values:
        return [literal(value) for value in values if isinstance(value, str)]
    for keyword in _COMPOSED:
        for branch in _items(target, keyword):
            found += _texts(branch, root, text, depth + 1) if depth < _MAX_BRANCHES else []
    kinds = _items(target, "type") or [target.get("type")]
    if "string" in kinds:
        low, high = _count(target, "minLength") or 0, _count(target, "maxLength")
        found.append(text if not low and high is None else f"[^<]{_times(low, high)}")
    return found


def _not_text(schema: object, root: Schema, depth: int = 0) -> Schema | None:
    """What is left of a schema without its strings; None: nothing."""
    target = _target(schema, root)
    values = _items(target, "enum") or ([target["const"]] if "const" in target else [])
    if values:
        others = [value for value in values if not isinstance(value, str)]
        return {"enum": others} if others else None
    for keyword in _COMPOSED:
        if branches := _items(target, keyword):
            if depth == _MAX_BRANCHES:
                return None
            left = [rest for branch in branches if (rest := _not_text(branch, root, depth + 1)) is not None]
            return {**_without(target, keyword), "anyOf": left} if left else None
    kinds = _items(target, "type")
    if "string" in kinds:
        others = [kind for kind in kinds if kind != "string"]
        return {**target, "type": others} if others else None
    return None if target.get("type") == "string" else target


def _either(choices: Sequence[str]) -> str:
    unique = list(dict.fromkeys(choices))
    return unique[0] if len(unique) == 1 else "(" + " | ".join(unique) + ")"


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


# -- counts and ranges ---------------------------------------------------------------------------------


def _count(schema: Schema, key: str) -> int | None:
    value = schema.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _less(count: int | None, taken: int) -> int | None:
    return None if count is None else max(count - taken, 0)


def _times(low: int, high: int | None) -> str:
    low = min(low, MAX_REPEAT)
    if high is None:
        return "*" if not low else f"{{{low},}}"
    return f"{{{low},{max(low, min(high, MAX_REPEAT))}}}"


def _bound(schema: Schema, key: str, sign: int) -> tuple[float, bool] | None:
    """The tighter of `minimum` and `exclusiveMinimum` (or of the maxima), and whether it is open."""
    found: list[tuple[float, bool]] = []
    exclusive = schema.get("exclusive" + key.capitalize())
    for value, is_open in ((schema.get(key), exclusive is True), (exclusive, True)):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.append((value, is_open))
    return max(found, key=lambda bound: (sign * bound[0], bound[1])) if found else None


def _integers(low: int | None, high: int | None) -> list[str]:
    """Expressions for the whole numbers from `low` to `high`; None: no bound."""
    if low is not None and high is not None and low > high:
        return []
    found = []
    if low is None or low < 0:
        nearest = 1 if high is None or high >= 0 else -high
        found += [f'"-" {text}' for text in _naturals(nearest, None if low is None else -low)]
    if high is None or high >= 0:
        found += _naturals(max(low or 0, 0), high)
    return found


def _naturals(low: int, high: int | None) -> list[str]:
    found = []
    if high is None:
        size = len(str(low))
        if size < _INT_DIGITS:
            found.append(f"[1-9] [0-9]{{{size},{_INT_DIGITS}}}")
        high = 10**size - 1
    for size in range(len(str(low)), len(str(high)) + 1):
        first, last = max(low, 10 ** (size - 1) if size > 1 else 0), min(high, 10**size - 1)
        found.append(_digits(str(first), str(last)))
    return found


def _digits(low: str, high: str) -> str:
    """The numbers from `low` to `high`, which have the same length."""
    size = len(low)
    if low == high:
        return literal(low)
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{size}}}"
    if low[0] == high[0]:
        return f"{literal(low[0])} {_grouped(_digits(low[1:], high[1:]))}"
    if size == 1:
        return f"[{low}-{high}]"
    choices = []
    first, last = int(low[0]), int(high[0])
    if set(low[1:]) != {"0"}:
        choices.append(f"{literal(low[0])} {_grouped(_digits(low[1:], '9' * (size - 1)))}")
        first += 1
    if set(high[1:]) != {"9"}:
        choices.append(f"{literal(high[0])} {_grouped(_digits('0' * (size - 1), high[1:]))}")
        last -= 1
    if first <= last:
        choices.append(f"[{first}-{last}] [0-9]{{{size - 1}}}")
    return _either(choices)


def _grouped(expression: str) -> str:
    return f"({expression})"

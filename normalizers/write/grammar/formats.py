"""One root rule for each dialect: how a format frames calls, their names and their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from normalizers.spec import FormatSpec, NamedSyntax, TagSyntax
from normalizers.write.grammar.gbnf import either, literal, times
from normalizers.write.grammar.schemas import Schema, count, not_strings, parameters, properties, strings, values
from normalizers.write.grammar.values import Values

_FIELD = re.compile(r"(\{\w+\})")
_TYPES = either([literal(kind) for kind in ("array", "boolean", "null", "number", "object")])


def _pythonic(rules: Values, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str:
    def member(key: str, value: str) -> str:
        if re.fullmatch(r"[^\W\d][\w.\-]*", key):
            return f"{literal(key + '=')} {value}"
        return f'"**{{" {rules.json_member(key, value)} "}}"'

    def call(function: Schema) -> str:
        schema = parameters(function)
        body = rules.members(schema, schema, function["name"], member)
        return f'{literal(function["name"] + "(")} {body} ")"'

    one = _any_call(rules, functions, call)
    if spec.lines:
        return _framed(spec, _several(one, calls, "\n"))
    return _framed(spec, f'"[" {_several(one, calls, ", ")} "]"')


def _json(rules: Values, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str:

    def call(function: Schema) -> str:
        name = json.dumps(function["name"], ensure_ascii=False)
        head = f"{{{name}: "
        if spec.keys:
            name_key, arguments_key = spec.keys
            head = f'{{"{name_key}": {name}, "{arguments_key}": '
        return f'{literal(head)} {rules.arguments(function)} "}}"'

    one = _any_call(rules, functions, call)
    if spec.listed:
        return _framed(spec, f'"[" {_several(one, calls, ", ")} "]"')
    if spec.close:
        return _several(_framed(spec, one, gap="\n"), calls, "\n")
    return _framed(spec, _several(one, calls, "; "))


def _named(rules: Values, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str | None:
    syntax = spec.syntax
    if not isinstance(syntax, NamedSyntax) or syntax.quotes or syntax.bare_keys:
        return None
    before, _, after = syntax.written.partition("{arguments}")

    def call(function: Schema) -> str:
        # A grammar can't count calls. The reader replaces an id that another call already has.
        head = _filled(before, name=function["name"], index="0")
        return f"{literal(head)} {rules.arguments(function)}" + (f" {literal(after)}" if after else "")

    one = _any_call(rules, functions, call)
    if syntax.tail:
        return _framed(spec, _several(one, calls, ""))
    return _several(_framed(spec, one), calls, "" if spec.open else "\n")


def _tags(rules: Values, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str | None:
    syntax = spec.syntax
    if not isinstance(syntax, TagSyntax):
        return None
    end, gap = syntax.parameter_end[0], syntax.gap
    text = rules.rule("text", f'([^<] | "<" [^{end[1]}<])*')
    closing = literal(end + gap)

    def call(function: Schema) -> str:
        schema = parameters(function)

        def member(key: str, value: str) -> str:
            found = properties(schema).get(key)
            forms = [("true", plain(part, text)) for part in strings(found, schema)]
            if (rest := not_strings(found, schema)) is not None:
                forms.append(("false", rules.value(rest, schema, f"{function['name']}-{key}") if forms else value))
            return either([f"{parameter_tag(syntax, key, string, literal)} {form} {closing}" for string, form in forms])

        body = rules.members(schema, schema, function["name"], member, separator="")
        fields = {"{name}": literal(function["name"]), "{index}": "[1-9]"}
        head = " ".join(fields.get(piece, literal(piece)) for piece in _FIELD.split(syntax.call[0] + gap) if piece)
        return f"{head} {body}" + (f" {literal(syntax.call_end[0])}" if syntax.call_end else "")

    one = _any_call(rules, functions, call)
    if syntax.call_end:
        return _framed(spec, _several(one, calls, gap), gap=gap)
    return _several(_framed(spec, one), calls, gap)


def plain(schema: Schema, text: str) -> str:
    """A string without quotes, as it stands between tags."""
    if only := values(schema):
        return literal(only[0])
    low, high = count(schema, "minLength") or 0, count(schema, "maxLength")
    return text if not low and high is None else f"[^<]{times(low, high)}"


def parameter_tag(syntax: TagSyntax, key: str, string: str, write: Callable[[str], str]) -> str:
    """The tag before a parameter's value; `write` makes an expression of literal text. string: whether the value is
    text, "true" or "false".
    """
    template = syntax.parameter[0].replace("> <", f">{syntax.gap}<")
    before, asked, behind = template.partition("{type}")
    parts = [write(_filled(part, key=key, string=string)) for part in (before, behind) if part]
    if asked:
        parts.insert(1, literal("string") if string == "true" else _TYPES)
    return " ".join(parts)


FORMS: dict[str, Callable[[Values, FormatSpec, Sequence[Schema], int], str | None]] = {
    "pythonic": _pythonic,
    "json": _json,
    "named": _named,
    "tags": _tags,
}
"""By dialect: the root's body for at most that many calls; None where no grammar is known."""


def _any_call(rules: Values, functions: Sequence[Schema], call: Callable[[Schema], str]) -> str:
    return rules.rule("call", either([rules.rule(function["name"], call(function)) for function in functions]))


def _framed(spec: FormatSpec, body: str, gap: str = "") -> str:
    opening = literal(spec.open[0] + gap) + " " if spec.open else ""
    closing = " " + literal(gap + spec.close[0]) if spec.close else ""
    return f"{opening}{body}{closing}"


def _several(one: str, calls: int, separator: str) -> str:
    more = f"{literal(separator)} {one}" if separator else one
    return one if calls <= 1 else f"{one} ({more}){{0,{calls - 1}}}"


def _filled(template: str, **fields: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: fields[match[1]], template)

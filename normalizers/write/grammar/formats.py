"""The rule of an answer that is nothing but calls: how a format frames calls, their names and their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from normalizers.spec import FormatSpec, Layout
from normalizers.write.grammar.gbnf import either, grouped, literal, times
from normalizers.write.grammar.rules import MARK_SIZE
from normalizers.write.grammar.schemas import Schema, count, items, not_strings, parameters, properties, strings, values
from normalizers.write.grammar.values import Values
from normalizers.write.layout import bare_quotes, layout_of, name_in, tags_of

_FIELD = re.compile(r"(\{\w+\})")
_TYPES = either([literal(kind) for kind in ("array", "boolean", "null", "number", "object")])
_DIALECTS = ("json", "messages", "named", "pythonic", "tags")
"""Those whose calls have a grammar."""

ANY_ID = "[a-zA-Z0-9_-]{1,40}"


def values_of(spec: FormatSpec, marks: Sequence[str], **options: Any) -> Values:
    """Rules for values as the format spells them."""
    layout = layout_of(spec)
    return Values(
        python=spec.dialect == "pythonic",
        marks=marks,
        comma=None if layout.indent else layout.comma,
        colon=layout.colon,
        quotes=None if layout.parameter else bare_quotes(spec),
        any_quote=spec.dialect != "pythonic",
        sort=layout.sorted,
        **options,
    )


def calls_of(rules: Values, spec: FormatSpec, functions: Sequence[Schema], calls: int) -> str | None:
    """The expression for at most that many calls; None where no grammar is known."""
    # Without the template's own layout it isn't known which marks the prompt writes, or end the turn.
    hidden = spec.begun or spec.dialect == "messages"
    if spec.dialect not in _DIALECTS or (hidden and spec.layout is None):
        return None
    layout = layout_of(spec)
    write = _parameters(rules, spec, layout) if layout.parameter else rules.arguments
    each = [rules.rule(function["name"], _call(layout, function, write(function))) for function in functions]
    one = rules.rule("call", either(each))
    more = f"{literal(layout.between)} {one}" if layout.between else one
    several = one if calls <= 1 else f"{one} ({more}){{0,{calls - 1}}}"
    opening, closing, behind = (
        literal(text) if text else "" for text in (layout.opening, layout.closing, layout.behind_several)
    )
    return " ".join(part for part in (opening, several, closing, behind and f"{behind}?") if part)


def _call(layout: Layout, function: Schema, arguments: str) -> str:
    # A grammar can't count calls. The reader replaces an id that another call already has.
    index = "[0-9]" if layout.first == "0" else "[1-9]"
    fields = {"{index}": index, "{id}": ANY_ID, "{arguments}": arguments}

    def written(template: str) -> str:
        template = template.replace("{name}", name_in(template, function["name"]))
        return " ".join(fields.get(piece, literal(piece)) for piece in _FIELD.split(template) if piece)

    if layout.empty and not items(parameters(function), "required"):
        return either([written(layout.call), written(layout.empty)])
    return written(layout.call)


def _parameters(rules: Values, spec: FormatSpec, layout: Layout) -> Callable[[Schema], str]:
    """What writes the rule of a tool's arguments."""

    def write(function: Schema) -> str:
        schema = parameters(function)

        def keyword(key: str, value: str) -> str:
            if re.fullmatch(r"[^\W\d][\w.\-]*", key):
                if layout.spelling == "mixed":
                    value = rules.spelled(properties(schema).get(key), schema, f"{function['name']}-{key}")
                return f"{literal(key + '=')} {value}"
            return f'"**{{" {rules.json_member(key, value)} "}}"'

        def tagged(key: str, value: str) -> str:
            found = properties(schema).get(key)
            if layout.quoted:
                return f"{parameter_tag(before, key, 'false', literal)} {value} {closing}"
            forms = [("true", f"{plain(part)} {closing}" if plain(part) else text) for part in strings(found, schema)]
            if (rest := not_strings(found, schema)) is not None:
                hint = f"{function['name']}-{key}"
                other = (
                    rules.value(rest, schema, hint) if layout.spelling == "json" else rules.spelled(rest, schema, hint)
                )
                forms.append(("false", f"{grouped(other)} {closing}"))
            return either([f"{parameter_tag(before, key, string, literal)} {form}" for string, form in forms])

        member = keyword if spec.dialect == "pythonic" else tagged
        return rules.members(schema, schema, function["name"], member, separator=layout.separator)

    if spec.dialect == "pythonic":
        return write
    before, _, after = layout.parameter.partition("{value}")
    end = after.strip()
    text = rules.until("text", end, beginnings(_tag_marks(spec, layout), end))
    text += f" {literal(after[after.index(end) + len(end) :])}" if after.rstrip() != after else ""
    closing = literal(after)
    return write


def _tag_marks(spec: FormatSpec, layout: Layout) -> Iterable[str]:
    """What a text between tags may not hold, since it would end the value or the call."""
    syntax = tags_of(spec)
    leads = [template.partition("{")[0].strip() for template in (layout.call, layout.parameter)]
    ends = () if syntax is None else (*syntax.call_end, *syntax.parameter_end[1:])
    return [mark for mark in (*ends, *spec.close, *spec.open, *leads) if mark[:1] in "<[" and mark]


def beginnings(marks: Iterable[str], end: str) -> list[str]:
    """The shortest beginnings that tell the marks from the end of a value: they need fewer rules than all of them."""
    short = {
        mark[: max(MARK_SIZE, 1 + sum(end.startswith(mark[:size]) for size in range(1, len(mark))))]
        for mark in marks
        if not end.startswith(mark)
    }
    return sorted(mark for mark in short if not any(mark != other and mark.startswith(other) for other in short))


def plain(schema: Schema) -> str:
    """A string without quotes, as it stands between tags; empty if it may be any."""
    if only := values(schema):
        return literal(only[0])
    low, high = count(schema, "minLength") or 0, count(schema, "maxLength")
    return "" if not low and high is None else f"[^<]{times(low, high)}"


def parameter_tag(template: str, key: str, string: str, write: Callable[[str], str]) -> str:
    """The tag before a parameter's value; `write` makes an expression of literal text. string: whether the value is
    text, "true" or "false".
    """
    filled = template.replace("{key}", key).replace("{string}", string)
    before, asked, behind = filled.partition("{type}")
    parts = [write(part) for part in (before, behind) if part]
    if asked:
        parts.insert(1, literal("string") if string == "true" else _TYPES)
    return " ".join(parts)

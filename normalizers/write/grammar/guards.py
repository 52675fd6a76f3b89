"""Answers in text with calls that are sure to be read: what may follow each mark that begins a region of calls.

The text stays free up to such a mark. From there on the model writes calls of declared tools, in any spelling that
the format's reader takes; after the region the text is free again. A strict tool's calls fit all of its schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from normalizers.read import ARGUMENT_KEYS, NAME_KEYS
from normalizers.spec import FormatSpec, NamedSyntax, TagSyntax
from normalizers.write.grammar.formats import ANY_ID, beginnings, parameter_tag, plain
from normalizers.write.grammar.gbnf import either, literal, none_of
from normalizers.write.grammar.schemas import Schema, items, not_strings, parameters, properties, strings
from normalizers.write.grammar.unmarked import begin_unmarked
from normalizers.write.grammar.values import Values, open_ended
from normalizers.write.layout import parameter_tag as tag_before

START = "start"
"""The rule of an answer."""

REASONING = "reasoning"
"""The rule of an answer that begins within the model's reasoning."""

_FREE = "f"
"""The rule of free text. Its name is short, since it stands in nearly every state of START. So are those of the
reasoning before text (`tf`), after it (`t`) and behind the last call (`tr`): each has many states."""

_NEVER_UNMARKED = ("", "messages")
"""Dialects of whose answers none begins with a call's object: the engine reads it, or a channel's mark comes first."""

_WORD = re.compile(r"[^\W\d][\w.\-]*")
_NAME = re.compile(r"(?!functions\.)(?=.*[^\W\d])[\w.\-]+")
_FIELD = re.compile(r"(\{\w+\}| )")
_ANY_KEY = "ANY_KEY"
"""Stands for the name of a parameter in a tag."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """Which calls are sure to be read: those behind the format's marks, those without marks at an answer's start."""

    marked: bool
    unmarked: bool


def guard(
    rules: Values,
    spec: FormatSpec,
    functions: Sequence[Schema],
    *,
    several: bool,
    any_mark: bool = False,
    unmarked: bool = True,
) -> Guarded:
    """Adds the rules START and, if the format has reasoning, REASONING, unless there is nothing to guard. several: more
    than one call may come. any_mark: a mark may be a word that prose could hold. unmarked: guard calls without marks.

    Marked calls have no guard if the format, or the name of a tool or parameter, is nothing to be sure of.
    """
    if spec.begun:
        # The prompt writes the first mark, so what follows it may be text.
        return Guarded(False, False)
    rules.exact = False
    bodies = regions(rules, spec, functions, several, any_mark)
    unmarked = unmarked and spec.unmarked != "never" and spec.dialect not in _NEVER_UNMARKED
    if not bodies and not unmarked:
        return Guarded(False, False)
    rest = _FREE
    dead: tuple[str, ...] = ()
    if bodies and not several:
        rest, dead = "rest", tuple(bodies)
    ws = rules.shared("ws")
    after = _after(spec, rest, bodies if several else {}, ws)
    marks = {mark: f"{body} {ws}? {after}" for mark, body in bodies.items()}
    thoughts = _reasoning(rules, spec, "t", _FREE)
    marks |= thoughts
    rules.free(_FREE, marks)
    if rest != _FREE:
        rules.free(rest, _reasoning(rules, spec, "tr", rest), dead)
    if unmarked:
        thoughts = _reasoning(rules, spec, "tf", START)
        results = spec.unmarked == "last"
        unmarked = begin_unmarked(
            rules, START, _FREE, functions, after=marks, reasoning=thoughts, several=several, results=results
        )
    if not unmarked:
        rules.add(START, _FREE)
    if spec.think:
        rules.add(REASONING, thoughts[spec.think[0][0]])
    return Guarded(bool(bodies), unmarked)


def regions(
    rules: Values, spec: FormatSpec, functions: Sequence[Schema], several: bool, any_mark: bool = False
) -> dict[str, str]:
    """A region's body after each mark that may begin it; none if that is nothing to be sure of."""
    return _REGIONS[spec.dialect](rules, spec, functions, several) if has_marks(spec, any_mark=any_mark) else {}


def _reasoning(rules: Values, spec: FormatSpec, name: str, then: str) -> dict[str, str]:
    """The rule of the reasoning behind each mark that opens it. then: what follows its end."""
    ends = dict.fromkeys(closing for _, closing in spec.think)
    after = {closing: rules.free(f"{name}-{number}", {closing: then}) for number, closing in enumerate(ends)}
    return {opening: after[closing] for opening, closing in spec.think}


def has_marks(spec: FormatSpec, *, any_mark: bool = False) -> bool:
    """Whether calls of that format can be told from text by what begins them."""
    marks = (*spec.open, *spec.begins)
    return spec.dialect in _REGIONS and bool(marks) and (any_mark or all(map(_is_mark, marks)))


def _is_mark(text: str) -> bool:
    """Whether it is no word that prose could hold."""
    return not text[0].isalnum() or "|" in text


def _after(spec: FormatSpec, rest: str, bodies: Mapping[str, str], ws: str) -> str:
    """What may follow a region's body: its end, or that of the answer."""
    if spec.close:
        return f"({either([literal(mark) for mark in spec.close])} {rest})?"
    # No mark ends the region, so the text after it must not look like more of it.
    marks = [f"{literal(mark)} {body} {ws}?" for mark, body in bodies.items() if mark in spec.open]
    again = f"({' | '.join(marks)})* " if marks else ""
    other = none_of(",;`<>{}[]", r"\x00-\x20\x7f")
    return f"{again}({other} {rest})?"


# -- one function for each dialect: a region's body after each mark that may begin it


def _pythonic(rules: Values, spec: FormatSpec, functions: Sequence[Schema], several: bool) -> dict[str, str]:
    ws = rules.shared("ws")

    def member(key: str, value: str) -> str:
        if _WORD.fullmatch(key):
            return f'{literal(key)} {ws}? "=" {ws}? {value}'
        return f'"**{{" {ws}? {rules.json_member(key, value)} {ws}? "}}"'

    def call(function: Schema) -> str:
        schema = parameters(function)
        if not rules.exact and open_ended(schema):
            one = rules.rule("any", f'[a-zA-Z_] [a-zA-Z0-9_]{{0,40}} {ws}? "=" {ws}? {rules.shared("value")}')
            body = f"({one} ({rules.shared('comma')} {one})*)?"
        else:
            body = rules.members(schema, schema, function["name"], member)
        return f'{literal(function["name"])} "(" {ws}? {body} {ws}? ")"'

    if not all(_WORD.fullmatch(function["name"]) for function in functions):
        return {}
    one = _calls(rules, functions, call)
    listed = f'{one} ({ws}? [,;] {ws}? {one} | {ws} {one})* ({ws}? ",")?' if several else one
    body = rules.rule("body", f'{ws}? ("[" {ws}? {listed} {ws}? "]" | {listed})')
    return dict.fromkeys(spec.open, body)


def _json(rules: Values, spec: FormatSpec, functions: Sequence[Schema], several: bool) -> dict[str, str]:
    arguments = _by_tool(rules, functions, rules.arguments)
    call = (
        _json_call(rules, functions, arguments, spec.keys)
        if spec.keys
        else _json_call_by_key(rules, functions, arguments)
    )
    return dict.fromkeys(spec.open, _json_body(rules, call, several))


def _json_body(rules: Values, one: str, several: bool) -> str:
    ws, comma = rules.shared("ws"), rules.shared("comma")
    more, listed = (f"({ws}? [,;]? {ws}? {one})*", f"({comma} {one})*") if several else ("", "")
    return rules.rule("body", f'{ws}? ({one} {more} | "[" {ws}? {one} {listed} {ws}? "]")')


def _json_call(rules: Values, functions: Sequence[Schema], arguments: Sequence[str], keys: Sequence[str]) -> str:
    ws, comma, colon = rules.shared("ws"), rules.shared("comma"), rules.shared("colon")
    name = rules.rule("name", f"{_word(rules, sorted(NAME_KEYS.union(keys[:1])))} {colon}")
    key = rules.rule("key", f"{_word(rules, sorted(ARGUMENT_KEYS.union(keys[1:])))} {colon}")
    further = rules.rule("further", f"({_word(rules, ['id', 'type'])} {colon} {rules.shared('string')} {comma})")

    def call(function: Schema, values: str) -> str:
        named, given = f"{name} {rules.constant(function['name'])}", f"{key} {values}"
        needed = properties(parameters(function)) or items(parameters(function), "required")
        first = f"{named} {comma} {given}" if needed else f"{named} ({comma} {given})?"
        return rules.rule(function["name"], f"{first} | {given} {comma} {named}")

    calls = [call(*pair) for pair in zip(functions, arguments, strict=True)]
    inner = rules.rule("inner", f"{either(calls)} {ws}?")
    nested = rules.rule("nested", f'{_word(rules, ["function"])} {colon} "{{" {ws}? {inner} "}}" {ws}?')
    return rules.rule("object", f'"{{" {ws}? {further}{{0,2}} ({inner} | {nested}) "}}"')


def _json_call_by_key(rules: Values, functions: Sequence[Schema], arguments: Sequence[str]) -> str:
    """A call whose tool's name is the key of its arguments."""
    ws, colon = rules.shared("ws"), rules.shared("colon")
    named = [f"{rules.constant(f['name'])} {colon} {given}" for f, given in zip(functions, arguments, strict=True)]
    return rules.rule("object", f'"{{" {ws}? {either(named)} {ws}? "}}"')


def _word(rules: Values, words: Sequence[str]) -> str:
    return either([rules.constant(word) for word in words])


def _named(rules: Values, spec: FormatSpec, functions: Sequence[Schema], several: bool) -> dict[str, str]:
    syntax = spec.syntax
    if not isinstance(syntax, NamedSyntax) or syntax.quotes or syntax.bare_keys:
        return {}
    if not all(_NAME.fullmatch(function["name"]) for function in functions):
        return {}
    ws = rules.shared("ws")
    objects = _by_tool(rules, functions, rules.arguments)
    tail = "".join(f" ({ws}? {literal(text)})?" for text in syntax.tail)

    def calls(heads: Sequence[str]) -> str:
        each = []
        for function, given in zip(functions, objects, strict=True):
            written = either([_head(head, function["name"], ws) for head in heads])
            each.append(rules.rule(function["name"], f"{written} {ws}? {given}{tail}"))
        return rules.rule("call", either(each))

    marked = [head for head in syntax.head if not head.startswith("{")]
    more = f" ({ws}? {calls(marked)})*" if several and marked else ""
    first = f"{ws}? {calls(syntax.head)}{more}"
    if not spec.close:
        first = f"{first} | {_json_body(rules, _json_call(rules, functions, objects, spec.keys), several)}"
    bodies = dict.fromkeys(spec.open, rules.rule("body", first))
    for mark in spec.begins:
        begun = [head.removeprefix(mark) for head in marked if head.startswith(mark)]
        bodies[mark] = rules.rule("body", f"{calls(begun)}{more}")
    return bodies


def _head(template: str, name: str, ws: str) -> str:
    """What a head stands for, for one tool."""
    # Without a field for the name the id holds it.
    call_id = ANY_ID if "{name}" in template else f"{literal(f'functions.{name}:')} [0-9]{{1,4}}"
    fields = {"{name}": f"{literal(name)} {ws}?", "{id}": f"{call_id} {ws}?", "{index}": "[0-9]{1,4}", " ": ws}
    return " ".join(fields.get(piece, literal(piece)) for piece in _FIELD.split(template) if piece)


def _tags(rules: Values, spec: FormatSpec, functions: Sequence[Schema], several: bool) -> dict[str, str]:
    syntax = spec.syntax
    if not isinstance(syntax, TagSyntax):
        return {}
    keys = [key for function in functions for key in properties(parameters(function))]
    if not all(_NAME.fullmatch(word) for word in (*(function["name"] for function in functions), *keys)):
        return {}
    ws = rules.shared("ws")
    leads = [template.partition("{")[0] for template in (*syntax.call, *syntax.parameter)]
    marks = (*syntax.call_end, *spec.close, *spec.open, *(lead for lead in leads if lead), *syntax.parameter_end[1:])
    text = rules.until("text", syntax.parameter_end[0], beginnings(marks, syntax.parameter_end[0]))
    end, tag = literal(syntax.parameter_end[0]), tag_before(syntax)
    asks = "{string}" in syntax.parameter[0] or "{type}" in syntax.parameter[0]

    def layout(template: str) -> str:
        return _layout(template, ws)

    def arguments(function: Schema) -> str:
        schema = parameters(function)
        if not rules.exact and open_ended(schema):
            written = parameter_tag(tag, _ANY_KEY, "true", layout)
            before, _, behind = written.partition(_ANY_KEY)
            return f'({before}" [a-zA-Z_] [a-zA-Z0-9_]{{0,40}} "{behind} {text} {ws}?)*'

        def member(key: str, value: str) -> str:
            found = properties(schema).get(key)
            forms = []
            for part in strings(found, schema):
                spelled = plain(part)
                # One line break on either side is layout; more white space would be part of the value.
                forms.append(("true", f'({spelled} | "\\x0a" {spelled} "\\x0a") {end}' if spelled else text))
            rest = not_strings(found, schema)
            if rest is not None and (asks or not any(form == text for _, form in forms)):
                other = rules.value(rest, schema, f"{function['name']}-{key}") if forms else value
                forms.append(("false", f"{ws}? {other} {ws}? {end}"))
            return either([f"{parameter_tag(tag, key, string, layout)} {form}" for string, form in forms])

        return rules.members(schema, schema, function["name"], member, separator="")

    given = _by_tool(rules, functions, arguments)
    ended = rules.rule("ended", either([literal(mark) for mark in syntax.call_end])) if syntax.call_end else ""
    closing = f" {ws}? {ended}" if ended else ""

    def calls(begun: str = "") -> str:
        each = []
        for function, body in zip(functions, given, strict=True):
            heads = [template.removeprefix(begun) for template in syntax.call if template.startswith(begun)]
            written = either([_head(head, function["name"], ws) for head in heads])
            each.append(rules.rule(function["name"], f"{written} {ws}? {body}{closing}"))
        return rules.rule("call", either(each))

    any_call = calls()
    more = f" ({ws}? {any_call})*" if several and syntax.call_end else ""
    bodies = dict.fromkeys(spec.open, rules.rule("body", f"{ws}? {any_call}{more}"))
    for mark in spec.begins:
        bodies[mark] = rules.rule("body", f"{calls(mark)}{more}")
    return bodies


def _layout(template: str, ws: str) -> str:
    """A tag whose line breaks may be any white space."""
    return f" {ws}? ".join(literal(piece) for piece in re.split(r"\s*\n\s*", template) if piece)


_REGIONS: dict[str, Callable[[Values, FormatSpec, Sequence[Schema], bool], dict[str, str]]] = {
    "pythonic": _pythonic,
    "json": _json,
    "named": _named,
    "tags": _tags,
}


def _calls(rules: Values, functions: Sequence[Schema], call: Callable[[Schema], str]) -> str:
    """A rule for one call of any of the tools."""
    return rules.rule("call", either(_by_tool(rules, functions, call)))


def _by_tool(rules: Values, functions: Sequence[Schema], write: Callable[[Schema], str]) -> list[str]:
    """A rule for each tool; the values of strict ones are exact."""
    each = []
    for function in functions:
        rules.exact = function.get("strict") is True
        each.append(rules.rule(function["name"], write(function)))
        rules.exact = False
    return each

"""From schemas to rules: expressions for the values of a schema, in JSON or in Python's spelling of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from normalizers.write.grammar.gbnf import INT_DIGITS, either, grouped, integers, literal, none_of, times
from normalizers.write.grammar.rules import MAX_TEXT, NO_CONTROL, Rules
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

FREE_ORDER = 4
"""Keys of an object that may come in any order, each once. The rules grow as 2 to that power."""

_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_BARE_KEY = re.compile(r"[a-zA-Z_$][\w.$-]*", re.ASCII)
_NOTES = ("title", "description", "default", "examples", "deprecated")


class Values(Rules):
    """Rules for values by their schemas.

    With `exact` a value fits all of its schema; otherwise its types and enums, and its objects' keys. free_order: as
    FREE_ORDER. sort: keys that come in one order come in that of the alphabet. layout: see `Rules`.
    """

    def __init__(
        self,
        *,
        python: bool,
        marks: Iterable[str] = (),
        limit: int = MAX_TEXT,
        free_order: int = FREE_ORDER,
        sort: bool = False,
        **layout: Any,
    ) -> None:
        super().__init__(python=python, marks=marks, limit=limit, **layout)
        self._sort = sort
        self._rare = frozenset(map(_rarest, self.marks))
        self._free_order = free_order
        self._refs: dict[tuple[int, str, bool, bool], str] = {}
        self._constants: set[str] = set()
        self._size = 0
        self._depth = 0

    def constant(self, value: object) -> str:
        spelled = {self._spelled(value, python=self.python)}
        if not self.exact and (value is None or isinstance(value, str | bool)):
            spelled = {self._spelled(value, python=True), self._spelled(value, python=False)}
            if isinstance(value, str) and not any(char in "'\\" or char < " " for char in value):
                spelled.add(f"'{value}'")
        found = either([literal(text) for text in sorted(spelled)])
        if found not in self._constants:
            self._constants.add(found)
            self._spend(len(found))
        return found

    def _spelled(self, value: object, *, python: bool) -> str:
        comma, colon = self.separators if self.exact else (", ", ": ")
        match value:
            case None | bool() if python:
                return repr(value)
            case str() if self.exact and self.quotes and self.quotes[1] not in value:
                return self.quotes[0] + value + self.quotes[1]
            case Mapping():
                members = (f"{self._key(str(k))}{colon}{self._spelled(v, python=python)}" for k, v in value.items())
                return "{" + comma.join(members) + "}"
            case list() | tuple():
                return "[" + comma.join(self._spelled(one, python=python) for one in value) + "]"
            case _:
                return json.dumps(value, ensure_ascii=False)

    def _key(self, key: str) -> str:
        """A key as exact objects have it."""
        return key if self.quotes and _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)

    def spelled(self, schema: object, root: Schema, hint: str) -> str:
        """An expression for the values of a schema, spelled as JSON or as Python."""
        before, found = self.python, []
        for self.python in (False, True):
            found.append(grouped(self.value(schema, root, hint)))
        self.python = before
        return either(found)

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
        key = (id(root), reference, self.exact, self.python)
        if key not in self._refs:
            name = self._refs[key] = self.reserved(reference)  # the schema may refer to itself
            self.add(name, self.value(resolved(reference, root), root, hint))
        return self._refs[key]

    def _branches(self, base: Schema, branches: Sequence[Any], root: Schema, hint: str) -> str:
        """A choice of the branches; the keywords beside them apply to each."""
        each = branches if not base else [merged(base, target(branch, root)) for branch in branches]
        return either([self.value(branch, root, hint) for branch in each])

    def _string(self, schema: Schema) -> str:
        low, high = count(schema, "minLength"), count(schema, "maxLength")
        if not self.exact or (not low and high is None):
            return self.shared("string")
        if self.quotes:
            opening, closing = self.quotes
            return f"{literal(opening)} {none_of((closing[0], *self._rare))}{times(low or 0, high)} {literal(closing)}"
        # A repetition can't count and look out for marks: it leaves out one character of each.
        plain = none_of(("\\", '"', *self._rare), NO_CONTROL)
        char = f"({plain} | {self.shared('escape')})"
        return rf'"\"" {char}{times(low or 0, high)} "\""'

    def _number(self, schema: Schema, *, whole: bool) -> str:
        low, high = bound(schema, "minimum", 1), bound(schema, "maximum", -1)
        if not self.exact or (low is None and high is None):
            return self.shared("integer" if whole else "number")
        least = None if low is None else math.ceil(low[0])
        maximum = None if high is None else math.floor(high[0])
        # The first and the last whole number; an exclusive bound is neither.
        first = least if low is None or least is None else least + (low[1] and least == low[0])
        last = maximum if high is None or maximum is None else maximum - (high[1] and maximum == high[0])
        found = integers(first, last)
        if not whole:
            # The fraction leads away from 0, by less than 1.
            positive = integers(max(first or 0, 0), None if maximum is None else maximum - 1)
            negative = integers(None if least is None else least + 1, -1 if last is None else min(last, -1))
            found += [f'({text}) "." [0-9]{{1,{INT_DIGITS}}}' for text in (*positive, *negative)]
        if found:
            return either(found)
        # No whole number fits, so there are two bounds: any number between them does.
        between = [limit[0] for limit in (low, high) if limit is not None]
        return literal(json.dumps(sum(between) / len(between)))

    def _array(self, schema: Schema, root: Schema, hint: str) -> str:
        if not self.exact:
            parts = [*items(schema, "prefixItems"), schema.get("items", ANY)]
            item = self.rule(f"{hint}-item", either([self.value(part, root, hint) for part in parts]))
            comma, ws = self.shared("comma"), self.shared("ws")
            return f'"[" {ws}? ({item} ({comma} {item})* {comma}?)? {ws}? "]"'
        low, high = count(schema, "minItems") or 0, count(schema, "maxItems")
        first = [self.value(item, root, hint) for item in items(schema, "prefixItems")[:high]]
        rest = schema.get("items", ANY)
        if high == 0 or (rest is False and not first):
            return '"[]"'
        item = self.rule(f"{hint}-item", self.value(rest, root, hint)) if rest is not False else ""
        comma = self.between
        if first:
            head = f" {comma} ".join(f"({one})" for one in first)
            more = f" ({comma} {item}){times(max(low - len(first), 0), _less(high, len(first)))}" if item else ""
            return self.bracketed("[", f"{head}{more}", "]")
        more = f"{item} ({comma} {item}){times(max(low - 1, 0), _less(high, 1))}"
        return self.bracketed("[", more if low else f"({more})?", "]")

    def _object(self, schema: Schema, root: Schema, hint: str) -> str:
        if not properties(schema):
            further = schema.get("additionalProperties")
            if further is False and self.exact:
                return '"{}"'
            if not isinstance(further, Mapping) or not self.exact:
                return self.shared("object")
            key = self.shared("bare-key" if self.quotes else "string")
            colon = literal(self.separators[1])
            member = self.rule(f"{hint}-any", f"{key} {colon} {self.value(further, root, hint)}")
            return self.bracketed("{", f"({member} ({self.between} {member})*)?", "}")
        return self._braced(self.members(schema, root, hint, self.json_member))

    # -- members -----------------------------------------------------------------------------------

    def json_member(self, key: str, value: str) -> str:
        if self.exact:
            return f"{literal(self._key(key) + self.separators[1])} {value}"
        return f"{self.constant(key)} {self.shared('colon')} {value}"

    def members(
        self,
        schema: Schema,
        root: Schema,
        hint: str,
        write: Callable[[str, str], str],
        separator: str | None = None,
        *,
        all_required: bool = False,
    ) -> str:
        """The members of an object, each at most once; with `exact` or `all_required` all of the required ones.

        Many exact members come in the schema's order, the required ones first, or in that of the alphabet. Many others
        may repeat. separator: None for that of JSON.
        """
        known = properties(schema)
        wanted = dict.fromkeys(key for key in items(schema, "required") if isinstance(key, str))
        required = [*(key for key in known if key in wanted), *(key for key in wanted if key not in known)]
        keys = [*required, *(key for key in known if key not in wanted)]
        if self._sort and self.exact and len(keys) > self._free_order:
            keys.sort(key=str.lower)
        written = [self.rule(key, write(key, grouped(self.value(known.get(key, ANY), root, key)))) for key in keys]
        if not written:
            return '""'
        if self.exact:
            between, last = self.between if separator is None else literal(separator) if separator else "", ""
        else:
            between, last = (f"{self.shared('ws')}?", "") if separator == "" else (self.shared("comma"),) * 2
        if len(written) <= self._free_order:
            return self._in_any_order(written, len(required) if self.exact or all_required else 0, between, last)
        if self.exact:
            return self._in_order([(one, key in wanted) for one, key in zip(written, keys, strict=True)], between, hint)
        if all_required and required:
            others = written[len(required) :]
            return self._with_all(written[: len(required)], self.rule("any", either(others)) if others else "")
        any_member = self.rule("any", either(written))
        more = f"({between} {any_member})*"
        return f"({any_member} {more}{f' {last}?' if last else ''})?"

    def _in_any_order(self, members: Sequence[str], required: int, between: str, last: str) -> str:
        """Each member at most once, the first `required` ones surely. last: what may follow the last one."""
        needed, every = (1 << required) - 1, (1 << len(members)) - 1

        def after(taken: int) -> str:
            """An expression for the rest once the members with these bits are written."""
            if taken == every:
                return f"{last}?" if last else ""
            left = [at for at in range(len(members)) if not taken >> at & 1]
            choices = [f"{members[at]} {rests[taken | 1 << at]}".rstrip() for at in left]
            more = f"{between} {either(choices)}".strip() if taken else either(choices)
            if needed & ~taken:
                return more
            return f"({more} | {last})?" if last and taken else f"({more})?"

        rests: dict[int, str] = {every: after(every)}
        for taken in range(every - 1, 0, -1):
            rests[taken] = self.rule("o", after(taken))
        return after(0)

    def _in_order(self, members: Sequence[tuple[str, bool]], between: str, hint: str) -> str:
        """Each member at most once, those surely that are required."""
        rest = ""
        begin: list[str] = []
        for member, required in reversed(members):
            alone = f"{member} {rest}".strip()
            begin = [alone] if required else [alone, *begin]
            more = f"{between} {member}".strip()
            rest = self.rule(f"{hint}-rest", f"{more if required else f'({more})?'} {rest}".strip())
        return either(begin) if any(required for _, required in members) else f"({' | '.join(begin)})?"

    def arguments(self, function: Schema, *, all_required: bool = False) -> str:
        """A tool's arguments as one JSON object. all_required: see `members`."""
        schema = parameters(function)
        if not self.exact and open_ended(schema):
            needed = dict.fromkeys(key for key in items(schema, "required") if isinstance(key, str))
            if not (all_required and needed):
                return self.shared("object")
            written = [self.rule(key, self.json_member(key, self.shared("value"))) for key in needed]
            return self._braced(self._with_all(written, self.shared("member")))
        return self._braced(self.members(schema, schema, function["name"], self.json_member, all_required=all_required))

    def _with_all(self, needed: Sequence[str], other: str) -> str:
        """The needed members, in any order if there are few, with any number of others between them."""
        comma = self.shared("comma")
        every = (1 << len(needed)) - 1
        in_any_order = len(needed) <= self._free_order
        rests = {every: f"({comma} {other})* {comma}?" if other else f"{comma}?"}

        def choice(taken: int) -> str:
            """The next needed member, and what follows it, once those with these bits are written."""
            left = [at for at in range(len(needed)) if not taken >> at & 1]
            return either([f"{needed[at]} {rest(taken | 1 << at)}" for at in (left if in_any_order else left[:1])])

        def rest(taken: int) -> str:
            if taken not in rests:
                before = f"({comma} {other})* " if other else ""
                rests[taken] = self.rule("o", f"{before}{comma} {choice(taken)}")
            return rests[taken]

        return f"({other} {comma})* {choice(0)}" if other else choice(0)

    def _braced(self, members: str) -> str:
        if self.exact:
            return self.bracketed("{", members, "}")
        return f'"{{" {self.shared("ws")}? {members} {self.shared("ws")}? "}}"'


def open_ended(schema: Schema) -> bool:
    """Whether the schema names no property, and any may come: it says so, or leaves `properties` out."""
    if properties(schema):
        return False
    further = schema.get("additionalProperties", "properties" not in schema)
    return bool(further or schema.get("patternProperties"))


def _rarest(mark: str) -> str:
    """The character of a mark that values need least."""
    return next((char for char in mark if char not in "<>[]/" and not char.isascii()), "") or next(
        (char for char in "|<[" if char in mark), mark[0]
    )


def _type(schema: Schema) -> str | None:
    """The schema's type, or the one that its keywords imply."""
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else None


def _less(limit: int | None, taken: int) -> int | None:
    return None if limit is None else max(limit - taken, 0)

"""JSON queries, translated to SQL with the same meaning on SQLite and PostgreSQL.

    {"where": {"age": {"$gte": 18}, "$or": [{"name": "Ann"}, {"tags": {"$contains": "x"}}]},
     "order": ["age desc"], "select": ["name"], "limit": 20, "offset": 0, "trashed": "exclude"}

A condition is true or false, never unknown: comparing values of different types, or a missing value, is false.
Texts compare by code point. Field names and values are passed to the database as parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Float,
    and_,
    case,
    cast,
    exists,
    false,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.types import JSON

from gateway.features.agents.tools.base import ToolError
from gateway.features.agents.tools.tables import records

Trashed = Literal["exclude", "include", "only"]

SYSTEM = ("id", "created_at", "updated_at", "trashed_at")
"""Fields of every record. No model defines them."""

LONGEST_LIST, LONGEST_PATTERN, MAX_WILDCARDS, DEEPEST, MAX_CONDITIONS = 200, 256, 4, 8, 100
MAX_LISTED = 200
"""Values of all lists in a query's conditions: each becomes a condition of SQL, or several."""
DEFAULT_LIMIT, MAX_ROWS, FARTHEST = 50, 500, 1_000_000

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){0,7}")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True, slots=True)
class Query:
    where: ColumnElement[bool]
    order: list[ColumnElement[Any]]
    select: list[str] | None
    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Aggregates:
    where: ColumnElement[bool]
    group_by: list[str]
    functions: dict[str, tuple[str, str]]
    """Alias → function and field; the field of `$count` may be `*`."""
    order: list[tuple[str, bool]]
    """Aliases and grouped fields, each with whether the order is descending."""
    limit: int


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record in SQL. An expression is NULL if the value has another type."""

    text: ColumnElement[Any]
    number: ColumnElement[Any]
    truth: ColumnElement[Any]
    """1 or 0."""
    json: ColumnElement[Any]
    """The value itself; NULL if missing."""
    missing: ColumnElement[bool]
    """Whether the field is absent or null."""
    absent: ColumnElement[bool]
    contains: Callable[[Any], ColumnElement[bool]]
    """Whether the value is an array that contains this text, number or boolean."""
    length: ColumnElement[Any]
    """The length of an array."""


class Builder:
    """Builds queries for one dialect, `sqlite` or `postgresql`. Methods raise ToolError, code `invalid_query`."""

    def __init__(self, dialect: str) -> None:
        self._postgresql = dialect == "postgresql"
        self._conditions = self._listed = 0

    def query(self, given: Mapping[str, Any]) -> Query:
        _known(given, ("where", "order", "select", "limit", "offset", "trashed"), "query")
        chosen = given.get("select")
        if chosen is not None:
            chosen = [_name(name, "query.select") for name in _list(chosen, "query.select")]
        return Query(
            where=and_(self._where(given.get("where", {}), "query.where", 0), _trashed(given.get("trashed"))),
            order=[
                expression
                for name, descends in _order(given.get("order", []))
                for expression in self._ordered(self.field(_name(name, "query.order")), descends)
            ],
            select=chosen,
            limit=_whole(given.get("limit", DEFAULT_LIMIT), "query.limit", 1, MAX_ROWS),
            offset=_whole(given.get("offset", 0), "query.offset", 0, FARTHEST),
        )

    def aggregates(self, given: Mapping[str, Any]) -> Aggregates:
        _known(given, ("where", "aggregate", "group_by", "order", "limit", "trashed"), "query")
        group_by = [_name(name, "query.group_by") for name in _list(given.get("group_by", []), "query.group_by")]
        if len(group_by) > 5:
            raise _bad("query.group_by", "at most 5 fields")
        wanted = given.get("aggregate", {"count": {"$count": "*"}})
        if not isinstance(wanted, Mapping) or not 0 < len(wanted) <= 20:
            raise _bad("query.aggregate", 'it must be an object: {"total": {"$sum": "price"}}')
        functions: dict[str, tuple[str, str]] = {}
        for alias, call in wanted.items():
            where = f"query.aggregate.{alias}"
            if not _FIELD.fullmatch(alias) or "." in alias or alias in group_by:
                raise _bad(where, "not a valid name for a result")
            if not isinstance(call, Mapping) or len(call) != 1:
                raise _bad(where, 'it must be one function of a field: {"$sum": "price"}')
            [(function, name)] = call.items()
            if function not in FUNCTIONS:
                raise _bad(where, f"the functions are {', '.join(FUNCTIONS)}")
            functions[alias] = (function, "*" if (function, name) == ("$count", "*") else _name(name, where))
        order = _order(given.get("order", []))
        for name, _ in order:
            if name not in (*group_by, *functions):
                raise _bad("query.order", "results can be ordered by: " + ", ".join([*group_by, *functions]))
        where_condition = and_(self._where(given.get("where", {}), "query.where", 0), _trashed(given.get("trashed")))
        limit = _whole(given.get("limit", DEFAULT_LIMIT), "query.limit", 1, MAX_ROWS)
        return Aggregates(where_condition, group_by, functions, order, limit)

    def field(self, name: str) -> Field:
        if name in SYSTEM:
            column = records.c[name]
            nothing = cast(null(), Float)
            absent = column.is_(None)
            return Field(self._binary(column), nothing, nothing, column, absent, absent, lambda _: false(), nothing)
        return self._in_postgresql(name.split(".")) if self._postgresql else self._in_sqlite(name.split("."))

    def _in_postgresql(self, path: list[str]) -> Field:
        value = records.c.data[tuple(path)]
        kind = func.jsonb_typeof(value)
        text = value.as_string()

        def contains(wanted: Any) -> ColumnElement[bool]:
            return _sure(
                and_(kind == "array", value.op("@>", return_type=Boolean())(cast([wanted], records.c.data.type)))
            )

        return Field(
            text=self._binary(case((kind == "string", text))),
            number=case((kind == "number", cast(text, Float))),
            truth=case((kind == "boolean", case((text == "true", 1), else_=0))),
            json=value,
            missing=func.coalesce(kind, "null") == "null",
            absent=kind.is_(None),
            contains=contains,
            length=case((kind == "array", func.jsonb_array_length(value))),
        )

    def _in_sqlite(self, names: list[str]) -> Field:
        data, path = records.c.data, "$" + "".join(f'."{name}"' for name in names)
        kind = func.json_type(data, path)
        value = func.json_extract(data, path)

        def contains(wanted: Any) -> ColumnElement[bool]:
            # For anything but an array, json_each gives one row: the value itself.
            items = func.json_each(data, path).table_valued("value", "type")
            if isinstance(wanted, bool):
                same = items.c.type == ("true" if wanted else "false")
            elif isinstance(wanted, str):
                same = and_(items.c.type == "text", items.c.value == wanted)
            else:
                same = and_(items.c.type.in_(("integer", "real")), items.c.value == wanted)
            return _sure(and_(kind == "array", exists(select(literal(1)).select_from(items).where(same))))

        return Field(
            text=case((kind == "text", value)),
            number=case((kind.in_(("integer", "real")), value)),
            truth=case((kind == "true", 1), (kind == "false", 0)),
            json=data.op("->", return_type=JSON())(path),
            missing=func.coalesce(kind, "null") == "null",
            absent=kind.is_(None),
            contains=contains,
            length=case((kind == "array", func.json_array_length(data, path))),
        )

    def _binary(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Compares by code point: PostgreSQL would use the rules of a language."""
        return text.collate("C") if self._postgresql else text

    def _where(self, given: object, place: str, depth: int) -> ColumnElement[bool]:
        if depth > DEEPEST:
            raise _bad(place, f"conditions may be nested {DEEPEST} levels deep")
        if not isinstance(given, Mapping):
            raise _bad(place, 'it must be an object: {"field": value} or {"field": {"$gt": value}}')
        if not given:
            self._condition(place)
        parts: list[ColumnElement[bool]] = []
        for key, value in given.items():
            inner = f"{place}.{key}"
            if key in ("$and", "$or"):
                found = [self._where(part, f"{inner}[{at}]", depth + 1) for at, part in enumerate(_list(value, inner))]
                if not found:
                    raise _bad(inner, "it is empty")
                parts.append(and_(*found) if key == "$and" else or_(*found))
            elif key == "$not":
                parts.append(not_(self._where(value, inner, depth + 1)))
            elif key.startswith("$"):
                raise _bad(inner, "join conditions with $and, $or and $not")
            else:
                parts.append(self._compared(self.field(_name(key, inner)), value, inner))
        return and_(true(), *parts)

    def _compared(self, field: Field, given: object, place: str) -> ColumnElement[bool]:
        operators = given if isinstance(given, Mapping) else {"$eq": given}
        if not operators:
            raise _bad(place, "it needs an operator")
        parts = []
        for operator, value in operators.items():
            self._condition(place)
            if operator not in OPERATORS:
                raise _bad(f"{place}.{operator}", f"the operators are {', '.join(OPERATORS)}")
            parts.append(_sure(self._operator(operator, field, value, f"{place}.{operator}")))
        return and_(*parts)

    def _condition(self, place: str) -> None:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise _bad(place, f"a query may have at most {MAX_CONDITIONS} conditions")

    def _some(self, value: object, place: str) -> list[Any]:
        found = _list(value, place)
        self._listed += len(found)
        if self._listed > MAX_LISTED:
            raise _bad(place, f"all lists of a query together may have at most {MAX_LISTED} values")
        return found

    def _operator(self, operator: str, field: Field, value: Any, place: str) -> ColumnElement[bool]:
        if operator in ARRAY_OPERATORS:
            some = self._some(value, place) if operator in ("$any", "$all") else value
            return _array_condition(operator, field, some, place)
        match operator:
            case "$eq":
                return _equal(field, value, place)
            case "$ne":
                return not_(_equal(field, value, place))
            case "$gt" | "$gte" | "$lt" | "$lte":
                return _ordered(operator, field, value, place)
            case "$between":
                if not isinstance(value, list) or len(value) != 2:
                    raise _bad(place, "it must be a list of two values")
                return and_(*(_ordered(op, field, end, place) for op, end in zip(("$gte", "$lte"), value, strict=True)))
            case "$in" | "$nin":
                same = or_(false(), *(_equal(field, each, place) for each in self._some(value, place)))
                return same if operator == "$in" else not_(same)
            case "$like" | "$nlike" | "$ilike" | "$nilike":
                found = _sure(self._like(field.text, value, operator in ("$ilike", "$nilike"), place))
                return not_(found) if operator[1] == "n" else found
            case "$exists":
                return not_(field.absent) if _truth(value, place) else field.absent
            case _:
                return field.missing if _truth(value, place) else not_(field.missing)

    def _like(self, text: ColumnElement[Any], pattern: Any, folded: bool, place: str) -> ColumnElement[bool]:
        """`%` matches any text, `_` any character; a backslash escapes them."""
        if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN or not _storable(pattern):
            raise _bad(place, f"it must be text of at most {LONGEST_PATTERN} characters")
        pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
        if pieces.count("%") > MAX_WILDCARDS:
            raise _bad(place, f"it may have at most {MAX_WILDCARDS} %")
        if pieces[-1:] == ["\\"]:
            raise _bad(place, "the backslash at the end escapes nothing")
        if folded:
            # Folds ASCII letters only, on either database.
            return func.lower(text).like(pattern.translate(_ASCII_LOWER), escape="\\")
        if self._postgresql:
            return text.like(pattern, escape="\\")
        return text.op("GLOB", return_type=Boolean())("".join(map(_glob, pieces)))

    def _ordered(self, field: Field, descends: bool) -> list[ColumnElement[Any]]:
        """Numbers, texts, booleans, then the rest, in either direction; missing values last."""
        rank = case(
            (field.number.is_not(None), 0), (field.text.is_not(None), 1), (field.truth.is_not(None), 2), else_=3
        )
        keys = (field.number, field.text, field.truth)
        # NULL sorts first on SQLite and last on PostgreSQL, but no rank contains one.
        return [rank.asc(), *(key.desc() if descends else key.asc() for key in keys)]


ARRAY_OPERATORS = ("$contains", "$any", "$all", "$size")

OPERATORS = (
    *("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$between", "$in", "$nin", "$like", "$nlike", "$ilike", "$nilike"),
    *("$exists", "$null", *ARRAY_OPERATORS),
)

FUNCTIONS = ("$count", "$sum", "$avg", "$min", "$max", "$distinct")


def _array_condition(operator: str, field: Field, value: Any, place: str) -> ColumnElement[bool]:
    match operator:
        case "$contains":
            return field.contains(_scalar(value, place))
        case "$any":
            return or_(false(), *(field.contains(_scalar(each, place)) for each in value))
        case "$all":
            return and_(true(), *(field.contains(_scalar(each, place)) for each in value))
        case _:
            return _sure(field.length == _whole(value, place, 0, FARTHEST))


def _equal(field: Field, value: Any, place: str) -> ColumnElement[bool]:
    value = value if value is None else _scalar(value, place)
    if value is None:
        return field.missing
    if isinstance(value, bool):
        return _sure(field.truth == int(value))
    return _sure((field.text if isinstance(value, str) else field.number) == value)


def _ordered(operator: str, field: Field, value: Any, place: str) -> ColumnElement[bool]:
    value = _scalar(value, place)
    if isinstance(value, bool):
        raise _bad(place, "it must be a number or a text")
    side = field.text if isinstance(value, str) else field.number
    found = {"$gt": side > value, "$gte": side >= value, "$lt": side < value, "$lte": side <= value}[operator]
    return _sure(found)


def _glob(piece: str) -> str:
    """A piece of a LIKE pattern for SQLite's GLOB, which is case-sensitive."""
    if piece in ("%", "_"):
        return "*" if piece == "%" else "?"
    return f"[{piece[-1]}]" if piece[-1] in "*?[" else piece[-1]


def _sure(condition: ColumnElement[Any]) -> ColumnElement[bool]:
    return func.coalesce(condition, false())


def _trashed(given: object) -> ColumnElement[bool]:
    if given is None or given == "exclude":
        return records.c.trashed_at.is_(None)
    if given not in get_args(Trashed):
        raise _bad("query.trashed", f"it must be one of {', '.join(get_args(Trashed))}")
    return true() if given == "include" else records.c.trashed_at.is_not(None)


def _order(given: object) -> list[tuple[str, bool]]:
    found = []
    for item in [given] if isinstance(given, str) else _list(given, "query.order"):
        words = item.split() if isinstance(item, str) else []
        if len(words) not in (1, 2) or words[1:] not in ([], ["asc"], ["desc"]):
            raise _bad("query.order", 'each item must be "field", "field asc" or "field desc"')
        found.append((words[0], words[1:] == ["desc"]))
    if len(found) > 5:
        raise _bad("query.order", "at most 5 fields")
    return found


def _known(given: object, keys: tuple[str, ...], place: str) -> None:
    if not isinstance(given, Mapping):
        raise _bad(place, "it must be an object")
    for key in given:
        if key not in keys:
            raise _bad(f"{place}.{key}", f"the keys are {', '.join(keys)}")


def _name(name: object, place: str) -> str:
    if not isinstance(name, str) or not _FIELD.fullmatch(name):
        raise _bad(place, "a field's name has letters, digits, _ and -; dots separate nested names")
    return name


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > LONGEST_LIST:
        raise _bad(place, f"it must be a list of at most {LONGEST_LIST} items")
    return value


def _whole(value: object, place: str, least: int, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= maximum:
        raise _bad(place, f"it must be a whole number from {least} to {maximum}")
    return value


def _truth(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise _bad(place, "it must be true or false")
    return value


def _scalar(value: Any, place: str) -> str | int | float | bool:
    if isinstance(value, str) and len(value) <= 10_000 and _storable(value):
        return value
    if isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < 2**63):
        return value
    raise _bad(place, "it must be a text, a number, true or false")


def _storable(text: str) -> bool:
    """Whether the text has neither NUL nor lone surrogates, which the databases and UTF-8 can't store."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _bad(place: str, message: str) -> ToolError:
    return ToolError("invalid_query", f"{place[:200]}: {message}")

"""What an argument may be. A plain value is wanted exactly; a mapping with one key that begins with $ is a rule.

    title: {$fold: budget review}      case, spaces and , . / - _ * ^ don't count
    to: {$set: [ana@x.io, bo@x.io]}    in any order
    start: {$datetime: "2026-03-02T14:00"}
    note: {$optional: {$any: true}}    may be left out

Each rule knows an example and values that it must refuse: the self-check asks for both. With `fold` all strings are
compared as BFCL does; without, exactly.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, ClassVar, Protocol

from gateway.features.evaluation.model_test.answers import read_json

_FOLDED = re.compile(r"[ ,./\-_*^]")


class BadRule(ValueError):
    """A case file uses an unknown rule."""


def folded(text: str) -> str:
    """BFCL's comparison of strings."""
    return _FOLDED.sub("", text).lower().replace("'", '"')


class Matcher(Protocol):
    optional: ClassVar[bool]
    """Whether the argument may be left out."""

    def accepts(self, value: Any, fold: bool) -> bool: ...
    def example(self) -> Any: ...
    def wrong(self) -> Sequence[Any]:
        """Values of the right type, where there are any, that must be refused."""
        ...


def same(wanted: Any, given: Any, fold: bool) -> bool:
    """Equality as JSON has it: 1 and true differ, 5 and 5.0 do only where the wanted one is an integer."""
    if isinstance(wanted, bool) or isinstance(given, bool) or wanted is None or given is None:
        return wanted is given
    if isinstance(wanted, str) and isinstance(given, str):
        return folded(wanted) == folded(given) if fold else wanted == given
    if isinstance(wanted, int):
        return isinstance(given, int) and wanted == given
    if isinstance(wanted, float):
        return isinstance(given, int | float) and wanted == given
    return type(wanted) is type(given) and bool(wanted == given)


@dataclass(frozen=True)
class Eq:
    value: Any
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return same(self.value, value, fold)

    def example(self) -> Any:
        return self.value

    def wrong(self) -> Sequence[Any]:
        match self.value:
            case bool():
                return [not self.value]
            case int() | float():
                return [self.value + 1, -self.value - 1]
            case str():
                return [self.value + " (other)", ""] if self.value else ["other"]
        return ["other"]


@dataclass(frozen=True)
class Fold:
    """Equal after folding, in the strict score too: for texts that a person would consider the same."""

    value: str
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return isinstance(value, str) and folded(value) == folded(self.value)

    def example(self) -> Any:
        return self.value

    def wrong(self) -> Sequence[Any]:
        return [self.value + " other", ""]


@dataclass(frozen=True)
class AnyOf:
    options: tuple[Matcher, ...]
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return any(option.accepts(value, fold) for option in self.options)

    def example(self) -> Any:
        return self.options[0].example()

    def wrong(self) -> Sequence[Any]:
        found = [value for option in self.options for value in option.wrong()]
        return [value for value in found if not self.accepts(value, True)]


@dataclass(frozen=True)
class Regex:
    """Found anywhere in a string. `like` is an example."""

    pattern: re.Pattern[str]
    like: str
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return isinstance(value, str) and self.pattern.search(value) is not None

    def example(self) -> Any:
        return self.like

    def wrong(self) -> Sequence[Any]:
        return [text for text in ("", "zzzz") if not self.pattern.search(text)]


@dataclass(frozen=True)
class Contains:
    """Each of these is somewhere in a string; case doesn't count."""

    parts: tuple[str, ...]
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return isinstance(value, str) and all(part.lower() in value.lower() for part in self.parts)

    def example(self) -> Any:
        return " ".join(self.parts)

    def wrong(self) -> Sequence[Any]:
        return ["", " ".join(self.parts[1:]) + " zzzz"]


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def example(self) -> Any:
        return self.low

    def wrong(self) -> Sequence[Any]:
        return [self.low - 1, self.high + 1]


@dataclass(frozen=True)
class Approx:
    value: float
    within: float
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value - self.value) <= self.within

    def example(self) -> Any:
        return self.value

    def wrong(self) -> Sequence[Any]:
        return [self.value + 2 * self.within + 1]


@dataclass(frozen=True)
class SetOf:
    """These elements, each once, in any order."""

    items: tuple[Matcher, ...]
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        if not isinstance(value, list) or len(value) != len(self.items):
            return False
        left = list(value)
        for item in self.items:
            found = next((i for i, given in enumerate(left) if item.accepts(given, fold)), None)
            if found is None:
                return False
            del left[found]
        return True

    def example(self) -> Any:
        return [item.example() for item in self.items]

    def wrong(self) -> Sequence[Any]:
        values = self.example()
        return [values[:-1], [*values, "other"]]


@dataclass(frozen=True)
class ListOf:
    """These elements in this order: a plain list."""

    items: tuple[Matcher, ...]
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(self.items)
            and all(item.accepts(given, fold) for item, given in zip(self.items, value, strict=True))
        )

    def example(self) -> Any:
        return [item.example() for item in self.items]

    def wrong(self) -> Sequence[Any]:
        values = self.example()
        return [[*values, "other"], values[:-1] if values else ["other"]]


@dataclass(frozen=True)
class ObjectOf:
    """These members and no others: a plain mapping."""

    members: tuple[tuple[str, Matcher], ...]
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        if not isinstance(value, dict) or value.keys() - {name for name, _ in self.members}:
            return False
        return all(item.accepts(value[name], fold) if name in value else item.optional for name, item in self.members)

    def example(self) -> Any:
        return {name: item.example() for name, item in self.members if not item.optional}

    def wrong(self) -> Sequence[Any]:
        values = self.example()
        first = next(iter(values), None)
        without = {name: value for name, value in values.items() if name != first}
        return [{**values, "other": 1}, *([without] if first is not None else [])]


@dataclass(frozen=True)
class Moment:
    """A date, a time of day, or both, however ISO 8601 writes them; a zone that wasn't asked for doesn't count."""

    value: str
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        if not isinstance(value, str):
            return False
        wanted = self.parsed(self.value)
        return wanted is not None and self.parsed(value) == wanted

    @staticmethod
    def parsed(text: str) -> date | time | None:
        text = text.strip().replace("T", " ", 1)
        for kind in (time, date, datetime):
            try:
                found: date | time = kind.fromisoformat(text)
            except ValueError:
                continue
            return found.replace(tzinfo=None) if isinstance(found, datetime | time) else found
        return None

    def example(self) -> Any:
        return self.value

    def wrong(self) -> Sequence[Any]:
        return ["1999-01-01", "1999-01-01T00:01", "00:01:59", "soon"]


@dataclass(frozen=True)
class FilePath:
    """The same file: a slash at the end, "./" and double slashes don't count; case does."""

    value: str
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        if not isinstance(value, str) or not value:
            return False
        return posixpath.normpath(value) == posixpath.normpath(self.value) or (fold and same(self.value, value, True))

    def example(self) -> Any:
        return self.value

    def wrong(self) -> Sequence[Any]:
        return [self.value + "x", "/elsewhere", ""]


@dataclass(frozen=True)
class Json:
    """A string that holds this JSON, however it is laid out."""

    inner: Matcher
    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        if not isinstance(value, str):
            return False
        try:
            return self.inner.accepts(read_json(value), fold)
        except ValueError:
            return False

    def example(self) -> Any:
        return json.dumps(self.inner.example())

    def wrong(self) -> Sequence[Any]:
        return [*(json.dumps(value) for value in self.inner.wrong()), "{"]


@dataclass(frozen=True)
class Anything:
    """Whatever the tool's schema admits."""

    optional: ClassVar[bool] = False

    def accepts(self, value: Any, fold: bool) -> bool:
        return True

    def example(self) -> Any:
        return "anything"

    def wrong(self) -> Sequence[Any]:
        return []


@dataclass(frozen=True)
class Optional:
    """May be left out; if it is given, the inner rule holds."""

    inner: Matcher
    optional: ClassVar[bool] = True

    def accepts(self, value: Any, fold: bool) -> bool:
        return self.inner.accepts(value, fold)

    def example(self) -> Any:
        return self.inner.example()

    def wrong(self) -> Sequence[Any]:
        return self.inner.wrong()


@dataclass(frozen=True)
class Absent:
    """Must be left out, though the schema knows it."""

    optional: ClassVar[bool] = True

    def accepts(self, value: Any, fold: bool) -> bool:
        return False

    def example(self) -> Any:
        raise AssertionError("an absent argument has no example")

    def wrong(self) -> Sequence[Any]:
        return ["anything"]


_RULES: dict[str, Callable[[dict[str, Any]], Matcher]] = {
    "$eq": lambda rule: Eq(rule["$eq"]),
    "$fold": lambda rule: Fold(rule["$fold"]),
    "$any_of": lambda rule: AnyOf(tuple(map(matcher, rule["$any_of"]))),
    "$regex": lambda rule: Regex(re.compile(rule["$regex"]), rule["$like"]),
    "$contains": lambda rule: Contains(_strings(rule["$contains"])),
    "$range": lambda rule: Range(*rule["$range"]),
    "$approx": lambda rule: Approx(rule["$approx"], rule["$within"]),
    "$set": lambda rule: SetOf(tuple(map(matcher, rule["$set"]))),
    "$datetime": lambda rule: Moment(rule["$datetime"]),
    "$path": lambda rule: FilePath(rule["$path"]),
    "$json": lambda rule: Json(matcher(rule["$json"])),
    "$any": lambda rule: Anything(),
    "$optional": lambda rule: Optional(matcher(rule["$optional"])),
    "$absent": lambda rule: Absent(),
}


def matcher(written: Any) -> Matcher:
    """What a case file says about an argument. Raises BadRule."""
    if isinstance(written, dict):
        if rules := [key for key in written if str(key).startswith("$")]:
            make = _RULES.get(rules[0])
            if make is None:
                raise BadRule(f"there is no rule {rules[0]}; there are {', '.join(_RULES)}")
            try:
                return make(written)
            except (KeyError, TypeError, re.error) as error:
                raise BadRule(f"{written}: {error!r}") from error
        return ObjectOf(tuple((str(name), matcher(value)) for name, value in written.items()))
    if isinstance(written, list):
        return ListOf(tuple(map(matcher, written)))
    return Eq(written)


def _strings(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)

"""Looks up formats by name, and constructs normalisers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, replace
from dataclasses import fields as fields_of
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from normalizers.base import Normalizer, new_call_id
from normalizers.formats import FORMATS
from normalizers.read.dialects import DIALECTS, dialect_of, load
from normalizers.spec import ElementSyntax, FormatSpec, Layout, MessageSyntax, NamedSyntax, Syntax, TagSyntax
from normalizers.values.coerce import SchemaIndex

if TYPE_CHECKING:
    from normalizers.read.framing import Framing

_AUTO = "normalizers.read.auto:Auto"


class UnknownFormat(ValueError):
    """No such format, or an invalid definition of one. The message names the field or lists what is known."""


_BY_NAME: dict[str, FormatSpec] = {name: spec for spec in FORMATS for name in (spec.name, *spec.aliases)}


def names() -> list[str]:
    """Canonical names, in the order of the table."""
    return [spec.name for spec in FORMATS]


def get(name: str | Mapping[str, Any]) -> FormatSpec:
    """The format with that name or alias, the one at ``pkg.mod:SPEC``, or the one that a mapping defines.

    Raises `UnknownFormat`.
    """
    if isinstance(name, Mapping):
        return define(name)
    if spec := _BY_NAME.get(name.strip().lower()):
        return spec
    if ":" in name:
        return _imported_spec(name)
    raise UnknownFormat(
        f"unknown tool-call format {name!r}.{_hint(name, _BY_NAME)} Known: {', '.join(names())}; "
        "or an import string 'pkg.mod:SPEC'."
    )


def _hint(word: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, [*known], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


_SYNTAXES: dict[str, type[Syntax]] = {
    "elements": ElementSyntax,
    "messages": MessageSyntax,
    "named": NamedSyntax,
    "tags": TagSyntax,
}


def define(fields: Mapping[str, Any]) -> FormatSpec:
    """A format from plain values, such as those of a YAML file: the fields of `FormatSpec`.

    With ``like``, all other fields come from that format. A list may replace a tuple, and a string a
    tuple of one. Raises `UnknownFormat`, which names the field.
    """
    if "like" in fields:
        return _alike(get(str(fields["like"])), {key: value for key, value in fields.items() if key != "like"})
    values = _fields(FormatSpec, fields, "tool_call_format")
    dialect = values.get("dialect", "")
    known = sorted(("auto", *DIALECTS))
    if dialect not in known and ":" not in dialect:
        raise UnknownFormat(
            f"tool_call_format.dialect: {dialect!r} is neither one of {', '.join(known)} nor an import string"
        )
    values.setdefault("name", "custom")
    if syntax := _SYNTAXES.get(dialect):
        given = fields.get("syntax")
        if not isinstance(given, Mapping):
            raise UnknownFormat(f"tool_call_format.syntax: the dialect {dialect!r} needs the fields of its syntax")
        values["syntax"] = syntax(**_fields(syntax, given, "tool_call_format.syntax"))
    elif "syntax" in fields:
        raise UnknownFormat(f"tool_call_format.syntax: the dialect {dialect!r} takes none")
    return FormatSpec(**values)


def _alike(spec: FormatSpec, fields: Mapping[str, Any]) -> FormatSpec:
    for field in ("dialect", "syntax"):
        if field in fields:
            raise UnknownFormat(f"tool_call_format.{field}: can't be changed, it comes from `like`")
    given = {"name": spec.name, **fields}
    return replace(spec, **_fields(FormatSpec, given, "tool_call_format"))


def _fields(kind: type[Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = {field.name: field for field in fields_of(kind)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            hint = _hint(str(key), known)
            raise UnknownFormat(f"{where}.{key}: no such field.{hint} Known: {', '.join(known)}.")
        if key == "call" and isinstance(value, Mapping):
            values[key] = TagSyntax(**_fields(TagSyntax, value, f"{where}.call"))
        elif key == "layout":
            if not isinstance(value, Mapping):
                raise UnknownFormat(f"{where}.layout: needs the fields of a layout")
            values[key] = Layout(**_fields(Layout, value, f"{where}.layout"))
        elif key != "syntax":
            values[key] = _as_declared(str(known[key].type), value, f"{where}.{key}")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in (*given, "name")]
    if missing:
        raise UnknownFormat(f"{where}.{missing[0]}: missing")
    return values


def _as_declared(declared: str, value: object, where: str) -> object:
    if declared.startswith("tuple[tuple"):
        pairs: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
            raise UnknownFormat(f"{where}: must be a list of pairs of strings")
        return tuple((str(a), str(b)) for a, b in pairs)
    if declared.startswith("tuple"):
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise UnknownFormat(f"{where}: must be a string or a list of strings")
        return tuple(items)
    if declared == "bool" and not isinstance(value, bool):
        raise UnknownFormat(f"{where}: must be true or false")
    if declared.startswith("Literal"):
        allowed = re.findall(r"'(\w+)'", declared)
        if value not in allowed:
            raise UnknownFormat(f"{where}: must be one of {', '.join(allowed)}, not {value!r}")
    if not isinstance(value, (bool, str)):
        raise UnknownFormat(f"{where}: must be a string")
    return value


def _imported_spec(target: str) -> FormatSpec:
    try:
        spec = load(target)
    except (ImportError, AttributeError, ValueError) as exc:
        raise UnknownFormat(f"tool-call format {target!r} cannot be imported: {exc}") from exc
    if not isinstance(spec, FormatSpec):
        raise UnknownFormat(f"{target!r} is a {type(spec).__name__}, not a FormatSpec")
    return spec


def normalizer(
    spec: FormatSpec | str,
    tools: Sequence[Mapping[str, Any]] | SchemaIndex = (),
    *,
    ids: Callable[[], str] | None = None,
    reasoning_open: bool = False,
    allow_calls: bool = True,
    parallel: bool = True,
    guarded: bool = False,
    unmarked_guarded: bool = False,
) -> Normalizer:
    """A normaliser for one answer.

    `tools` is the request's OpenAI tool list, or an index of it that several answers share. `ids` makes
    unique call ids. `reasoning_open`: the prompt already opened the reasoning. `allow_calls=False`
    (``tool_choice: "none"``) replaces each call by a `Warn`; `parallel=False` keeps the first call only.

    A call is held until it is complete, so that none has to be taken back. `guarded`: the calls with marks are certain
    to be readable, so their arguments leave piece by piece. `unmarked_guarded`: so are calls without marks that begin
    the answer.
    """
    if isinstance(spec, str):
        spec = get(spec)
    schemas = tools if isinstance(tools, SchemaIndex) else SchemaIndex(tools)
    if spec.untouched and not (schemas.names and spec.unmarked != "never"):
        return Normalizer()
    return _framing()(
        spec,
        _dialect,
        schemas,
        ids=ids or new_call_id,
        reasoning_open=reasoning_open,
        allow_calls=allow_calls,
        parallel=parallel,
        guarded=guarded,
        unmarked_guarded=unmarked_guarded,
    )


@cache
def _framing() -> type[Framing]:
    """Loaded with the first answer. An `import` statement here would take 7,000 instructions of each further one."""
    from normalizers.read.framing import Framing

    return Framing


def passes(spec: FormatSpec, text: str, *, tools: bool = True) -> bool:
    """True if a whole answer is certain to pass untouched. False promises nothing: use a normaliser.

    tools: the request offers tools.

    Every call and every marker begins with one of a few characters, which most answers don't contain.
    """
    heads = _HEADS.get(spec)
    if heads is None:
        literals = (*spec.open, *spec.begins, *spec.close, *spec.drop, *(mark for pair in spec.think for mark in pair))
        if spec.first:
            return False
        bare = ("(", "[", "{", ":") if spec.bare or spec.inline else ()
        heads = _HEADS[spec] = tuple({literal[0] for literal in literals} | {*bare})
    for head in heads:
        if head in text:
            return False
    fenced = "`" in text or "~~~" in text
    return not (tools and spec.unmarked != "never" and (fenced or text.lstrip()[:1] in _UNMARKED_HEADS))


_UNMARKED_HEADS = ("{", "[", "<", "~")
_HEADS: dict[FormatSpec, tuple[str, ...]] = {}


def _dialect(spec: FormatSpec) -> Any:
    return load(_AUTO) if spec.dialect == "auto" else dialect_of(spec)


def warm(spec: FormatSpec | str) -> None:
    """Load now what the first call of this format would load."""
    if isinstance(spec, str):
        spec = get(spec)
    if not spec.untouched:
        import_module("normalizers.read.framing")
        warm_dialect = getattr(_dialect(spec), "warm", None)
        if warm_dialect is not None:
            warm_dialect()

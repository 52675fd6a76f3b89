"""The layout of a format's calls, if none is given: what its other fields say. One function for each dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

from normalizers.spec import ElementSyntax, FormatSpec, Layout, MessageSyntax, NamedSyntax, TagSyntax, call_format


@lru_cache(maxsize=256)
def layout_of(spec: FormatSpec) -> Layout:
    return spec.layout or _LAYOUTS.get(spec.dialect, _json)(spec)


def name_in(template: str, name: str) -> str:
    """A tool's name as it stands in the template of a call."""
    return json.dumps(name, ensure_ascii=False)[1:-1] if '"{name}"' in template else name


def tags_of(spec: FormatSpec) -> TagSyntax | None:
    """The tags of the format's parameters, also of those within messages."""
    inner = spec.syntax.call if isinstance(spec.syntax, MessageSyntax) else spec.syntax
    return inner if isinstance(inner, TagSyntax) else None


def bare_quotes(spec: FormatSpec) -> tuple[str, str] | None:
    """What stands around the strings of arguments whose keys have no quotes; None if keys have quotes."""
    syntax = spec.syntax
    if not isinstance(syntax, NamedSyntax) or not syntax.bare_keys:
        return None
    return syntax.quotes[0] if syntax.quotes else ('"', '"')


def _marks(spec: FormatSpec) -> tuple[str, str]:
    return spec.open[0] if spec.open else "", spec.close[0] if spec.close else ""


def _pythonic(spec: FormatSpec) -> Layout:
    opening, closing = _marks(spec)
    listed = ("", "\n", "") if spec.lines else ("[", ", ", "]")
    return Layout(
        call="{name}({arguments})",
        opening=opening + listed[0],
        between=listed[1],
        closing=listed[2] + closing,
        parameter="{key}={value}",
        separator=", ",
        spelling="python",
    )


def json_call(spec: FormatSpec) -> str:
    """A template of a call as a JSON object."""
    if not spec.keys:
        return '{"{name}": {arguments}}'
    name, arguments = spec.keys
    return f'{{"{name}": "{{name}}", "{arguments}": {{arguments}}}}'


def _json(spec: FormatSpec) -> Layout:
    opening, closing = ("<tool_call>", "</tool_call>") if spec.dialect == "auto" else _marks(spec)
    call = json_call(spec)
    if spec.listed:
        return Layout(call, opening=f"{opening}[", between=", ", closing=f"]{closing}")
    if closing:
        between = f"\n{closing}\n{opening}\n"
        return Layout(call, opening=f"{opening}\n", between=between, closing=f"\n{closing}")
    return Layout(call, opening=opening, between="; ")


def _named(spec: FormatSpec) -> Layout:
    opening, closing = _marks(spec)
    syntax = spec.syntax
    assert isinstance(syntax, NamedSyntax)
    between = "" if syntax.tail else f"{closing}{opening}" if opening else f"{closing}\n"
    comma, colon = (",", ":") if syntax.bare_keys else (", ", ": ")
    return Layout(syntax.written, opening=opening, between=between, closing=closing, comma=comma, colon=colon)


def _tags(spec: FormatSpec) -> Layout:
    opening, closing = _marks(spec)
    syntax = spec.syntax
    assert isinstance(syntax, TagSyntax)
    gap = syntax.gap
    end = syntax.call_end[0] if syntax.call_end else ""
    call = f"{syntax.call[0]}{gap}{{arguments}}{end}"
    parameter = f"{parameter_tag(syntax)}{{value}}{syntax.parameter_end[0]}{gap}"
    if end:
        opening, between, closing = opening and f"{opening}{gap}", gap, closing and f"{gap}{closing}"
    else:
        between = f"{closing}{gap}{opening}"
    return Layout(call, opening=opening, between=between, closing=closing, parameter=parameter, first="1")


def parameter_tag(syntax: TagSyntax) -> str:
    """The template of the tag before a parameter's value, as the model writes it."""
    return syntax.parameter[0].replace("> <", f">{syntax.gap}<")


def _elements(spec: FormatSpec) -> Layout:
    opening, closing = _marks(spec)
    syntax = spec.syntax
    assert isinstance(syntax, ElementSyntax)
    call = f"{syntax.mark}{syntax.call[0]}{{arguments}}{syntax.mark}{syntax.call_end}\n"
    return Layout(call, opening=f"{opening}\n", closing=closing)


def _messages(spec: FormatSpec) -> Layout:
    syntax = spec.syntax
    assert isinstance(syntax, MessageSyntax)
    if syntax.calls != "tags":
        return Layout(syntax.written.replace("{call}", json_call(spec)), between=syntax.again)
    inner = layout_of(call_format(spec))
    call = syntax.written.replace("{call}", f"{inner.opening}{inner.call}{inner.closing}")
    return Layout(call, between=syntax.again, parameter=inner.parameter, separator=inner.separator, first=inner.first)


_LAYOUTS: dict[str, Callable[[FormatSpec], Layout]] = {
    "elements": _elements,
    "messages": _messages,
    "named": _named,
    "pythonic": _pythonic,
    "tags": _tags,
}

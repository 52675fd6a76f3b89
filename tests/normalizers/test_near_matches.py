"""Tags and heads that a model leaves off in long white space: each is read in one go, however it might match.

What tried all ways to share the white space out among a tag's parts would take minutes for these texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from normalizers import FormatSpec, fold, get, names, normalizer
from normalizers.spec import ElementSyntax, NamedSyntax, TagSyntax
from tests.normalizers.splits import parse, tool

TOOLS = [tool("f", key="string")]
VALUES = {"name": "f", "key": "key", "id": "f:0", "index": "1", "string": "true", "type": "string"}
BLANKS = (" " * 1900, "\n" * 1900, " " * 100_000)
"""As long as what may still become a tag, and longer."""


def heads(spec: FormatSpec) -> Iterator[tuple[str, str]]:
    """What stands before a tag or a head of a call, and the tag or head."""
    opener, syntax = "".join(spec.open[:1]), spec.syntax
    if isinstance(syntax, TagSyntax):
        call = filled(syntax.call[0])
        yield from ((opener, source) for source in (*syntax.call, *syntax.empty_call))
        yield from ((opener + call, source) for source in (*syntax.parameter, *syntax.call_end))
        value = f"{opener}{call}{filled(syntax.parameter[0])}x"
        yield from ((value, source) for source in syntax.parameter_end)
    elif isinstance(syntax, NamedSyntax):
        yield from ((opener, source) for source in syntax.head)
    elif isinstance(syntax, ElementSyntax):
        yield from ((opener, syntax.mark + source) for source in syntax.call)
    yield from (("", source) for source in spec.first)


def filled(source: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda field: VALUES[field[1]], source)


def left_off(source: str) -> Iterator[str]:
    """The filled source up to each of its parts."""
    parts = [part for part in re.split(r"(\{\w+\}|[ =\"<>])", source) if part]
    for end in range(1, len(parts) + 1):
        yield filled("".join(parts[:end]))


@pytest.mark.parametrize("name", [name for name in names() if not get(name).untouched])
def test_white_space_in_a_tag_is_read_once(name: str) -> None:
    for before, source in heads(get(name)):
        for begun in left_off(source):
            for blanks in BLANKS:
                for end in ("<", "x"):
                    parser = normalizer(name, TOOLS)
                    text = before + begun + blanks + end
                    folded = fold(parser.feed(text) + parser.finish("stop"))
                    assert len(folded.content) <= len(text)


NO_NAMES = {
    "a list": "[" + "1," * 500_000,
    "digits": "1" * 1_000_000,
    "quotes": '"' * 1_000_000,
    "white space": '"f"' + " " * 1_000_000,
}


@pytest.mark.parametrize("rest", NO_NAMES)
def test_a_name_in_pieces_is_looked_at_once(rest: str) -> None:
    """JSON without marks whose name never ends: the name so far was joined for each piece."""
    text = f'{{"name": {NO_NAMES[rest]}'
    parser = normalizer("hermes", TOOLS)
    events = [event for at in range(0, len(text), 4) for event in parser.feed(text[at : at + 4])]
    folded = fold(events + parser.finish("stop"))
    assert (folded.content, folded.tool_calls) == (text, [])


@pytest.mark.parametrize("rest", ["[1, 2]}", "5}", "null}", '"g"}', '"f" g}', "x}", "{}}"])
def test_json_whose_name_is_none_is_text_at_once(rest: str) -> None:
    parser = normalizer("hermes", TOOLS)
    assert fold(parser.feed(f'{{"name": {rest[:-1]}')).content == f'{{"name": {rest[:-1]}'
    parse("hermes", f'{{"name": {rest}', TOOLS, unknown_tools="refuse")

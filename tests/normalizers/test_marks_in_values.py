"""A value that holds the format's own marks reads back as it was, and however the text is split.

For every format: each of its marks in each kind of value, at its start, in its midst and at its end, on the first line
and on later ones, as the format's own renderer writes it. What a format can't tell apart is in `AMBIGUOUS`: there every
split still gives the same events, and no word is lost.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.normalizer_fuzz import tokens
from normalizers import Event, FormatSpec, ToolCall, coalesce, fold, get, names, normalizer
from normalizers.spec import NamedSyntax, TagSyntax
from normalizers.values.coerce import SchemaIndex
from normalizers.write.layout import tags_of
from normalizers.write.render import render_calls
from tests.support.thorough import spread

PARAMETERS = {"text": {"type": "string"}, "object": {"type": "object"}, "list": {"type": "array"}, "more": {}}
TOOLS = SchemaIndex([{"name": "put", "parameters": {"type": "object", "properties": PARAMETERS}}])
FORMATS = [name for name in names() if not get(name).untouched]
TAGS = [name for name in FORMATS if get(name).dialect == "tags"]
CODER = ("qwen3_coder", "seed_oss")
AMBIGUOUS: list[tuple[tuple[str, ...], str, str]] = [
    (CODER, "one </parameter></function> two", "ends like the call itself"),
    (CODER, "one</parameter>\n</function>\ntwo", "the same on lines"),
    (CODER, "one </parameter><parameter=more> two", "goes on like the call itself"),
    (CODER, "one\n<parameter=more>\ntwo", "a closing tag is missing, or the tag is part of the value"),
    (CODER, "one\n</function>\n<function=put>\ntwo", "the same at the end of the call"),
    (("qwen3_coder",), "one\n</function>\n</tool_call>\ntwo", "the same at the end of the region"),
    (("minimax_m2",), "one </parameter></invoke> two", "ends like the call itself"),
    (("minimax_m2",), 'one\n<parameter name="more">two', "a closing tag is missing, or the tag is part of the value"),
    (("minimax_m2",), "one\n</invoke>\n</minimax:tool_call>\ntwo", "the same at the end of the call"),
    (("glm45",), "one </arg_value></tool_call> two", "ends like the call itself"),
    (("glm45",), "one </arg_value><arg_key>more</arg_key><arg_value> two", "goes on like the call itself"),
    (("deepseek_v32",), "one </｜DSML｜parameter></｜DSML｜invoke> two", "ends like the call itself"),
    (("deepseek_v32",), "one </｜DSML｜invoke></｜DSML｜function_calls> two", "a closing tag is missing, or not"),
]
"""Formats, a value that looks like something else to them, and how."""
NESTED = ("minimax_m3",)
"""Formats in which a tag within anything but a plain string is a part of the value."""
MAX_MARKS = 6
AROUND = 2
"""Characters on either side of a mark within which the text is cut twice."""


def read(spec: FormatSpec, pieces: list[str]) -> list[Event]:
    ids = map(str, itertools.count())
    parser = normalizer(spec, TOOLS, ids=lambda: next(ids))
    events = [event for piece in pieces for event in parser.feed(piece)]
    return coalesce(events + parser.finish("stop"))


def marks(spec: FormatSpec) -> list[str]:
    """The literals that the format's reader looks for, with a name or a key where they have one."""
    syntax = spec.syntax
    templates: tuple[str, ...] = ()
    if isinstance(syntax, TagSyntax):
        templates = (*syntax.call, *syntax.parameter, *syntax.parameter_end, *syntax.call_end, *syntax.empty_call)
    elif isinstance(syntax, NamedSyntax):
        templates = (*syntax.head, *syntax.tail, *itertools.chain(*syntax.quotes))
    fields = {"name": "put", "key": "other", "id": "functions.put:1", "string": "true", "type": "string", "index": "1"}
    written = (re.sub(r"\{(\w+)\}", lambda field: fields[field[1]], template) for template in templates)
    if spec.name == "auto":
        outer = tuple(get("hermes").markers)
    else:
        outer = (*spec.open, *spec.close, *spec.begins, *spec.drop, *itertools.chain(*spec.think), *spec.result)
    more = {
        "json": ('{"name": "put", "arguments": {}}', '"}}', "```"),
        "pythonic": ("put()", '[put(text="x")]', '")]'),
        "harmony": ("<|message|>", "<|constrain|>"),
    }.get(spec.dialect, ('"}',))
    return list(dict.fromkeys(mark for mark in (*outer, *written, *more) if mark.strip()))


def texts(mark: str) -> list[str]:
    """The mark at the start, in the midst and at the end of a text, on its first line and on later ones."""
    one_line = [mark, f"{mark} y", f"x{mark}y", f"x {mark} y", f"x {mark}"]
    return [*one_line, f"l\n{mark}", f"l\n{mark}\ny", f"l\nx {mark} y", f"\n{mark}\ny", f"l\n{mark} y"]


def values(mark: str) -> Iterator[dict[str, Any]]:
    for text in texts(mark):
        yield {"text": text}
    yield {"more": f"x {mark} y", "list": [1]}
    for text in (f"{mark} y", f"l\n{mark}"):
        yield {"object": {"k": text, f"x {mark}": 1}}
        yield {"list": [text, f"x {mark} y"], "text": "z"}


def written(spec: FormatSpec, arguments: dict[str, Any]) -> str:
    return render_calls(spec, [ToolCall("", "put", json.dumps(arguments))])


def on_lines(spec: FormatSpec, text: str) -> str:
    """The call with this text between line breaks, as many chat templates write it."""
    syntax = spec.syntax
    assert isinstance(syntax, TagSyntax)
    opening = syntax.parameter[0].replace("{key}", "text").replace("{string}", "true")
    call = written(spec, {"text": text})
    return call.replace(f"{opening}{text}", f"{opening}\n{text}\n", 1)


def judge(spec: FormatSpec, text: str, arguments: dict[str, Any]) -> None:
    whole = read(spec, [text])
    message = fold(whole)
    got = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    if spec.name not in NESTED or list(arguments) == ["text"]:
        assert got == [("put", arguments)], text
        assert not message.content.strip()
        assert not message.reasoning
    for pieces in (list(text), tokens(text), tokens(text, longest=3, marks=spec.markers)):
        assert read(spec, pieces) == whole, pieces


@pytest.mark.parametrize("name", FORMATS)
def test_a_value_with_a_mark_reads_back(name: str) -> None:
    spec = get(name)
    for mark in spread(marks(spec), 2 * MAX_MARKS):
        for arguments in values(mark):
            judge(spec, written(spec, arguments), arguments)


@pytest.mark.parametrize("name", FORMATS)
def test_every_cut_gives_the_same(name: str) -> None:
    """Every cut in two of one call with all places of a mark, and every cut in three near the mark.

    Where a format has dozens of marks, spellings of the same few, thorough runs take those left out here.
    """
    spec = get(name)
    found = marks(spec)
    for mark in spread(found, MAX_MARKS):
        everywhere = {"text": f"{mark} y\nx {mark} z\n{mark}", "object": {f"k{mark}": f"x{mark}"}, "list": [f"{mark}y"]}
        text = written(spec, everywhere)
        whole = read(spec, [text])
        for at in range(1, len(text)):
            assert read(spec, [text[:at], text[at:]]) == whole, (text[:at], text[at:])
        near_the_mark(spec, written(spec, {"text": f"x {mark} y"}), mark)
        if spec.dialect == "tags":
            near_the_mark(spec, on_lines(spec, f"l\n{mark}"), mark)


def near_the_mark(spec: FormatSpec, text: str, mark: str) -> None:
    whole = read(spec, [text])
    first = text.rfind(json.dumps(mark, ensure_ascii=False)[1:-1])
    first = max(1, (first if first >= 0 else text.rfind(mark[:2])) - AROUND)
    cuts = range(first, min(len(text), first + len(mark) + 2 * AROUND))
    for one, two in itertools.combinations(cuts, 2):
        pieces = [text[:one], text[one:two], text[two:]]
        assert read(spec, pieces) == whole, pieces


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for formats, value, _ in AMBIGUOUS for name in formats], ids=repr
)
def test_what_a_format_cannot_tell_apart_is_the_same_in_every_split(name: str, value: str) -> None:
    spec = get(name)
    text = written(spec, {"text": value})
    whole = read(spec, [text])
    for cuts in (1, 2):
        for places in itertools.combinations(range(1, len(text)), cuts):
            pieces = [text[one:two] for one, two in itertools.pairwise((0, *places, len(text)))]
            if cuts == 1 or places[1] - places[0] < 16:
                assert read(spec, pieces) == whole, pieces
    assert read(spec, tokens(text)) == whole
    message = fold(whole)
    said = message.content + "".join(call.arguments for call in message.tool_calls)
    assert "one" in said
    assert "two" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_cut_of_every_value(name: str) -> None:
    spec = get(name)
    for mark in marks(spec):
        for arguments in values(mark):
            text = written(spec, arguments)
            whole = read(spec, [text])
            for at in range(1, len(text)):
                assert read(spec, [text[:at], text[at:]]) == whole, (text[:at], text[at:])
            near_the_mark(spec, text, mark)


@pytest.mark.parametrize("name", [name for name in TAGS if (tags := tags_of(get(name))) is not None and tags.gap])
def test_values_on_lines_of_their_own(name: str) -> None:
    """The layout of the models' own templates: ``<parameter=text>``, a line break, the value, a line break."""
    spec = get(name)
    for mark in spread(marks(spec), 2 * MAX_MARKS):
        for text in texts(mark):
            if not text.startswith("\n"):
                judge(spec, on_lines(spec, text), {"text": text})

"""The layout in which a template writes calls: see `normalizers.spec.Layout`. It counts only if calls that are written
in it are the template's own, character by character."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from normalizers.derive.probes import COUNT, FIND, PING, PLACE, TEXT, THOUGHT, Rendered
from normalizers.derive.sample import NUMBER, ONE, OTHER, OTHER_VALUE, PAIR, VALUE, json_at
from normalizers.derive.shapes import with_type
from normalizers.derive.turns import Call, NotRendered, Turn, Turns, alike, common_end
from normalizers.spec import FormatSpec, Layout, Spelling
from normalizers.write.layout import bare_quotes, layout_of
from normalizers.write.render import render_calls

_IDS = re.compile(r"wxid\d{5}")
_NOTHING: Call = (PING, {})
_SPELLINGS: tuple[Spelling, ...] = ("json", "mixed", "python")
_BLANKS = re.compile(r"\n{0,2}| {1,2}")
_ESCAPED = ("quotes and signs", "code")
"""Probes whose strings a template may escape in its own way. A grammar takes any."""


def layout(turns: Turns, spec: FormatSpec, found: Rendered) -> Layout | None:
    """The layout of the format in which the template writes all of the probes; None if there is none."""
    shown = {
        name: (probe.calls, turn)
        for name, (probe, turn) in found.items()
        if probe.calls and not probe.content and not probe.reasoning and name not in _ESCAPED
    }
    for made in (layout_of(spec), *_found(turns, spec)):
        opening = made.opening[_lead_size(spec, made.opening) :]
        free = bare_quotes(spec) or made.parameter
        for spelling, in_order in product(_SPELLINGS if free else _SPELLINGS[:1], (False, True)):
            tried = replace(made, opening=opening, spelling=spelling, sorted=in_order, lead="", gap="")
            leads = {_lead(spec, tried, *pair) for pair in shown.values()}
            if len(leads) == 1 and (lead := leads.pop()) is not None:
                return _beside_reasoning(turns, spec, tried, lead)
    return None


def _lead_size(spec: FormatSpec, opening: str) -> int:
    """How much of what stands before a call is no beginning of calls, but of the answer."""
    begin = min((at for mark in spec.openers if (at := opening.find(mark)) >= 0), default=len(opening))
    marks = (*(closing for _, closing in spec.think), *spec.content_drop)
    size = max((opening.rfind(mark, 0, begin) + len(mark) for mark in marks if mark in opening[:begin]), default=0)
    return size + len(opening[size:]) - len(opening[size:].lstrip())


def _written(spec: FormatSpec, made: Layout, calls: Sequence[Call]) -> str:
    given = [
        {"id": f"wxid{index:05}", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return render_calls(replace(spec, layout=made), given).rstrip()


def _lead(spec: FormatSpec, made: Layout, calls: Sequence[Call], turn: Turn) -> str | None:
    """What the template writes before the calls; None if it doesn't write them so."""
    text, written = turn.text.rstrip(), _written(spec, made, calls)
    return text[: len(text) - len(written)] if text.endswith(written) else None


def _beside_reasoning(turns: Turns, spec: FormatSpec, made: Layout, lead: str) -> Layout:
    """The layout with what stands before calls, and between reasoning and calls."""
    gap = ""
    for opening, closing in spec.think[:1]:
        if closing.strip() not in lead:
            lead_of_calls = _lead_with_reasoning(turns, spec, made)
        else:
            lead_of_calls = lead
            if opening.strip() not in lead:
                lead = ""  # the prompt opens the reasoning
        _, found, behind = lead_of_calls.rpartition(closing.strip())
        # Some white space may stand there anyway.
        gap = behind if found and not _BLANKS.fullmatch(behind) else ""
    return replace(made, lead=lead, gap=gap)


def _lead_with_reasoning(turns: Turns, spec: FormatSpec, made: Layout) -> str:
    if not turns.shows_reasoning:
        return ""
    try:
        turn = turns.turn([ONE], None, THOUGHT)
    except NotRendered:
        return ""
    return _lead(spec, made, [ONE], turn) or ""


# -- from what the template writes -----------------------------------------------------------------


def _found(turns: Turns, spec: FormatSpec) -> Iterator[Layout]:
    one, pair, two, nothing = (_text(turns, *calls) for calls in ((ONE,), (PAIR,), (ONE, OTHER), (_NOTHING,)))
    if OTHER_VALUE not in two:
        two = ""  # a second call is lost
    if spec.dialect == "pythonic":
        yield from _in_python(one, two)
    else:
        yield from _objects(one, two, pair)
        yield from _parameters(two, pair, nothing)


def _text(turns: Turns, *calls: Call) -> str:
    """What the template writes of these calls; empty if it refuses them."""
    try:
        return turns.turn(calls).text.rstrip()
    except NotRendered:
        return ""


def _start(text: str, call: Call, at: int) -> int:
    """Where the name or the id of a call begins; -1 if it isn't there."""
    name = text.find(call[0], at)
    own_id = _IDS.search(text, at)
    return min(name, own_id.start()) if own_id and name >= 0 else name


def _framed(one: str, two: str, spans: Sequence[tuple[int, int]]) -> Layout:
    """What stands around one call and, if there are more spans, around two."""
    (start, end), *both = spans
    made = Layout("", opening=one[:start], closing=one[end:])
    if not both:
        return made
    (_, first_end), (second_start, second_end) = both
    behind = two[second_end:].removeprefix(made.closing) if two[second_end:].startswith(made.closing) else ""
    return replace(made, between=two[first_end:second_start], behind_several=behind)


def _objects(one: str, two: str, pair: str) -> Iterator[Layout]:
    """Arguments are one object of JSON."""
    spans = [_object_span(one, ONE, 0)]
    if two:
        spans += [_object_span(two, ONE, 0)]
        spans += [_object_span(two, OTHER, spans[1][1])] if spans[1] else [None]
    if None in spans:
        return
    known = [span for span in spans if span is not None]
    calls = [
        _template(text, span, call) for text, span, call in zip((one, two, two), known, (ONE, ONE, OTHER), strict=False)
    ]
    call, first = _counted(calls[1], calls[2]) if len(calls) == 3 else (calls[0], "0")
    signs = re.search(rf'"{TEXT}"(\s*:\s*)"{VALUE}"(\s*,\s*)"{COUNT}"', pair)
    if call is None or signs is None:
        return
    colon, comma = signs[1], signs[2]
    frame = _framed(one, two, [span[:2] for span in known])
    made = replace(frame, call=call, comma=comma, colon=colon, first="1" if first == "1" else "0")
    if "\n" in comma:
        sizes = sorted({len(blanks) for blanks in re.findall(r"\n( *)\"", pair)})
        step = sizes[-1] - sizes[-2] if len(sizes) > 1 else 4
        made = replace(made, comma=", ", indent=" " * step)
    yield made


def _object_span(text: str, call: Call, at: int) -> tuple[int, int, int, int] | None:
    """Where the call begins and ends, and where its arguments do."""
    name, arguments = call
    start = _start(text, call, at)
    given = json_at(text, at, lambda value: value == arguments)
    if given is None or start < 0:
        return None
    begin, end, _ = given
    outer = [match.start() for match in re.compile(r"\{").finditer(text, at, begin)]
    for bracket in reversed(outer):
        whole = json_at(text, bracket, lambda value: isinstance(value, dict))
        if whole is not None and whole[0] == bracket and whole[1] >= end and name in text[bracket : whole[1]]:
            return min(start, bracket), whole[1], begin, end
    return (start, end, begin, end) if start < begin else None


def _template(text: str, span: tuple[int, int, int, int], call: Call) -> str:
    start, end, begin, stop = span
    around = [_IDS.sub("{id}", part).replace(call[0], "{name}") for part in (text[start:begin], text[stop:end])]
    return "{arguments}".join(around)


def _counted(first: str, second: str) -> tuple[str | None, str]:
    """The template that both are, with a field for a number that counts the calls, and the first number."""
    if first == second:
        return first, "0"
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            known = first[:number] + "{index}" + first[number + 1 :]
            same = known == second[:number] + "{index}" + second[number + 1 :]
            return (known if same and (a, b) in (("0", "1"), ("1", "2")) else None), a
    return None, "0"


def _in_python(one: str, two: str) -> Iterator[Layout]:
    """Each call is one of Python."""
    places = [_PYTHON[call].search(text) for text, call in ((one, FIND), *([(two, FIND), (two, PING)] if two else []))]
    if all(places):
        frame = _framed(one, two, [place.span() for place in places if place is not None])
        yield replace(frame, call="{name}({arguments})", parameter="{key}={value}", separator=", ", spelling="python")


_PYTHON = {name: re.compile(rf"{name}\([^()]*\)") for name in (FIND, PING)}


class _Parts(NamedTuple):
    """Of a call with two arguments, each of which stands for itself."""

    opening: str
    head: str
    """The call up to its first argument, with a field for its name."""
    prefix: str
    """What stands before a key."""
    parameter: str
    end: str
    """What stands behind a value."""
    separator: str
    closing: str
    quoted: bool


def _parts(pair: str) -> _Parts | None:
    start = _start(pair, PAIR, 0)
    spots, at = [], start
    for piece in (TEXT, VALUE, COUNT, str(NUMBER)):
        found = pair.find(piece, at)
        if start < 0 or found < 0:
            return None
        at = found + len(piece)
        spots.append((found, at))
    (key, key_end), (value, value_end), (key2, key2_end), (value2, value2_end) = spots
    head, middle, gap = pair[start:key], pair[key_end:value], pair[value_end:key2]
    other, rest = pair[key2_end:value2], pair[value2_end:]
    quoted = middle == f'{other}"' and gap.startswith('"')
    if quoted:
        middle, gap = other, gap[1:]
    prefix = head[len(head) - common_end(head, gap) :]
    behind = gap[: len(gap) - len(prefix)]
    end = behind[: alike(behind, rest)]
    return _Parts(
        opening=pair[:start],
        head=_IDS.sub("{id}", head[: len(head) - len(prefix)]).replace(FIND, "{name}"),
        prefix=prefix,
        parameter=f"{prefix}{{key}}{with_type(middle, other)}{{value}}{end}",
        end=end,
        separator=behind[len(end) :],
        closing=rest[len(end) :],
        quoted=quoted,
    )


def _parameters(two: str, pair: str, nothing: str) -> Iterator[Layout]:
    """Each argument stands for itself."""
    parts = _parts(pair)
    if parts is None:
        return
    head, closing, between, first, empty = parts.head, parts.closing, "", "1", ""
    if two:
        stop = two.find(parts.end, two.find(VALUE) + len(VALUE)) + len(parts.end)
        second = _start(two, OTHER, stop)
        if second < 0:
            return
        between = two[stop:second]
        other = two[second : two.find(PLACE, second) - len(parts.prefix)].replace(PING, "{name}")
        counted, number = _counted(head, _IDS.sub("{id}", other))
        if counted is None:
            return
        head, first = counted, number if "{index}" in counted else "1"
    if nothing and nothing.endswith(closing) and (begin := _start(nothing, _NOTHING, 0)) >= 0:
        bare = _IDS.sub("{id}", nothing[begin : len(nothing) - len(closing)].replace(PING, "{name}"))
        empty = "" if bare == head else bare
    yield Layout(
        f"{head}{{arguments}}",
        parts.opening,
        between,
        closing,
        empty=empty,
        parameter=parts.parameter,
        quoted=parts.quoted,
        separator=parts.separator,
        first="0" if first == "0" else "1",
    )

"""Formats that may be a template's own, from how its calls look. The round trip chooses between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from normalizers.derive.probes import COUNT, FIND, TEXT
from normalizers.derive.sample import ID, NUMBER, ONE, OTHER, PAIR, SIGNS, VALUE, Layout, Place, Sample, Shape
from normalizers.derive.turns import MARK, Json, common_end, common_start

Fields = Json
"""Fields of a `FormatSpec`, as `normalizers.registry.define` takes them."""


def candidates(sample: Sample, place: Place) -> Iterator[Fields]:
    """The formats that may read the calls, without marks of text and reasoning."""
    yield from _SHAPES[place.shape](sample, place)


def _some(*marks: str) -> list[str]:
    """The marks without white space around them, each once, without empty ones."""
    return list(dict.fromkeys(mark for mark in map(str.strip, marks) if mark))


def _flexible(source: str) -> str:
    """A template's source in which white space may be any, or none; also where the model may put some."""
    return re.sub(r"\s+", " ", re.sub(r">\s*<", "> <", source))


def _lead(begin: str) -> str:
    """The literal that begins a call: up to its first field, or line break."""
    return re.split(r"[{\n]", begin.strip(), maxsplit=1)[0].rstrip(" \"'")


# -- JSON ----------------------------------------------------------------------------------------


def _json(sample: Sample, place: Place) -> Iterator[Fields]:
    call = place.value[0] if isinstance(place.value, list) and place.value else place.value
    name, arguments = _key_of(call, lambda it: it == FIND), _key_of(call, lambda it: it == ONE[1] or _is_text(it))
    if FIND in call:
        keys: list[str] = []
    elif name and arguments:
        keys = [name, arguments]
    else:
        return
    shape: Fields = {"dialect": "json", "listed": isinstance(place.value, list), "keys": keys}
    for layout in sample.layouts(place):
        begin, end = layout.begin.strip(), layout.end.strip()
        region = _some(layout.opening, layout.closing)
        if begin:
            yield shape | {"open": [begin], "close": _some(end), "drop": region, "call_drop": region}
        if opening := layout.opening.strip():
            yield shape | {"open": [opening], "close": _some(layout.closing)}
            marks = MARK.findall(opening)
            if len(marks) > 1:
                yield shape | {"open": [marks[-1]], "close": _some(layout.closing), "drop": marks[:-1]}
        if not opening and not begin:
            yield shape | {"inline": True, "drop": _some(layout.closing, end)}


def _key_of(value: Any, fits: Callable[[Any], bool], key: str = "") -> str:
    """The key of what fits, in the objects and lists of a JSON value; empty if nothing does."""
    if fits(value):
        return key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for name, item in items if (found := _key_of(item, fits, str(name)))), "")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and TEXT in value and VALUE in value


# -- a name, then an object ----------------------------------------------------------------------


def _named(sample: Sample, place: Place) -> Iterator[Fields]:
    token = "{id}" if sample.own_ids else "{name}"
    middle = _with_index(sample, place.middle.replace(ID, "{id}"))
    quotes = [list(place.quotes)] if place.quotes and any(place.quotes) else []
    syntax: Json = {"quotes": quotes, "bare_keys": place.quotes is not None}
    for layout in sample.layouts(place):
        begin, end = layout.begin.replace(ID, "{id}"), layout.end
        written = begin + ("functions.{name}:{index}" if sample.own_ids else "{name}") + middle
        written = f"{written}{{arguments}}{end}".replace("{id}", "{index}")
        head = begin.lstrip() + token + middle
        tail = _some(end)
        lead = _lead(head)
        opening = layout.opening.strip()
        if opening:
            begins = [lead] if MARK.fullmatch(lead) or lead[:1] in ("<", "[") else []
            yield {"dialect": "named", "open": [opening], "close": _some(layout.closing), "begins": begins} | {
                "syntax": syntax | {"written": written, "head": [_flexible(head)], "tail": tail}
            }
        marks = list(MARK.finditer(begin))
        if marks and not opening:
            own = begin[marks[-1].end() :]
            yield {"dialect": "named", "open": _some(begin[: marks[-1].end()]), "close": tail} | {
                "syntax": syntax
                | {
                    "written": f"{own}{{name}}{middle}{{arguments}}".lstrip(),
                    "head": [_flexible(own.lstrip() + token + middle)],
                },
                "drop": _some(layout.closing),
                "call_drop": _some(layout.closing),
            }
        if lead and not opening:
            yield {"dialect": "named", "begins": [lead], "close": _some(layout.closing)} | {
                "syntax": syntax | {"written": written.strip(), "head": [_flexible(head)], "tail": tail}
            }


def _with_index(sample: Sample, middle: str) -> str:
    """What stands between the name and the arguments, with a field for a number that counts the calls."""
    first = sample.place(sample.two, ONE) if sample.two else None
    second = sample.place(sample.two, OTHER, first.end) if first else None
    if first is None or second is None or first.middle == second.middle:
        return middle
    size = common_start(first.middle, second.middle)
    rest = common_end(first.middle[size:], second.middle[size:])
    return middle[:size] + "{id}" + middle[len(middle) - rest :]


# -- Python calls --------------------------------------------------------------------------------


def _pythonic(sample: Sample, place: Place) -> Iterator[Fields]:
    for layout in sample.layouts(place):
        opening = (layout.opening + layout.begin).rstrip().removesuffix("[").strip()
        closing = (layout.end + layout.closing).lstrip().removeprefix("]").strip()
        bracketed = (layout.opening + layout.begin).rstrip().endswith("[")
        for lines in (False, True) if not bracketed else (False,):
            yield {
                "dialect": "pythonic",
                "open": _some(opening),
                "close": _some(closing),
                "lines": lines,
                "bare": [] if opening else ["call", "list"],
            }


# -- parameters between tags ---------------------------------------------------------------------


def _tags(sample: Sample, place: Place) -> Iterator[Fields]:
    parts = _parameters(sample)
    if parts is None:
        return
    behind_name, opening_tag, middle, ends_value, quote = parts
    between = ends_value[len(ends_value.rstrip()) :] + opening_tag[: len(opening_tag) - len(opening_tag.lstrip())]
    gap = "\n" if "\n" in between else ""
    parameter = _flexible(opening_tag.strip() + "{key}" + middle.rstrip("\n"))
    syntax: Json = {
        "parameter": [parameter],
        "parameter_end": [ends_value.strip()],
        "special": "<|" in ends_value or "｜" in ends_value,
        "unquote": bool(quote),
        "cdata": f"<![CDATA[{SIGNS}]]>" in sample.signs,
        "gap": gap,
    }
    for layout in sample.layouts(place, quote + ends_value.strip()):
        for special in dict.fromkeys((syntax["special"], False)):
            yield from _tagged(syntax | {"special": special}, layout, _counted(sample, behind_name))


def _tagged(syntax: Json, layout: Layout, behind_name: str) -> Iterator[Fields]:
    begin, end, opening, closing = (part.strip() for part in (layout.begin, layout.end, layout.opening, layout.closing))
    call = _flexible(f"{begin}{{name}}{behind_name.rstrip()}")
    starts = _some(_lead(begin))
    if opening:
        ends = {"call": [call], "call_end": _some(end)}
        yield {"dialect": "tags", "open": [opening], "close": _some(closing), "begins": starts, "syntax": syntax | ends}
        marks = MARK.findall(opening)
        if len(marks) > 1 or opening[0] not in "<[":
            yield {
                "dialect": "tags",
                "open": marks[-1:],
                "close": _some(closing),
                "drop": marks[:-1],
                "syntax": syntax | ends,
            }
        return
    marks, closings = list(MARK.finditer(begin)), MARK.findall(end)
    if marks:
        own = begin[marks[-1].end() :].lstrip()
        split = bool(closings and own)
        yield {
            "dialect": "tags",
            "open": _some(begin[: marks[-1].end()]),
            "close": closings[-1:] if split else _some(end),
            "drop": _some(closing),
            "call_drop": _some(closing),
            "syntax": syntax
            | {"call": [_flexible(own + "{name}" + behind_name.rstrip())], "call_end": closings[:-1] if split else []},
        }
    if starts:
        yield {
            "dialect": "tags",
            "begins": starts,
            "syntax": syntax | {"call": [call], "call_end": _some(end)},
            "drop": _some(closing),
            "call_drop": _some(closing),
        }
    if len(marks) > 1 and len(closings) > 1:
        yield {
            "dialect": "tags",
            "open": _some(begin[: marks[0].end()]),
            "close": closings[-1:],
            "begins": _some(begin[marks[0].end() :]),
            "syntax": syntax
            | {
                "call": [_flexible(begin[marks[0].end() :].lstrip() + "{name}" + behind_name.rstrip())],
                "call_end": _some(end[: end.rindex(closings[-1])]),
            },
        }


def _parameters(sample: Sample) -> tuple[str, str, str, str, str] | None:
    """Of a call with two arguments: what stands behind the name, before a key, between a key and its value, behind a
    value, and around a text. None if it has no such parts."""
    text = sample.pair
    place = sample.place(text, PAIR)
    if place is None:
        return None
    spots, at = [], text.index(FIND, place.start) + len(FIND) if not sample.own_ids else place.start + len(ID)
    start = at
    for piece in (TEXT, VALUE, COUNT, str(NUMBER)):
        found = text.find(piece, at)
        if found < 0:
            return None
        at = found + len(piece)
        spots.append((found, at))
    (key, key_end), (value, value_end), (key2, key2_end), (value2, value2_end) = spots
    lead, gap, tail = text[start:key], text[value_end:key2], text[value2_end:]
    middle, other, quote = text[key_end:value], text[key2_end:value2], ""
    if middle == f'{other}"' and gap.startswith('"'):
        middle, gap, quote = other, gap[1:], '"'
    # Without an end of its own, a call ends with its last value.
    ends = gap[: common_start(gap, tail)] if tail.strip() else gap[: len(gap) - common_end(lead, gap)]
    opening_tag = lead[len(lead) - common_end(lead, gap[len(ends) :]) :]
    if TEXT in ends or not ends.strip() or not middle:
        return None
    return lead[: len(lead) - len(opening_tag)], opening_tag, with_type(middle, other), ends, quote


def with_type(text: str, number: str) -> str:
    """What stands between a key and its value, with a field where it tells the value's type."""
    if text == number:
        return text
    size = next((at for at, (a, b) in enumerate(zip(text, number, strict=False)) if a != b), 0)
    while size and text[size - 1].isalpha():
        size -= 1
    rest = next((at for at, (a, b) in enumerate(zip(text[::-1], number[::-1], strict=False)) if a != b), 0)
    while rest and text[len(text) - rest].isalpha():
        rest -= 1
    told = text[size : len(text) - rest]
    field = "{string}" if told in ("true", "false") else "{type}"
    return text[:size] + field + text[len(text) - rest :]


def _counted(sample: Sample, behind_name: str) -> str:
    """What stands behind the name, with a field for a number that counts the calls."""
    first = sample.place(sample.two, ONE) if sample.two else None
    second = sample.place(sample.two, OTHER, first.end) if first else None
    if first is None or second is None:
        return behind_name
    for at, (a, b) in enumerate(zip(first.middle, second.middle, strict=False)):
        if a != b:
            return f"{behind_name[:at]}{{index}}{behind_name[at + 1 :]}" if a == "1" and b == "2" else behind_name
    return behind_name


_SHAPES: dict[Shape, Callable[[Sample, Place], Iterator[Fields]]] = {
    "json": _json,
    "named": _named,
    "pythonic": _pythonic,
    "tags": _tags,
}

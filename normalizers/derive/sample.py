"""Finds a call in what a template renders, and what stands around it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from normalizers.derive.probes import COUNT, FIND, PING, PLACE, SAID, TEXT, THOUGHT
from normalizers.derive.turns import MARK, Call, NotRendered, Turn, Turns, common_end, common_start

VALUE, OTHER_VALUE, NUMBER = "qxvalue", "qxother", 7007
ONE: Call = (FIND, {TEXT: VALUE})
OTHER: Call = (PING, {PLACE: OTHER_VALUE})
PAIR: Call = (FIND, {TEXT: VALUE, COUNT: NUMBER})

SIGNS = "<qx> & \n"

ID = "\ue000"
"""Stands for a call's id."""
_IDS = re.compile(rf"wxid0000\d|functions\.(?:{FIND}|{PING}):\d")

Shape = Literal["json", "named", "pythonic", "tags"]


@dataclass(frozen=True, slots=True)
class Place:
    """A call in a text."""

    shape: Shape
    start: int
    end: int
    value: Any = None
    """json: the object or array."""
    middle: str = ""
    """What stands between the name and the arguments."""
    quotes: tuple[str, str] | None = None
    """named: what stands around strings, if keys have no quotes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands around calls: `opening`, then each call between `begin` and `end`, then `closing`."""

    opening: str
    begin: str
    end: str
    closing: str


class Sample:
    """What one template renders for a few answers. A text is empty if the template refuses the answer."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.stops = MARK.findall(turns.end) or MARK.findall(self._turn((), SAID).end)
        """The marks that answers end with."""
        self.one = self._text([ONE])
        self.own_ids = FIND not in self.one
        """The tool's name stands in the call's id alone."""
        self.two = self._text([ONE, OTHER])
        self.pair = self._text([PAIR])
        self.said = self._text((), SAID)
        self.said_one = self._text([ONE], SAID)
        self.lead, _, self.tail = self.said.partition(SAID)
        """What stands around an answer's text."""
        self.signs = self._text([(FIND, {TEXT: SIGNS})])

    def thoughts(self) -> list[Turn]:
        """Turns with reasoning, that with text and a call first."""
        found = []
        for calls, content in (([ONE], SAID), ([ONE], None), ((), SAID)):
            turn = self._turn(calls, content, THOUGHT)
            if THOUGHT in turn.text:
                found.append(turn)
        return found

    def prompt(self) -> str:
        """The prompt of an answer without reasoning."""
        return self._turn([ONE]).prompt

    def between_turns(self) -> str:
        """What stands between calls and a text that is rendered behind them; empty if it stands before them."""
        place = self.place(self.said_one, ONE) if SAID in self.said_one else None
        if place is None or self.said_one.index(SAID) < place.start:
            return ""
        behind = self.said_one[place.end : self.said_one.index(SAID)]
        own = self.place(self.one, ONE)
        return behind[common_start(behind, self.one[own.end :]) :] if own else behind

    def _turn(self, calls: Sequence[Call], content: str | None = None, reasoning: str | None = None) -> Turn:
        try:
            turn = self._turns.turn(calls, content, reasoning)
        except NotRendered:
            return Turn("", "")
        return Turn(_IDS.sub(ID, turn.text), turn.prompt, turn.end)

    def _text(self, calls: Sequence[Call], content: str | None = None) -> str:
        return self._turn(calls, content).text

    # -- calls ---------------------------------------------------------------------------------

    def place(self, text: str, call: Call, at: int = 0) -> Place | None:
        """Where the call stands in the text from `at` on; None if it isn't found."""
        name, arguments = call
        (key, value), *_ = arguments.items()
        if not self.own_ids and (found := json_at(text, at, lambda it: _holds(it, name, key, value))):
            return Place("json", *found)
        token = ID if self.own_ids else name
        pin = text.find(key, at)
        start = text.rfind(token, at, max(pin, at))
        if pin < 0 or start < 0:
            return None
        after = start + len(token)
        if found := json_at(text, after, lambda it: it == arguments):
            return Place("named", start, found[1], middle=text[after : found[0]])
        quoted = rf"\s*\(\s*{re.escape(key)}\s*=\s*(['\"]?){re.escape(value)}\1\s*\)"
        if match := re.compile(quoted).match(text, after):
            return Place("pythonic", start, match.end())
        loose = rf"([^{{]*)\{{\s*{re.escape(key)}\s*:\s*(\S{{0,16}}?){re.escape(value)}(\S{{0,16}}?)\s*\}}"
        if match := re.compile(loose).match(text, after):
            return Place("named", start, match.end(), middle=match[1], quotes=(match[2], match[3]))
        end = text.find(value, pin)
        return Place("tags", start, end + len(value), middle=text[after:pin]) if end >= 0 else None

    def layouts(self, place: Place, ends_value: str = "") -> list[Layout]:
        """What may stand around calls, the likeliest first. ends_value: belongs to the call behind its place."""
        found = []
        for before in self._before(place):
            layout = self._layout(place, before, ends_value)
            if layout not in found:
                found.append(layout)
        return found

    def _before(self, place: Place) -> list[str]:
        """What the model writes before a call, without what belongs to text or reasoning."""
        one = self.one
        found = []
        beside = self.place(self.said_one, ONE) if SAID in self.said_one else None
        if beside is not None and SAID in self.said_one[: beside.start]:
            before = self.said_one[self.said_one.index(SAID) + len(SAID) : beside.start]
            tail = self.tail.strip()
            if tail and before.lstrip().startswith(tail):
                found.append(before.lstrip()[len(tail) :])
            found.append(before)
            found.append(before.lstrip()[len(self._stop(before)) :])
        found.append(one[min(common_start(self.lead, one), place.start) : place.start])
        if self.stops:
            found.append(one[: place.start])
        return found

    def _layout(self, place: Place, before: str, ends_value: str) -> Layout:
        behind = self._behind(self.one, place, ends_value)
        between, rest = self._between(ends_value)
        if between is None:
            listed = place.shape == "json" and isinstance(place.value, list)
            return Layout(before, "", "", behind) if listed else Layout("", before, behind, "")
        # The end of a call that also ends the turn was cut off.
        size = common_start(between, rest) or len(self._stop(between))
        end, begin = between[:size], between[size:]
        begin = begin[len(begin) - common_end(begin, before) :] if begin else ""
        return Layout(before[: len(before) - len(begin)], begin, end, rest[size:])

    def _stop(self, text: str) -> str:
        """The mark at the beginning of the text that also ends answers; empty if there is none."""
        return next((mark for mark in self.stops if text.startswith(mark)), "")

    def _between(self, ends_value: str) -> tuple[str | None, str]:
        """What stands between two calls, None if they are one array or aren't rendered; and behind the second."""
        first = self.place(self.two, ONE) if self.two else None
        if first is None or (first.shape == "json" and isinstance(first.value, list) and len(first.value) > 1):
            return None, ""
        second = self.place(self.two, OTHER, first.end)
        if second is None:
            return None, ""
        behind = self._behind(self.two, first, ends_value)
        between = behind[: len(behind) - (len(self.two) - second.start)]
        return between, self._behind(self.two, second, ends_value)

    @staticmethod
    def _behind(text: str, place: Place, ends_value: str) -> str:
        behind = text[place.end :]
        if ends_value and behind.lstrip().startswith(ends_value):
            return behind.lstrip()[len(ends_value) :]
        return behind


def json_at(text: str, at: int, fits: Callable[[Any], bool]) -> tuple[int, int, Any] | None:
    """The first JSON object or array from `at` on that fits: its place and value."""
    decoder = json.JSONDecoder()
    for bracket in re.compile(r"[{\[]").finditer(text, at):
        try:
            value, end = decoder.raw_decode(text, bracket.start())
        except ValueError:
            continue
        if fits(value):
            return bracket.start(), end, value
    return None


def _holds(value: Any, name: str, key: str, argument: str) -> bool:
    """Whether a JSON value is the call, or a list with it."""
    written = json.dumps(value)
    return name in written and key in written and argument in written

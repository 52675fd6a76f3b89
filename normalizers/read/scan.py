"""Finding literals and templates in text that may be cut anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

MAX_TEMPLATE = 2048
MAX_BLANKS = 256
"""How much white space is allowed where a reader must look past it to decide: more would be read again and again."""
_SPACE = re.compile(r"\s*")
_BLANKS = "\0"
"""In a template's source: some blanks, or none."""
_TAG_SIGN = re.compile(r"</?|=|>")
_WIDENED = {"<": "<\0", "</": "<\0/\0", "=": "\0=\0", ">": "\0>"}
_FIELDS = {
    "name": r"[^\s<>\"'`{}\[\]()\\]",
    "id": r"[^\s<>\"'`{}\[\]()]",
    "index": "[0-9]",
    "key": r"[^<>\"'\n]",
    "string": "[a-z]",
    "type": "[a-z]",
}


def skip_space(text: str, pos: int) -> int:
    if not text[pos : pos + 1].isspace():
        return pos
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


def partial_suffix(text: str, pos: int, literals: Iterable[str], longest: int) -> int:
    """Length of the longest end of ``text[pos:]`` that begins a literal."""
    size = len(text)
    for at in range(max(pos, size - longest + 1), size):
        tail = text[at:]
        if any(literal.startswith(tail) for literal in literals):
            return size - at
    return 0


class Found:
    """Where marks are in a text, so that a reader that goes through it mark by mark doesn't search the rest of it again
    and again for others."""

    __slots__ = ("_marks", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._marks: dict[str, tuple[int, int]] = {}
        """Mark → from where the text was searched, and where it is, -1 for nowhere."""

    def after(self, text: str, mark: str, pos: int) -> int:
        """As ``text.find(mark, pos)``."""
        if text is not self._text:
            self._text = text
            self._marks.clear()
        begun, at = self._marks.get(mark, (pos + 1, -1))
        if not (begun <= pos and (at < 0 or at >= pos)):
            at = text.find(mark, pos)
            self._marks[mark] = pos, at
        return at


def is_token(mark: str) -> bool:
    """Whether the mark is a special token by its looks, so that prose hardly holds it."""
    return mark[:1] == "[" or "|" in mark or "｜" in mark


class Wait(Exception):
    """The reader needs more text to decide."""


class Literals:
    """Literals, any of which may stand at one place."""

    __slots__ = ("_longest", "all")

    def __init__(self, literals: Iterable[str]) -> None:
        self.all = tuple(literals)
        self._longest = max(map(len, self.all), default=0)

    def begin(self, text: str, at: int, *, final: bool) -> str:
        """The literal that stands there; "" for none. Raises `Wait` while one still may."""
        if text.startswith(self.all, at):
            return next(literal for literal in self.all if text.startswith(literal, at))
        if not final and len(text) - at < self._longest and any(literal.startswith(text[at:]) for literal in self.all):
            raise Wait
        return ""


class Template:
    """Literal text with fields: ``<parameter={key}>``. A space matches any white space, or none.

    With `tag`, blanks may stand next to the signs of a tag, too: ``< parameter = city >``.
    """

    __slots__ = ("full", "lead", "open_ended", "partial")

    def __init__(self, source: str, *, tag: bool = False) -> None:
        atoms: list[str] = []
        full: list[str] = []
        pieces = re.split(r"(\{\w+\}|[ \0])", _widened(source) if tag else source)
        for at, piece in enumerate(pieces):
            # Possessive: runs of white space side by side would be shared out in every way. A line break needs its own.
            own = "" if "".join(pieces[at + 1 :]).lstrip(" \0")[:1].isspace() else "+"
            if piece == " " or piece == _BLANKS:
                space = (r"\s*" if piece == " " else r"[ \t]{0,8}") + own
                atoms.append(space)
                full.append(space)
            elif piece[:1] == "{" and piece[-1] == "}":
                field = piece[1:-1]
                chars = _FIELDS[field]
                some, begun = f"{chars}+", f"{chars}*"
                if field == "key":
                    some, begun = rf"{chars}*[^\s<>\"']|", rf"(?:{chars}*[^\s<>\"'])?"
                # White space around a field is layout.
                atoms += (r"\s*+", begun, r"\s*" + own)
                full.append(rf"\s*+(?P<{field}>{some})\s*{own}")
            else:
                atoms += map(re.escape, piece)
                full.append(re.escape(piece))
        nested = ""
        for atom in reversed(atoms):
            nested = f"{atom}(?:{nested})?" if nested else atom
        self.full = re.compile("".join(full))
        self.partial = re.compile(nested + r"\Z")
        self.open_ended = source.endswith(("}", "} "))
        self.lead = re.split(r"\{\w|[ ]", source, maxsplit=1)[0]


def _widened(source: str) -> str:
    """The source of a tag with `_BLANKS` where blanks may stand. Next to a field, its own white space is enough."""
    wide = _TAG_SIGN.sub(lambda sign: _WIDENED[sign.group()], source)
    return wide.replace("\0{", "{").replace("}\0", "}")


@cache
def templates(sources: tuple[str, ...], *, tags: bool = False) -> tuple[Template, ...]:
    return tuple(Template(source, tag=tags) for source in sources)


def match_template(choices: Sequence[Template], text: str, pos: int, *, final: bool) -> re.Match[str] | None:
    """The first template that matches at `pos`. Raises `Wait` while an earlier one may still match."""
    size = len(text)
    for template in choices:
        match = template.full.match(text, pos)
        if match and (final or not template.open_ended or match.end() < size):
            return match
        if not final and size - pos < MAX_TEMPLATE and (match or template.partial.match(text, pos)):
            raise Wait
    return None

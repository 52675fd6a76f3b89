"""Parses and writes the texts of an object's `.d` files. Strict: reports every mistake. Touches no file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

import msgspec

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.projection import is_component
from gateway.features.ctx.settings import UseCase

USE_CASES: tuple[UseCase, ...] = get_args(UseCase)

Capability = Literal[
    "chat",
    "stream",
    "session",
    "vision",
    "audio_input",
    "audio_output",
    "json_schema",
    "tool_call_syntax",
    "reasoning",
    "embedding",
    "rerank",
]
CAPABILITIES: tuple[Capability, ...] = get_args(Capability)

Session = Literal["none", "socket"]

PER_CALL = frozenset({"model", "messages", "stream", "stream_options", "n"})
"""Request fields that can't have a default."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

Kind = Literal[
    "Empty",
    "UnknownUseCase",
    "DuplicateUseCase",
    "EmptyDriver",
    "InvalidDriverName",
    "UnknownCapability",
    "NoValue",
    "InvalidKey",
    "DuplicateKey",
    "UnknownSession",
    "TooLong",
    "NotText",
    "NotAFile",
    "Unreadable",
    "Refused",
]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a file. line: from 1; 0 for the file as a whole."""

    kind: Kind
    line: int
    text: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{WORDS[self.kind]}" + (f" {self.text!r}" if self.text or self.line else "")


WORDS: dict[Kind, str] = {
    "Empty": "nothing stands in it",
    "UnknownUseCase": "unknown use",
    "DuplicateUseCase": "a second line for",
    "EmptyDriver": "a driver is missing for",
    "InvalidDriverName": "not a driver's name:",
    "UnknownCapability": "unknown capability",
    "NoValue": "no value for",
    "InvalidKey": "not a key that can stand here:",
    "DuplicateKey": "a second line for",
    "UnknownSession": "unknown session",
    "TooLong": "too long",
    "NotText": "not text",
    "NotAFile": "not a plain file",
    "Unreadable": "can't be read:",
    "Refused": "can't be used:",
}
"""What each mistake is, before the text that it is about."""


HOLDS = {
    "driver": f"one driver, or lines of {', '.join(USE_CASES)} as USE=DRIVER,DRIVER",
    "cap": f"one word per line, of {', '.join(CAPABILITIES)}",
    "default": f"lines KEY=VALUE, each a request's field once, none of {', '.join(sorted(PER_CALL))}",
    "session": "socket or none",
    "limits": "lines NAME=NUMBER above 0, of wall_seconds, model_calls, tool_calls, which may be 0, and output_tokens",
}
"""File → description of its format."""


class BadControlFile(ProviderInvalidRequest):
    """All mistakes of one file, and a description of its format."""

    def __init__(self, file: str, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        message = f"{file}: {'; '.join(map(str, self.mistakes))}"
        if file in HOLDS:
            message += f". It holds {HOLDS[file]}"
        super().__init__(message, code="bad_control_file")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if (stripped := line.strip()) and not stripped.startswith("#"):
            yield number, stripped


@dataclass(frozen=True, slots=True)
class Routes:
    """The driver file: the drivers for each use, in order of preference."""

    table: Mapping[UseCase, tuple[str, ...]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses one driver's name or a table `use=driver,driver`. Raises BadControlFile."""
        table: dict[UseCase, tuple[str, ...]] = {}
        mistakes: list[Mistake] = []
        lines = list(_lines(text))
        if not lines:
            raise BadControlFile("driver", [Mistake("Empty", 0, "")])
        single = len(lines) == 1 and "=" not in lines[0][1]
        for number, line in lines:
            use, equals, names = ("default", "=", line) if single else line.partition("=")
            use = use.strip()
            drivers = tuple(name.strip() for name in names.split(","))
            if use not in USE_CASES or not equals:
                mistakes.append(Mistake("UnknownUseCase", number, use))
            elif use in table:
                mistakes.append(Mistake("DuplicateUseCase", number, use))
            else:
                table[use] = drivers
            for name in drivers if equals else ():
                if not name:
                    mistakes.append(Mistake("EmptyDriver", number, use))
                elif not is_component(name):
                    mistakes.append(Mistake("InvalidDriverName", number, name))
        if mistakes:
            raise BadControlFile("driver", mistakes)
        return cls(table)

    def drivers(self, use: UseCase) -> tuple[str, ...]:
        """The drivers of the use, then those of `default`, without duplicates."""
        return tuple(dict.fromkeys((*self.table.get(use, ()), *self.table.get("default", ()))))

    def text(self) -> str:
        if self.table.keys() == {"default"} and len(self.table["default"]) == 1:
            return f"{self.table['default'][0]}\n"
        return "".join(f"{use}={','.join(self.table[use])}\n" for use in USE_CASES if use in self.table)


def parse_capabilities(text: str) -> tuple[Capability, ...]:
    """Parses one capability per line. Raises BadControlFile for an unknown one."""
    words = list(_lines(text))
    if mistakes := [Mistake("UnknownCapability", number, word) for number, word in words if word not in CAPABILITIES]:
        raise BadControlFile("cap", mistakes)
    return tuple(cast(Capability, word) for _, word in words)


def parse_defaults(text: str) -> dict[str, Any]:
    """Parses KEY=VALUE lines to request fields. A value that isn't JSON is text. Raises BadControlFile."""
    found: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for number, line in _lines(text):
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals:
            mistakes.append(Mistake("NoValue", number, key))
        elif not _KEY.fullmatch(key) or key in PER_CALL:
            mistakes.append(Mistake("InvalidKey", number, key))
        elif key in found:
            mistakes.append(Mistake("DuplicateKey", number, key))
        else:
            found[key] = _value(value.strip())
    if mistakes:
        raise BadControlFile("default", mistakes)
    return found


def defaults_text(fields: Mapping[str, Any]) -> str:
    return "".join(f"{key}={_written(value)}\n" for key, value in fields.items() if _KEY.fullmatch(key))


def parse_session(text: str) -> Session:
    """Raises BadControlFile."""
    word = text.strip()
    if word not in get_args(Session):
        raise BadControlFile("session", [Mistake("UnknownSession", 1, word)])
    return cast(Session, word)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text


def _written(value: Any) -> str:
    if isinstance(value, str) and value == value.strip() and "\n" not in value and _value(value) == value:
        return value
    return msgspec.json.encode(value).decode()

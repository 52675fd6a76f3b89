"""Events as text for people: what goes to standard output, and what to standard error. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gateway.features.ctx.events import (
    Delta,
    Done,
    Error,
    Event,
    ReasoningDelta,
    ToolCall,
    ToolResult,
)
from gateway.wire.text import printable, printable_json

DIM, PLAIN = "\x1b[2m", "\x1b[0m"

MAX_SHOWN = 400
"""Characters of a tool's arguments or result."""

Stream = Literal["out", "err"]


class Text:
    """Renders the events of a run.

    terminal: whether a person reads along: also shows reasoning, dimmed. calls: where tool calls go: they are part of a
    model's answer, and beside an agent's.
    """

    def __init__(self, *, terminal: bool, calls: Stream = "out") -> None:
        self._terminal = terminal
        self._calls: Stream = calls
        self._line_open = False

    def feed(self, event: Event) -> Iterator[tuple[Stream, str]]:
        match event:
            case Delta(text=text):
                yield self._say(text)
            case ReasoningDelta(text=text) if self._terminal:
                stream, shown = self._say(text)
                yield stream, f"{DIM}{shown}{PLAIN}"
            case ToolCall(name=name, arguments=arguments):
                yield from self._note(f"→ {name} {_short(bytes(arguments).decode())}", self._calls)
            case ToolResult(name=name, result=result):
                yield from self._result(name, bytes(result))
            case Error(code=code, message=message):
                yield from self._note(f"{code}: {message}", "err")
            case Done(status=status, reason=reason):
                yield from self._end()
                if status == "cancelled":
                    yield from self._note("(cancelled)", "err")
                elif reason == "length":
                    yield from self._note("(the answer was cut at the limit of its length: raise max_tokens)", "err")
                elif isinstance(reason, str):
                    yield from self._note(f"(the task reached its limit of {reason}: see .d/limits)", "err")
            case _:
                pass

    def _result(self, name: str, result: bytes) -> Iterator[tuple[Stream, str]]:
        yield from self._note(f"← {name} {_short(result.decode())}", self._calls)

    def _say(self, text: str) -> tuple[Stream, str]:
        shown = printable(text)
        self._line_open = not shown.endswith("\n")
        return "out", shown

    def _note(self, text: str, stream: Stream) -> Iterator[tuple[Stream, str]]:
        yield from self._end()
        yield stream, f"{printable(text)}\n"

    def _end(self) -> Iterator[tuple[Stream, str]]:
        if self._line_open:
            self._line_open = False
            yield "out", "\n"


class ToolText(Text):
    """Renders a tool's run: its result alone, as text where it has one."""

    def _result(self, name: str, result: bytes) -> Iterator[tuple[Stream, str]]:
        shown = tool_text(result)
        if '"error"' in shown[:20]:
            return  # the error event says it
        yield "out", shown if shown.endswith("\n") else f"{shown}\n"


def tool_text(result: bytes) -> str:
    """A tool's result for people: its `content` if that is a text, else indented JSON."""
    found = msgspec.json.decode(result)
    if isinstance(found, dict) and isinstance(content := found.get("content"), str) and not found.get("truncated"):
        return printable(content)
    return printable_json(msgspec.json.format(result, indent=2).decode())


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"

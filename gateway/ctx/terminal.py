"""Answers as text, and a small conversation on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from gateway.ctx.client import GENERIC, OK, Failure, connect, execute, receive, send

CONTROL = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""Replaces control characters, so that a model's text can't control the terminal."""

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Screen:
    """Writes text to stdout and errors to stderr; reasoning only to a terminal, dimmed."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._line_open = False

    def event(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "delta", "text": str(text)}:
                self.say(text)
            case {"type": "reasoning_delta", "text": str(text)} if self._terminal:
                sys.stdout.write(DIM)
                self.say(text)
                sys.stdout.write(PLAIN)
            case {"type": "tool_call", "name": name, "arguments": arguments}:
                self.end()
                self.say(f"→ {name} {json.dumps(arguments, ensure_ascii=False)}\n")
            case {"type": "error", "code": code, "message": message}:
                self.end()
                _note(f"{code}: {message}")
            case {"type": "done", "status": "cancelled"}:
                self.end()
                _note("(cancelled)")
            case {"type": "done"}:
                self.end()

    def say(self, text: str) -> None:
        sys.stdout.write(text.translate(CONTROL))
        sys.stdout.flush()
        self._line_open = not text.endswith("\n")

    def end(self) -> None:
        if self._line_open:
            self.say("\n")


def _note(text: str) -> None:
    sys.stderr.write(f"{text.translate(CONTROL)}\n")


def show(read: Callable[[], bytes]) -> None:
    """Shows events as they come. Raises BrokenPipeError if stdout is closed."""
    screen = Screen()
    for event in _events(read):
        screen.event(event)


def _events(read: Callable[[], bytes]) -> Iterator[dict[str, Any]]:
    rest = b""
    while data := read():
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def converse(root: str, name: str) -> int:
    """Asks line by line until Ctrl-D. With the object's socket it is one session, else each line stands alone.

    Returns the exit code. Raises Failure if the gateway can't be asked, BrokenPipeError if stdout or stderr is closed.
    """
    path = os.path.join(root, f"{name}.sock")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing in input()
    connection = connect(path) if os.path.exists(path) else None
    _note(f"{name.partition('/')[2]}; Ctrl-D leaves, Ctrl-C stops an answer")
    try:
        return _ask_lines(root, name, connection)
    finally:
        if connection is not None:
            connection.close()


def _ask_lines(root: str, name: str, connection: Any) -> int:
    for number in count(1):
        try:
            text = input("> ")
            while not text.strip():
                text = input("> ")
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            break
        if connection is None:
            try:
                execute(root, name, f"r{number}", text, show)
            except Failure as failure:
                _note(str(failure))
                return failure.exit_code
            continue
        request = {"op": "send", "id": f"m{number}", "session": "repl", "scope": "temp", "input": text}
        if not (send(connection, json.dumps(request).encode() + b"\n") and _turn(connection, f"m{number}")):
            _note("the gateway has gone")
            return GENERIC
    return OK


def _turn(connection: Any, client: str) -> bool:
    """Shows one answer. False if the connection ended first. An interrupt cancels the answer, a second one leaves."""
    screen = Screen()
    cancelled = False
    rest = b""
    while True:
        try:
            data = receive(connection)
        except KeyboardInterrupt:
            if cancelled:
                return False
            cancelled = True
            send(connection, json.dumps({"op": "cancel", "id": client}).encode() + b"\n")
            continue
        if not data:
            return False
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            screen.event(event)
            if event["type"] == "done" or (event["type"] == "error" and "run" not in event):
                return True

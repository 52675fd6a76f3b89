"""Answers as people read them, and a small conversation on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gateway.ctx.runner import GENERIC, OK, READ, Failure, connect, execute

CONTROL = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""A model's text doesn't get to steer the terminal."""

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Screen:
    """Text to stdout, errors to stderr; thoughts only on a terminal, dimmed."""

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
                _tell(f"{code}: {message}")
            case {"type": "done", "status": "cancelled"}:
                self.end()
                _tell("(cancelled)")
            case {"type": "done"}:
                self.end()

    def say(self, text: str) -> None:
        sys.stdout.write(text.translate(CONTROL))
        sys.stdout.flush()
        self._line_open = not text.endswith("\n")

    def end(self) -> None:
        if self._line_open:
            self.say("\n")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text.translate(CONTROL)}\n")


def show(receive: Callable[[], bytes]) -> None:
    """Events as they come. Raises BrokenPipeError where nobody reads them."""
    screen = Screen()
    for event in _events(receive):
        screen.event(event)


def _events(receive: Callable[[], bytes]) -> Iterator[dict[str, Any]]:
    rest = b""
    while data := receive():
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def converse(root: str, name: str) -> int:
    """Line by line until Ctrl-D: with the object's socket it remembers what was said, else each line stands alone."""
    path = os.path.join(root, f"{name}.sock")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing in input()
    connection = connect(path) if os.path.exists(path) else None
    _tell(f"{name.partition('/')[2]}; Ctrl-D leaves, Ctrl-C stops an answer")
    number = 0
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            return OK
        if not text.strip():
            continue
        number += 1
        if connection is None:
            try:
                execute(root, name, f"r{number}", text, show)
            except Failure as failure:
                _tell(str(failure))
                return failure.exit_code
            continue
        send = {"op": "send", "id": f"m{number}", "session": "repl", "scope": "temp", "input": text}
        connection.sendall(json.dumps(send).encode() + b"\n")
        if not _turn(connection, f"m{number}"):
            _tell("the gateway has gone")
            return GENERIC


def _turn(connection: Any, client: str) -> bool:
    """Shows one answer; False where the connection ended first. An interrupt cancels it, the second one leaves."""
    screen = Screen()
    cancelled = False
    rest = b""
    while True:
        try:
            data: bytes = connection.recv(READ)
        except KeyboardInterrupt:
            if cancelled:
                return False
            cancelled = True
            connection.sendall(json.dumps({"op": "cancel", "id": client}).encode() + b"\n")
            continue
        if not data:
            return False
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            screen.event(event)
            if event["type"] == "done" or (event["type"] == "error" and "run" not in event):
                return True

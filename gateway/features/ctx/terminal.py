"""A small conversation on a terminal: `python -m gateway.features.ctx.terminal ROOT OBJECT`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from gateway.features.ctx.client import GENERIC, OK, Failure, connect, execute, receive, send
from gateway.features.ctx.objects import ObjectName, Triple
from gateway.features.ctx.rendering import Text
from gateway.wire.events import Done, Error, Event, decode
from gateway.wire.text import printable

HELP = "Ctrl-D leaves, Ctrl-C stops an answer"


def converse(root: str, name: str, *, session: str = "repl", scope: str = "temp") -> int:
    """Asks line by line until Ctrl-D. With the object's socket it is one session, else each line stands alone.

    Returns the exit code. Raises Failure if the gateway can't be asked, BrokenPipeError if stdout or stderr is closed.
    """
    from pathlib import Path

    path = os.fspath(Triple.of(Path(root), ObjectName.parse(name)).sock)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing in input()
    connection = connect(path) if os.path.exists(path) else None
    _note(f"{name.partition('/')[2]}; {HELP}")
    try:
        if connection is None:
            return _stand_alone(root, name)
        return _Session(connection, session, scope).run()
    finally:
        if connection is not None:
            connection.close()


def _lines() -> Iterator[str]:
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            if (text := input("> ")).strip():
                yield text
    sys.stdout.write("\n")


def _stand_alone(root: str, name: str) -> int:
    for number, text in enumerate(_lines(), 1):
        try:
            fields = [name, name.rpartition("/")[2], f"r{number}", os.getcwd(), "ttt", "text", "--", text]
            execute(root, [os.fsencode(field) for field in fields])
        except Failure as failure:
            _note(str(failure))
            return failure.exit_code
    return OK


class _Session:
    """A session over the object's socket."""

    def __init__(self, connection: Any, session: str, scope: str) -> None:
        self._connection = connection
        self._session = session
        self._scope = scope
        self._rest = b""

    def run(self) -> int:
        numbers = count(1)
        for text in _lines():
            client = f"m{os.getpid()}-{next(numbers)}"
            request = {"op": "send", "id": client, "session": self._session, "scope": self._scope, "input": text}
            data = msgspec.json.encode(request | {"cwd": os.getcwd()}) + b"\n"
            if not (send(self._connection, data) and self._answer(client)):
                _note("the gateway has gone")
                return GENERIC
        return OK

    def _answer(self, client: str) -> bool:
        """Shows one answer. False if the connection ended first, or at a second interrupt; the first one cancels."""
        text = Text(terminal=sys.stdout.isatty())
        cancelled = False
        while True:
            try:
                data = receive(self._connection)
            except KeyboardInterrupt:
                if cancelled:
                    return False
                cancelled = True
                send(self._connection, msgspec.json.encode({"op": "cancel", "id": client}) + b"\n")
                continue
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for event in map(decode, lines):
                _show(text, event)
                if isinstance(event, Done) or (isinstance(event, Error) and event.run is msgspec.UNSET):
                    return True


def _show(text: Text, event: Event) -> None:
    for stream, shown in text.feed(event):
        to = sys.stdout if stream == "out" else sys.stderr
        to.write(shown)
        to.flush()


def _note(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")


def main() -> int:
    try:
        agent = sys.argv[2].startswith("agent/")
        session, scope = ("default", "private") if agent else ("repl", "temp")
        return converse(sys.argv[1], sys.argv[2], session=session, scope=scope)
    except Failure as failure:
        _note(str(failure))
        return failure.exit_code
    except (BrokenPipeError, KeyboardInterrupt):
        return GENERIC


if __name__ == "__main__":
    sys.exit(main())

"""A small conversation on a terminal: `python -m gateway.features.ctx.terminal ROOT OBJECT`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.features.ctx.client import GENERIC, OK, Failure, connect, execute, receive, send
from gateway.features.ctx.events import Done, Error, Event, Pong
from gateway.features.ctx.objects import ObjectName, Triple
from gateway.features.ctx.rendering import Text
from gateway.wire.text import printable

_decode: Callable[[bytes], Event | Pong] = msgspec.json.Decoder(Event | Pong).decode
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
        except KeyboardInterrupt:
            # Before the run could be cancelled, or after its end.
            _note("")
        except Failure as failure:
            _note(str(failure))
            return failure.exit_code
    return OK


class _Session:
    """A session over the object's socket.

    An interrupt is noted by a handler, wherever it comes: while the terminal is written to as well as while nothing
    happens. It cancels the answer; between answers, and the second time, it is a KeyboardInterrupt.
    """

    def __init__(self, connection: Any, session: str, scope: str) -> None:
        self._connection = connection
        self._session = session
        self._scope = scope
        self._rest = b""
        self._asked: str | None = None
        """The message that is being answered."""
        self._sent = False
        """Whether it is sent, so that a frame that cancels it can follow."""
        self._interrupts = 0

    def run(self) -> int:
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            return self._converse()
        except KeyboardInterrupt:
            if self._asked is not None:
                raise
            return OK
        finally:
            signal.signal(signal.SIGINT, before)

    def _converse(self) -> int:
        numbers = count(1)
        for text in _lines():
            self._interrupts, self._sent, self._asked = 0, False, f"m{os.getpid()}-{next(numbers)}"
            request = {"op": "send", "id": self._asked, "session": self._session, "scope": self._scope, "input": text}
            goes_on = send(self._connection, _frame(request | {"cwd": os.getcwd()}))
            self._sent = True
            if self._interrupts:
                self._cancel()
            if not (goes_on and self._answer() and self._settled()):
                _note("the gateway has gone")
                return GENERIC
            self._asked = None
        return OK

    def _interrupted(self, number: int, frame: object) -> None:
        self._interrupts += 1
        if self._asked is None or self._interrupts > 1:
            raise KeyboardInterrupt
        if self._sent:
            self._cancel()

    def _cancel(self) -> None:
        send(self._connection, _frame({"op": "cancel", "id": self._asked}))

    def _answer(self) -> bool:
        """Shows one answer. False if the connection ended first."""
        text = Text(terminal=sys.stdout.isatty())
        for event in self._events():
            # The answer was done before the frame that cancels it came: what that gets says nothing of the answer.
            late = self._interrupts and isinstance(event, Error) and event.run is UNSET and event.client_id is UNSET
            if isinstance(event, Pong) or late:
                continue
            _show(text, event)
            if isinstance(event, Done) or (isinstance(event, Error) and event.run is UNSET):
                return True
        return False

    def _settled(self) -> bool:
        """Reads what may still come for a frame that cancelled; it isn't the next answer's. False as in `_answer`."""
        if not self._interrupts:
            return True
        return send(self._connection, _frame({"op": "ping"})) and any(isinstance(one, Pong) for one in self._events())

    def _events(self) -> Iterator[Event | Pong]:
        """All that comes, until the connection ends."""
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                yield _decode(line)
            elif data := receive(self._connection):
                self._rest += data
            else:
                return


def _frame(request: dict[str, Any]) -> bytes:
    return msgspec.json.encode(request) + b"\n"


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

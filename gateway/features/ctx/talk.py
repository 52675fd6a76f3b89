"""One message, or a session's events, over an object's socket: for commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gateway.features.ctx.client import GENERIC, OK, Failure, connect, receive
from gateway.features.ctx.client import send as write
from gateway.features.ctx.errors import EXIT_CODES
from gateway.features.ctx.events import Done, Error, Event, Pong, decode
from gateway.features.ctx.rendering import Text
from gateway.wire.text import printable_json


def talk(path: Path, request: dict[str, Any], *, text: bool, follow: bool = False) -> int:
    """Sends a request and prints the events up to `done`; with `follow` until the gateway ends or is interrupted.

    Returns the exit code. Raises Failure if the gateway can't be asked. An interrupt cancels the run; a second ends.
    """
    connection = connect(os.fspath(path))
    shown = Text(terminal=sys.stdout.isatty())
    exit_code = OK
    try:
        write(connection, msgspec.json.encode(request) + b"\n")
        for line, event in _events(connection, request if not follow else None):
            if text:
                for stream, part in shown.feed(event):
                    to = sys.stdout if stream == "out" else sys.stderr
                    to.write(part)
                    to.flush()
            else:
                sys.stdout.write(f"{printable_json(line.decode())}\n")
                sys.stdout.flush()
            if isinstance(event, Error):
                exit_code = EXIT_CODES.get(event.code, GENERIC)
            elif isinstance(event, Done):
                exit_code = GENERIC if event.status == "cancelled" else exit_code
            if isinstance(event, Error) and event.run is msgspec.UNSET:
                return exit_code
            if isinstance(event, Done) and not follow:
                return exit_code
        return exit_code if follow else GENERIC
    finally:
        connection.close()


def _events(connection: Any, request: dict[str, Any] | None) -> Iterator[tuple[bytes, Event]]:
    """request: to cancel at the first interrupt; None: an interrupt ends the events."""
    rest = b""
    while True:
        try:
            data = receive(connection)
        except KeyboardInterrupt:
            if request is None:
                return
            write(connection, msgspec.json.encode({"op": "cancel", "id": request["id"]}) + b"\n")
            request = None
            continue
        if not data:
            raise Failure("EHOSTDOWN", "the gateway went away", 69)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            event = decode(line)
            if not isinstance(event, Pong):
                yield line, event

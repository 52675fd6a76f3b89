"""The runner's connection to the gateway: one input out, the canonical stream of events in.

Part of every call of an object, so it imports next to nothing. It writes JSON strings and never parses JSON.
`gateway.ctx.connection.RunnerConnection` is the other side.
"""

from __future__ import annotations

import os

# The modules behind `json`, `signal` and `socket`: importing those takes longer than the whole run.
from _json import encode_basestring_ascii as quoted
from _signal import SIGINT, signal  # type: ignore[import-not-found]
from _socket import AF_UNIX, SOCK_STREAM, socket

TYPE_CHECKING = False  # importing `typing` is slow, too
if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET = ".ctxgate/exec.sock"
READ = 64 * 1024
"""Bytes of one read."""

OK, GENERIC, USAGE, DENIED, UNAVAILABLE = 0, 1, 2, 13, 69
"""Exit codes."""


class Failure(Exception):
    """The gateway can't be asked, or didn't answer. code: the name of an errno."""

    def __init__(self, code: str, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code


def connect(path: str) -> socket:
    """Raises Failure."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.connect(path)
    except PermissionError:
        raise Failure("EACCES", f"permission denied: {path}", DENIED) from None
    except OSError:
        message = "the gateway isn't running, or serves another tree: start it with ctx.enabled: true (ctxgate serve)"
        raise Failure("EHOSTDOWN", message, UNAVAILABLE) from None
    return connection


def execute(root: str, name: str, id: str, input: str, show: Callable[[Callable[[], bytes]], None]) -> int:
    """Sends one input and shows the answer; returns the exit code.

    show: is given a function that returns the next piece of the stream, b"" at the end.
    Raises Failure if the gateway can't be asked or goes away. An interrupt cancels the run; a second one ends the
    process.
    """
    connection = connect(os.path.join(root, SOCKET))
    interrupts = 0

    def interrupted(number: int, frame: object) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            os._exit(GENERIC)
        send(connection, f'{{"op":"cancel","id":{quoted(id)}}}\n'.encode())

    answer = _Answer(connection)
    before = signal(SIGINT, interrupted)
    try:
        request = f'{{"op":"exec","object":{quoted(name)},"run":{quoted(id)},"input":{quoted(input)}}}\n'
        send(connection, request.encode())
        show(answer.read)
    finally:
        signal(SIGINT, before)
        connection.close()
    code = answer.exit_code.strip()
    if not code.isdigit():
        raise Failure("EHOSTDOWN", "the gateway went away before the answer was done", UNAVAILABLE)
    return int(code)


def send(connection: socket, data: bytes) -> bool:
    """Sends data; False if the gateway has closed the connection. What it said before that can still be read."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


def receive(connection: socket, size: int = READ) -> bytes:
    """The next bytes; b"" once the gateway has closed or reset the connection."""
    try:
        data: bytes = connection.recv(size)
    except ConnectionError:
        return b""
    return data


class _Answer:
    """The stream of events, and the exit code in the line behind it, which begins with NUL."""

    def __init__(self, connection: socket) -> None:
        self.exit_code = b""
        self._connection = connection
        self._ended = False

    def read(self) -> bytes:
        if self._ended:
            return b""
        data = receive(self._connection)
        events, end, code = data.partition(b"\0")
        if end:
            while not code.endswith(b"\n") and (more := receive(self._connection, 8)):
                code += more
            self.exit_code = code
        self._ended = bool(end) or not data
        return events

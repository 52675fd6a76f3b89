"""The runner's connection to the gateway: a command line out, what to print and the exit code in.

Part of every call of an object, so it imports next to nothing. The gateway reads the command line, so this file knows
no option of any object. `runner.c` does the same; `runner_connection.py` is the other side.

Both sides send frames: a letter, the payload's length in decimal, a newline, the payload.

    to the gateway    h  the call: fields with NUL between them      from the gateway  o  standard output
                      d  a piece of a file; empty at its end                           e  standard error
                      f  why a file can't be read                                      i  send this file (`-`: stdin)
                      c  cancel                                                        r  become this program
                                                                                       x  the exit code
"""

from __future__ import annotations

import os

# The modules behind `json`, `signal` and `socket`: importing those takes longer than the whole run.
from _json import encode_basestring_ascii as quoted
from _signal import SIG_DFL, SIGINT, default_int_handler, signal  # type: ignore[import-not-found]
from _socket import AF_UNIX, SOCK_STREAM, socket

SOCKET = ".ctxgate/exec.sock"
VERSION = b"1"
"""Of the frames."""
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

    def events(self, run: str) -> bytes:
        """The failure as the end of a stream of events."""
        id = quoted(run)
        error = f'{{"type":"error","run":{id},"code":"{self.code}","message":{quoted(str(self))}}}\n'
        return f'{error}{{"type":"done","run":{id},"status":"error"}}\n'.encode()


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


def execute(root: str, fields: list[bytes]) -> int:
    """Executes an object; returns the exit code. fields: of the call, see `gateway.features.ctx.runner_connection`.

    Raises Failure if the gateway can't be asked or goes away, OSError if the answer can't be written. An interrupt
    cancels the run; a second one ends the process.
    """
    connection = connect(os.path.join(root, SOCKET))
    try:
        call = b"\0".join((VERSION, *fields))
        send(connection, b"h%d\n%b" % (len(call), call))
        return _Answer(connection).read()
    finally:
        signal(SIGINT, default_int_handler)
        connection.close()


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


def write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class _Answer:
    """Follows the gateway's frames."""

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self._interrupts = 0

    def read(self) -> int:
        """Returns the exit code."""
        self._catch()
        rest = b""
        while data := receive(self._connection):
            rest += data
            while True:
                head, newline, payload = rest.partition(b"\n")
                if not newline:
                    break
                kind, size = head[:1], int(head[1:])
                if kind in b"oe":
                    # Written as it comes: an event may be long.
                    write(1 if kind == b"o" else 2, payload[:size])
                    if len(payload) < size:
                        rest = b"%b%d\n" % (kind, size - len(payload))
                        break
                elif len(payload) < size:
                    break
                elif kind == b"x":
                    return int(payload[:size])
                elif kind == b"i":
                    self._upload(payload[:size])
                elif kind == b"r":
                    signal(SIGINT, SIG_DFL)
                    program = payload[:size].split(b"\0")
                    os.execv(program[0], program)  # noqa: S606 - what the gateway names
                rest = payload[size:]
        raise Failure("EHOSTDOWN", "the gateway went away before the answer was done", UNAVAILABLE)

    def _upload(self, path: bytes) -> None:
        """Sends a file. Nothing runs meanwhile, so an interrupt ends the process."""
        signal(SIGINT, default_int_handler)
        try:
            descriptor = 0 if path == b"-" else os.open(path, os.O_RDONLY)
            while data := os.read(descriptor, READ):
                if not send(self._connection, b"d%d\n%b" % (len(data), data)):
                    break
            send(self._connection, b"d0\n")
            if descriptor:
                os.close(descriptor)
        except OSError as error:
            reason = (error.strerror or "").encode()
            send(self._connection, b"f%d\n%b" % (len(reason), reason))
        self._catch()

    def _catch(self) -> None:
        signal(SIGINT, self._interrupted)

    def _interrupted(self, number: int, frame: object) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            os._exit(GENERIC)
        send(self._connection, b"c0\n")

"""What the shebang of an object names: hands the input to the running gateway, and the canonical stream to stdout.

Executed with each call of an object, so it imports next to nothing: it knows how to write JSON strings and needs not
read any. (`gateway.ctx.connection.RunnerConnection` is the other side.)
"""

from __future__ import annotations

import os
import sys

# The modules behind `json`, `signal` and `socket`: these take longer to import than all the rest takes to run.
from _json import encode_basestring_ascii as quoted
from _signal import SIGINT, signal  # type: ignore[import-not-found]
from _socket import AF_UNIX, SOCK_STREAM, socket

TYPE_CHECKING = False  # so is `typing`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

SOCKET = ".ctxgate/exec.sock"
MAX_INPUT = 1024 * 1024
"""Bytes."""
READ = 64 * 1024

OK, GENERIC, USAGE, DENIED, UNAVAILABLE = 0, 1, 2, 13, 69

HELP = """\
usage: {name} [--text | --jsonl] [INPUT ...]

Asks the model once. INPUT, else standard input, is text, or JSON with "messages". Without any, on a terminal,
it is a conversation.

  --text    the answer as people read it (on a terminal that is so anyway)
  --jsonl   the stream of events, one JSON object a line (else that is so anyway)
  --        what follows is input

exit codes: 0 success, 1 generic error, 2 bad input, 13 permission denied, 69 gateway unavailable, 70 internal error
"""


def main(launcher: str, argv: list[str]) -> NoReturn:
    """argv: the object's path as it was executed, and its arguments. The tree is the one that `launcher` lies in."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
    if not argv:
        os.write(2, f"usage: {launcher} OBJECT [INPUT ...]\n".encode())
        os._exit(USAGE)
    # Nothing is left to be done at the interpreter's leisure.
    os._exit(run(root, argv[0], argv[1:]))


class Failure(Exception):
    def __init__(self, code: str, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code


def run(root: str, path: str, arguments: list[str]) -> int:
    """Executes an object. The exit code."""
    try:
        return _run(root, path, arguments)
    except (BrokenPipeError, KeyboardInterrupt):
        return GENERIC
    except OSError as error:  # a full disk, say: there is nowhere to tell it but here
        os.write(2, f"{os.path.basename(path)}: the answer can't be written: {error.strerror}\n".encode())
        return GENERIC


def _run(root: str, path: str, arguments: list[str]) -> int:
    text: bool | None = None
    while arguments and arguments[0] in ("--text", "--jsonl", "--help", "--"):
        option = arguments.pop(0)
        if option == "--help":
            os.write(1, HELP.format(name=os.path.basename(path)).encode())
            return OK
        if option == "--":
            break
        text = option == "--text"
    terminal = os.isatty(1)
    if text is None:
        text = terminal
    id = os.environ.get("CTX_RUN_ID") or "r1"
    try:
        name = _object(root, path)
        if not arguments and terminal and os.isatty(0):
            from gateway.ctx.terminal import converse

            return converse(root, name)
        return execute(root, name, id, _input(arguments), _shown if text else _written)
    except Failure as failure:
        if text:
            os.write(2, f"{os.path.basename(path)}: {failure}\n".encode(errors="replace"))
        else:
            told = f'"code":"{failure.code}","message":{quoted(str(failure))}'
            run_id = quoted(id)
            os.write(1, f'{{"type":"error","run":{run_id},{told}}}\n'.encode())
            os.write(1, f'{{"type":"done","run":{run_id},"status":"error"}}\n'.encode())
        return failure.exit_code


def execute(root: str, name: str, id: str, input: str, show: Callable[[Callable[[], bytes]], None]) -> int:
    """One input to its answer; `show` takes it piece by piece, b"" at the end. The exit code.

    Raises Failure where the gateway can't be asked. An interrupt cancels the run, a second one ends the process.
    """
    connection = connect(os.path.join(root, SOCKET))
    interrupts = 0

    def interrupted(number: int, frame: object) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            os._exit(GENERIC)
        connection.sendall(f'{{"op":"cancel","id":{quoted(id)}}}\n'.encode())

    request = f'{{"op":"exec","object":{quoted(name)},"run":{quoted(id)},"input":{quoted(input)}}}\n'
    last: list[bytes] = []

    def receive() -> bytes:
        if last:
            return b""
        try:
            data: bytes = connection.recv(READ)
        except ConnectionError:
            data = b""
        said, end, code = data.partition(b"\0")
        if not data:
            last.append(b"")
        elif end:
            while not code.endswith(b"\n") and (more := connection.recv(8)):
                code += more
            last.append(code)
            return said or b""
        return said

    before = signal(SIGINT, interrupted)
    try:
        try:  # noqa: SIM105 - contextlib would have to be imported
            connection.sendall(request.encode())
        except ConnectionError:
            pass  # what it said before it closed is still there
        show(receive)
    finally:
        signal(SIGINT, before)
        connection.close()
    code = last[0].strip() if last else b""
    if not code.isdigit():
        raise Failure("EHOSTDOWN", "the gateway went away before the answer was done", UNAVAILABLE)
    return int(code)


def connect(path: str) -> socket:
    """Raises Failure."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.connect(path)
    except PermissionError:
        raise Failure("EACCES", f"permission denied: {path}", DENIED) from None
    except OSError:
        message = "the gateway isn't running, or keeps another tree: start it with ctx.enabled: true (ctxgate serve)"
        raise Failure("EHOSTDOWN", message, UNAVAILABLE) from None
    return connection


def _object(root: str, path: str) -> str:
    """`kind/name`; symlinks are followed, as readlink decides the identity of an object."""
    found = os.path.realpath(path)
    if not found.startswith(root + "/") or not os.path.isfile(found):
        raise Failure("ENOENT", f"{path} is no object of {root}", GENERIC)
    return found[len(root) + 1 :]


def _input(arguments: list[str]) -> str:
    try:
        if arguments:
            data = " ".join(arguments).encode()
        else:
            parts = []
            size = 0
            while size <= MAX_INPUT and (part := os.read(0, READ)):
                parts.append(part)
                size += len(part)
            data = b"".join(parts)
        if len(data) > MAX_INPUT:
            raise Failure("EMSGSIZE", f"the input exceeds {MAX_INPUT} bytes", USAGE)
        return data.decode()
    except UnicodeError:
        raise Failure("EINVAL", "the input is not valid UTF-8", USAGE) from None
    except OSError as error:
        raise Failure("EINVAL", f"the input can't be read: {error.strerror}", USAGE) from None


def _written(receive: Callable[[], bytes]) -> None:
    while data := receive():
        while data:
            data = data[os.write(1, data) :]


def _shown(receive: Callable[[], bytes]) -> None:
    from gateway.ctx.terminal import show

    show(receive)


if __name__ == "__main__":
    main(sys.argv[0], sys.argv[1:])

"""The program that an object's shebang names. It hands the input to the running gateway and the events to stdout.

It runs with each call of an object, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys
from _json import encode_basestring_ascii as quoted  # importing `json` takes longer than the whole run

from gateway.ctx.client import GENERIC, OK, READ, USAGE, Failure, execute

TYPE_CHECKING = False  # importing `typing` is slow, too
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

MAX_INPUT = 1024 * 1024
"""Bytes."""
HELP = """\
usage: {name} [--text | --jsonl] [INPUT ...]

Asks the model once. The input is INPUT or standard input: text, or JSON with "messages". Without either, on a
terminal, starts a conversation.

  --text    print the answer as text (default on a terminal)
  --jsonl   print the stream of events, one JSON object a line (default elsewhere)
  --        treat the rest as input

exit codes: 0 success, 1 generic error, 2 bad input, 13 permission denied, 69 gateway unavailable, 70 internal error
"""


def main(launcher: str, argv: list[str]) -> NoReturn:
    """argv: the object's path as it was executed, and its arguments. `launcher` lies in the tree's `bin` folder."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
    if not argv:
        os.write(2, f"usage: {launcher} OBJECT [INPUT ...]\n".encode())
        os._exit(USAGE)
    # Skips the interpreter's shutdown, which has nothing left to do.
    os._exit(run(root, argv[0], argv[1:]))


def run(root: str, path: str, arguments: list[str]) -> int:
    """Executes an object; returns the exit code."""
    try:
        return _run(root, path, arguments)
    except (BrokenPipeError, KeyboardInterrupt):
        return GENERIC
    except OSError as error:  # a full disk, for example
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
        return execute(root, name, id, _input(arguments), _show if text else _write)
    except Failure as failure:
        if text:
            os.write(2, f"{os.path.basename(path)}: {failure}\n".encode(errors="replace"))
        else:
            fields = f'"code":"{failure.code}","message":{quoted(str(failure))}'
            run_id = quoted(id)
            os.write(1, f'{{"type":"error","run":{run_id},{fields}}}\n'.encode())
            os.write(1, f'{{"type":"done","run":{run_id},"status":"error"}}\n'.encode())
        return failure.exit_code


def _object(root: str, path: str) -> str:
    """The object's `kind/name`. Follows symlinks: the target decides which object it is."""
    found = os.path.realpath(path)
    if not found.startswith(root + "/") or not os.path.isfile(found):
        raise Failure("ENOENT", f"{path} is not an object of {root}", GENERIC)
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


def _write(receive: Callable[[], bytes]) -> None:
    while data := receive():
        while data:
            data = data[os.write(1, data) :]


def _show(receive: Callable[[], bytes]) -> None:
    from gateway.ctx.terminal import show

    show(receive)


if __name__ == "__main__":
    main(sys.argv[0], sys.argv[1:])

"""The program that an object's shebang names, where no compiler has made `runner.c` of it.

It runs with each call of an object, so it imports next to nothing.
"""

from __future__ import annotations

import os
import stat
import sys

from gateway.features.ctx.client import GENERIC, OK, USAGE, Failure, execute, write

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from typing import NoReturn

HELP = """\
usage: {name} [OPTION ...] [INPUT ...]

No gateway is running that could describe {name}: start it with ctxgate serve.
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
    name = os.path.basename(path)
    try:
        return _run(root, path, name, arguments)
    except (BrokenPipeError, KeyboardInterrupt):
        return GENERIC
    except OSError as error:  # a full disk, for example
        os.write(2, f"{name}: the answer can't be written: {error.strerror}\n".encode())
        return GENERIC


def _run(root: str, path: str, name: str, arguments: list[str]) -> int:
    streams = "".join(_stream(descriptor) for descriptor in range(3))
    if streams[1] == "x":
        os.write(2, f"{name}: standard output is closed\n".encode())
        return GENERIC
    id = os.environ.get("CTX_RUN_ID") or "r1"
    form = os.environ.get("CTX_FORMAT", "")
    try:
        fields = [_object(root, path), name, id, _folder(), streams, form, *arguments]
        return execute(root, [os.fsencode(field) for field in fields])
    except Failure as failure:
        if arguments[:1] in (["--help"], ["-h"]):
            write(1, HELP.format(name=name).encode())
            return OK
        if _as_text(arguments, form, streams):
            write(2, f"{name}: {failure}\n".encode(errors="replace"))
        else:
            write(1, failure.events(id))
        return failure.exit_code


def _stream(descriptor: int) -> str:
    """What a standard stream is, as `gateway.features.ctx.command.StandardStream` has it."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        # Otherwise the connection would get this number.
        os.open(os.devnull, os.O_RDWR)
        return "x"
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        return "p"
    if stat.S_ISREG(status.st_mode):
        return "f" if status.st_size else "o"
    return "t" if os.isatty(descriptor) else "o"


def _as_text(arguments: list[str], form: str, streams: str) -> bool:
    """The form of a failure, as the gateway would have chosen it."""
    text = form == "text" or (streams[1] == "t" and form != "jsonl")
    for words in (arguments, arguments[-1:] if "--" not in arguments else ()):
        for word in words:
            if word in ("-t", "--text"):
                text = True
            elif word == "--jsonl":
                text = False
            else:
                break
    return text


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _object(root: str, path: str) -> str:
    """The object's `kind/name`. Follows symlinks: the target decides which object it is."""
    found = os.path.realpath(path)
    if not found.startswith(root + "/") or not os.path.isfile(found):
        raise Failure("ENOENT", f"{path} is not an object of {root}", GENERIC)
    return found[len(root) + 1 :]


if __name__ == "__main__":
    main(sys.argv[0], sys.argv[1:])

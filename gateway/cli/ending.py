"""How a command ends, whatever its streams are: closed, full, or of an encoding that lacks some characters."""

from __future__ import annotations

import codecs
import errno
import json
import logging
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper

from gateway.cli.text import say

BROKEN_PIPE = 141
"""What shells report for a program that SIGPIPE ended."""
UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to stdout may fail with."""


def exit_quietly(run: Callable[[], int]) -> int:
    """Returns the exit code of `run` after flushing stdout, or BROKEN_PIPE once nobody reads stdout, as in
    `ctxgate formats | head -1`. Says what else went wrong, and has a code for it."""
    _prepare_streams()
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except Exception as error:
        from gateway.errors import InternalError, ProviderUnavailable

        if not isinstance(error, OSError) or error.errno not in UNWRITABLE:
            logging.basicConfig(format="ctxgate: %(message)s")
            logging.exception("this is a bug of ctxgate; please report it")
            return InternalError.exit_code
        # Without this, Python complains again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return BROKEN_PIPE
        say(f"ctxgate: can't write: {error.strerror}", file=sys.stderr)
        return ProviderUnavailable.exit_code


def _prepare_streams() -> None:
    """Stands in for those that were closed before the start, as daemons do. In order: each opens the lowest number."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error("as-json", _as_json)
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "as-json"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            # ASCII says only that nobody has set a locale.
            encoding = "utf-8" if stream is sys.stdin and codecs.lookup(stream.encoding).name == "ascii" else None
            stream.reconfigure(encoding=encoding, errors=errors)


def _as_json(error: UnicodeError) -> tuple[str, int]:
    """Writes the characters that an encoding lacks so that JSON stays JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end

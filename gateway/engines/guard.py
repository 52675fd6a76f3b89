"""Runs one engine process, and ends it when the gateway is gone, even after kill -9.

    python -I -S guard.py GRACE INPUT RULES ARGV...

INPUT is the descriptor of the engine's standard input, -1 for none. RULES say what the engine may do with files, in
JSON, as `confine` in `confine.py` wants them; "" leaves it all rights. The guard's own is a socket to the gateway. The
gateway closes its end to stop the engine, and loses it when it dies: then the engine's process group gets SIGTERM, and
SIGKILL after GRACE seconds. Over the same socket the guard reports `pid N`, and at the end `exit CODE`, negative for a
signal. Runs as a script, by path, on the standard library alone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

POLL_SECONDS = 60.0
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> NoReturn:
    grace, given, rules, argv = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, *ENDINGS):
        signal.signal(number, _note)

    # Block SIGTERM until the child has its own handlers: ours would swallow it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    pid = os.fork()
    if pid == 0:
        _become(argv, given, rules)
    # The gateway must learn when the engine closes its own copies of these.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if given >= 0:
        os.close(given)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    # The child does this too. Whichever comes first, the group exists before the gateway learns of it.
    with suppress(OSError):
        os.setpgid(pid, pid)
    _report(b"pid %d\n" % pid)
    deadline: float | None = None
    while True:
        left = POLL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        watched = [wake] if deadline is not None else [wake, 0]
        readable, _, _ = select.select(watched, [], [], left)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            # Processes that the engine started must not outlive it.
            _signal_group(pid, signal.SIGKILL)
            _report(b"exit %d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        asked = wake in readable and any(number in ENDINGS for number in os.read(wake, 64))
        if deadline is None:
            if asked or (0 in readable and not _read_gateway()):
                deadline = time.monotonic() + grace
                _signal_group(pid, signal.SIGTERM)
        elif time.monotonic() >= deadline:
            _signal_group(pid, signal.SIGKILL)
            deadline = time.monotonic() + POLL_SECONDS


def _note(number: int, frame: object) -> None:
    """Does nothing: the wakeup descriptor carries the signal into the loop."""


def _become(argv: list[str], given: int, rules: str) -> NoReturn:
    """In the child: becomes the engine, in its own process group."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGCHLD, *ENDINGS, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        source = given if given >= 0 else os.open(os.devnull, os.O_RDONLY)
        os.dup2(source, 0)
        if given >= 0:
            os.close(given)
        if rules:
            _confine(rules)
        os.execvp(argv[0], argv)  # noqa: S606 - there is no shell on purpose
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _confine(rules: str) -> None:
    """Raises OSError."""
    import json
    import runpy

    runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "confine.py"))["confine"](json.loads(rules))


def _read_gateway() -> bytes:
    """Empty once the gateway has closed its end."""
    try:
        return os.read(0, 64)
    except ConnectionError:
        return b""


def _report(line: bytes) -> None:
    try:
        os.write(0, line)
    except (BrokenPipeError, ConnectionError):
        # The gateway is gone; the loop is about to notice.
        return


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        # The group is gone; macOS raises PermissionError for a group of zombies.
        return


if __name__ == "__main__":
    main()

"""Holds one engine process and ends it when the gateway is gone, however it went.

    python -I -S guard.py GRACE ARGV...

The gateway holds the write end of our standard input: it closes when the gateway stops the engine and when the
gateway dies, kill -9 included. Then the engine's process group gets SIGTERM, and SIGKILL after GRACE seconds.
The engine's pid is announced on standard output; our exit code is the engine's, 128 + n for signal n.
Run as a script, by path: standard library alone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

POLL_SECONDS = 60.0


def main() -> int:
    grace, argv = float(sys.argv[1]), sys.argv[2:]
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _noted)

    pid = os.fork()
    if pid == 0:
        _become(argv)
    deadline: float | None = None
    while True:
        left = POLL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        watched = [wake] if deadline is not None else [wake, 0]
        readable, _, _ = select.select(watched, [], [], left)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            # What the engine itself started must not outlive it.
            _signal_group(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        told = wake in readable and any(number != signal.SIGCHLD for number in os.read(wake, 64))
        if deadline is None:
            if told or (0 in readable and not os.read(0, 64)):
                deadline = time.monotonic() + grace
                _signal_group(pid, signal.SIGTERM)
        elif time.monotonic() >= deadline:
            _signal_group(pid, signal.SIGKILL)
            deadline = time.monotonic() + POLL_SECONDS


def _noted(number: int, frame: object) -> None:
    """The wakeup descriptor carries the signal into the loop."""


def _become(argv: list[str]) -> None:
    """In the child: turns into the engine, in a process group of its own. Never returns."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.write(1, b'{"ctxgate": {"pid": %d}}\n' % os.getpid())
        os.execvp(argv[0], argv)  # noqa: S606 - there is no shell on purpose
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        # Gone already; macOS says PermissionError for a group of zombies.
        return


if __name__ == "__main__":
    sys.exit(main())

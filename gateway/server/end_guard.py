"""Ends the gateway if signals can't: C code that keeps Python's lock keeps Python's signal handlers from running, too.

    python -I -S end_guard.py PID SECONDS

Standard input is a pipe into which the system writes the number of each signal that the gateway gets. SECONDS after the
first that asks it to end, or soon after the second, the gateway is killed if it is still there. Runs as a script, by
path, on the standard library alone, and ends with the gateway.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

DOUBLED_SECONDS = 0.3
"""A signal that follows this soon is the same one: a terminal and a wrapper both pass on Ctrl-C."""
LAST_SECONDS = 1.0
"""For the gateway's own way to end at a second signal, or after its time."""
ENDINGS = (signal.SIGTERM, signal.SIGINT)
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG")


class EndGuard:
    """Of this process. Make it in the main thread; it listens to signals from then on, and guards once `start` ran."""

    def __init__(self, seconds: float) -> None:
        """seconds: from the first signal to the end."""
        self._seconds = seconds
        self.started = False
        self._pipe, told = os.pipe()
        os.set_blocking(told, False)
        # Python runs its handlers later than this is written: at the next event, a tenth of a second away at most.
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def start(self) -> None:
        """Starts the guard's process. From any thread."""
        import subprocess

        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(self._seconds)],
            stdin=self._pipe,
            stdout=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the gateway
        )
        os.close(self._pipe)
        self.started = True


def main() -> None:
    pid, seconds = int(sys.argv[1]), float(sys.argv[2])
    for number in (*ENDINGS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    first: float | None = None
    deadline: float | None = None
    while deadline is None or time.monotonic() < deadline:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([0], [], [], left)[0]:
            continue
        numbers = os.read(0, 64)
        if not numbers:
            return  # the gateway has ended
        if not any(number in ENDINGS for number in numbers):
            continue
        now = time.monotonic()
        if first is None or deadline is None:
            first, deadline = now, now + seconds + LAST_SECONDS
        elif now - first > DOUBLED_SECONDS:
            deadline = min(deadline, now + LAST_SECONDS)
    os.write(2, b"ctxgate: killed, since it didn't end when it was told to\n")
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()

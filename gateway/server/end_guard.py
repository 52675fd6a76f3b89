"""Ends the gateway if signals can't: C code that keeps Python's lock keeps Python's signal handlers from running, too.

A process of its own does it, since no thread of the gateway's would run either. It is a shell and not Python: it waits
as long as the gateway runs, and Python would take 10 MB for that.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

DOUBLED_SECONDS = 0.3
"""A signal that follows this soon is the same one: a terminal and a wrapper both pass on Ctrl-C."""
LAST_SECONDS = 1.0
"""For the gateway's own way to end at a second signal, or after its time."""
SCRIPT = Path(__file__).with_suffix(".sh")


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
        """Starts the guard's process. From any thread. Raises OSError where there is no /bin/sh."""
        import subprocess

        times = self._seconds + LAST_SECONDS, DOUBLED_SECONDS, LAST_SECONDS
        self._process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", SCRIPT, str(os.getpid()), *map(str, times)],
            stdin=self._pipe,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the gateway
        )
        os.close(self._pipe)
        self.started = True

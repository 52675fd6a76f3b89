"""Ends the gateway if signals can't: C code that holds the GIL also keeps Python's signal handlers from running.

A separate process does this, since no thread of the gateway would run either. It is a shell rather than Python: it runs
as long as the gateway, and Python would take 10 MB for that.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

DOUBLED_SECONDS = 0.3
"""A signal that follows this soon is the same one: a terminal and a wrapper both pass on Ctrl-C."""
LAST_SECONDS = 1.0
"""How long the gateway has to end by itself after a second signal, or after its time."""
SCRIPT = Path(__file__).with_suffix(".sh")


class EndGuard:
    """Guards this process. Create it in the main thread; it hears signals from then on, and guards after `start`."""

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

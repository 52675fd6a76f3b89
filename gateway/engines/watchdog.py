"""Judges whether an engine still works on its answers. No I/O: signs in, a verdict out."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct

WORKING = 0.05
"""Share of one core. An engine that uses less isn't computing."""


class Signs(Struct, frozen=True):
    """Signs of life of an engine at one moment.

    heard: when the last byte of an answer came. progress: a value that changes with each step of its work; None if the
    engine reports none. cpu: seconds of processor time that it has used; None if unknown.
    """

    heard: float
    progress: Hashable | None = None
    cpu: float | None = None


class Watchdog:
    """Judges one engine while answers are in flight.

    stall: seconds without any sign of life until it counts as stuck. patience: seconds for which using the processor is
    enough of a sign.
    """

    def __init__(self, stall: float, patience: float) -> None:
        self.limits(stall, patience)
        self._progressed: float | None = None
        self._worked = 0.0
        self._progress: Hashable | None = None
        self._cpu: tuple[float, float] | None = None

    def limits(self, stall: float, patience: float) -> None:
        """Changes the limits from now on."""
        self.stall = stall
        self.patience = max(patience, stall)

    def rest(self) -> None:
        """Starts over: no answer is in flight, or no client reads one."""
        self._progressed = self._progress = self._cpu = None

    def silent(self, now: float) -> float:
        """Seconds since the last progress."""
        return 0.0 if self._progressed is None else now - self._progressed

    def stuck(self, now: float, signs: Signs) -> str | None:
        """Why the engine counts as stuck; None if it doesn't."""
        if self._progressed is None:
            # The request may have come just now: bytes of earlier answers are no sign.
            self._progressed = self._worked = now
        if signs.heard > self._progressed:
            self._progressed = signs.heard
        if signs.progress is not None:
            if self._progress is not None and signs.progress != self._progress:
                self._progressed = now
            self._progress = signs.progress
        if signs.cpu is not None:
            if self._cpu is not None and signs.cpu - self._cpu[1] >= WORKING * (now - self._cpu[0]):
                self._worked = now
            self._cpu = (now, signs.cpu)
        silent = now - self._progressed
        if silent >= self.patience:
            return f"made no progress for {silent:.0f} s"
        if silent >= self.stall and now - self._worked >= self.stall:
            return f"did nothing for {silent:.0f} s though it had answers to give"
        return None

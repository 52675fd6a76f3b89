"""Whether an engine that has answers to give still works on them. No I/O: signs in, a verdict out."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct

WORKING = 0.05
"""Of one core: an engine that uses less computes nothing."""


class Signs(Struct, frozen=True):
    """What is seen of an engine at one moment.

    heard: when the last byte of an answer came. told: what it says of its progress, a value that changes with each
    step; None where it says nothing. cpu: seconds of processor time that it has used; None where unknown.
    """

    heard: float
    told: Hashable | None = None
    cpu: float | None = None


class Watchdog:
    """Judges one engine while it has answers to give.

    stall: seconds without any sign of life. patience: seconds in which using the processor is the only sign.
    """

    def __init__(self, stall: float, patience: float) -> None:
        self.limits(stall, patience)
        self._progress: float | None = None
        self._worked = 0.0
        self._told: Hashable | None = None
        self._cpu: tuple[float, float] | None = None

    def limits(self, stall: float, patience: float) -> None:
        """From now on."""
        self.stall = stall
        self.patience = max(patience, stall)

    def rest(self) -> None:
        """The engine has nothing to answer, or its clients don't listen."""
        self._progress = self._told = self._cpu = None

    def silent(self, now: float) -> float:
        """Seconds since the last progress."""
        return 0.0 if self._progress is None else now - self._progress

    def stuck(self, now: float, signs: Signs) -> str | None:
        """Why the engine counts as stuck, None while it doesn't."""
        if self._progress is None:
            # It may have been asked just now, whatever was heard before.
            self._progress = self._worked = now
        if signs.heard > self._progress:
            self._progress = signs.heard
        if signs.told is not None:
            if self._told is not None and signs.told != self._told:
                self._progress = now
            self._told = signs.told
        if signs.cpu is not None:
            if self._cpu is not None and signs.cpu - self._cpu[1] >= WORKING * (now - self._cpu[0]):
                self._worked = now
            self._cpu = (now, signs.cpu)
        silent = now - self._progress
        if silent >= self.patience:
            return f"made no progress for {silent:.0f} s"
        if silent >= self.stall and now - self._worked >= self.stall:
            return f"did nothing for {silent:.0f} s though it had answers to give"
        return None

"""How far a pull is, on a terminal or in a log."""

from __future__ import annotations

import time
from typing import Protocol, TextIO


class Progress(Protocol):
    def __call__(self, label: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes of the thing called `label` are there; total None: nobody knows."""
        ...


class Bar:
    """One line that is drawn over again on a terminal; elsewhere a line for each tenth."""

    WIDTH = 28
    INTERVAL = 0.1

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._label = ""
        self._start = (0.0, 0)
        self._drawn = 0.0
        self._tenth = -1

    def __call__(self, label: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if label != self._label:
            self.end()
            self._label, self._start, self._tenth, self._drawn = label, (now, done), -1, 0.0
        finished = total is not None and done >= total
        if self._terminal:
            if finished or now - self._drawn >= self.INTERVAL:
                self._drawn = now
                self._out.write("\r\x1b[K" + self._line(now, done, total))
                self._out.flush()
        elif total and done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            print(self._line(now, done, total), file=self._out, flush=True)

    def end(self) -> None:
        """Leaves the line as it is, so that other text can follow."""
        if self._terminal and self._drawn:
            self._out.write("\n")
            self._out.flush()
        self._label, self._drawn = "", 0.0

    def _line(self, now: float, done: int, total: int | None) -> str:
        start, before = self._start
        speed = (done - before) / (now - start) if now > start else 0.0
        rate = f"  {size(speed)}/s" if speed else ""
        if not total:
            return f"{self._label}  {size(done)}{rate}"
        filled = min(self.WIDTH, done * self.WIDTH // total)
        left = f"  {(total - done) / speed:.0f} s left" if speed and done < total else ""
        bar = "█" * filled + "░" * (self.WIDTH - filled)
        return f"{self._label}  {bar} {done * 100 // total:3d} %  {size(done)} of {size(total)}{rate}{left}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"

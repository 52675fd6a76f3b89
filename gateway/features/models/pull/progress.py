"""Reports how far a pull is: bars on a terminal, lines in a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from gateway.cli.text import say
from gateway.wire.text import printable

if TYPE_CHECKING:
    from rich.progress import TaskID


class Progress(Protocol):
    def __call__(self, label: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes of `label` have arrived; total None: unknown."""
        ...


@contextmanager
def progress_on(out: TextIO) -> Iterator[Progress]:
    """One bar per label if `out` is a terminal, else a line per tenth."""
    if not out.isatty():
        yield Lines(out)
        return
    # Imported here: only a terminal needs it.
    from rich import progress as rich
    from rich.console import Console

    bars = rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.TaskProgressColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
        console=Console(file=out, force_terminal=True),
        redirect_stdout=False,
        redirect_stderr=False,
    )
    tasks: dict[str, TaskID] = {}

    def report(label: str, done: int, total: int | None) -> None:
        if label in tasks:
            bars.update(tasks[label], completed=done, total=total)
        else:
            # Given at once, bytes from an earlier pull don't count as speed.
            tasks[label] = bars.add_task(printable(label), completed=done, total=total)
        bars.start()  # with the first report: the hub's client draws its own bars before that

    try:
        yield report
    finally:
        bars.stop()


class Lines:
    """One line per tenth of each label."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._tenths: dict[str, int] = {}

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if total and done * 10 // total > self._tenths.get(label, -1):
            self._tenths[label] = done * 10 // total
            line = f"{label}  {done * 100 // total:3d} %  {size(done)} of {size(total)}"
            say(line, file=self._out, flush=True)


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"

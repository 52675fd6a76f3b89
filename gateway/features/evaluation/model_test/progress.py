"""The progress of a run: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from gateway.cli.text import say
from gateway.features.evaluation.model_test import run
from gateway.features.evaluation.model_test.cases import Json

LINE_SECONDS = 10.0
BAR_WIDTH = 20


@contextlib.contextmanager
def shown(plan: run.RunPlan, samples: run.Samples, *, quiet: bool) -> Iterator[Callable[[Json], None]]:
    """Yields a function that takes each new sample. Writes to stderr, nothing if `quiet`."""
    if quiet:
        yield lambda sample: None
        return
    cases = len({task.case.id for task in plan.tasks})
    if cases != len(plan.tasks):
        say(
            f"model-test: {cases} cases, {len(plan.tasks)} answers: some cases are asked more than once",
            file=sys.stderr,
        )
    counter = _Counter(plan, samples)
    with _bar(counter) if sys.stderr.isatty() else _lines(counter) as advance:
        yield advance


class _Counter:
    """Counts answers by status. Those of an earlier run that this one resumes count too, but not for the rate."""

    def __init__(self, plan: run.RunPlan, samples: run.Samples) -> None:
        keys = {task.key for task in plan.tasks}
        done = [sample["status"] for key, sample in samples.done.items() if key in keys and sample["status"] != "error"]
        self.total = len(plan.tasks)
        self.done = self._resumed = len(done)
        self._counts = {status: done.count(status) for status in ("pass", "fail", "error")}
        self._began = time.monotonic()
        # One token tells how an answer begins, and isn't an answer.
        self._answers = plan.settings.max_tokens > 1

    def add(self, sample: Json) -> None:
        self._counts[sample["status"]] += 1
        self.done += 1

    @property
    def scores(self) -> str:
        if not self._answers:
            return f"err {self._counts['error']}"
        answered = self._counts["pass"] + self._counts["fail"]
        share = f"{100 * self._counts['pass'] / answered:.1f} %" if answered else "-"
        return f"pass {share} · err {self._counts['error']}"

    def line(self) -> str:
        fresh = self.done - self._resumed
        seconds = (time.monotonic() - self._began) / fresh if fresh else 0.0
        minutes, rest = divmod(round(seconds * (self.total - self.done)), 60)
        return f"{self.done}/{self.total} · {self.scores} · {seconds:.2f} s/answer · ETA {minutes:02}:{rest:02}"


@contextlib.contextmanager
def _bar(counter: _Counter) -> Iterator[Callable[[Json], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(BAR_WIDTH), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(counter.scores, total=counter.total, completed=counter.done)

        def advance(sample: Json) -> None:
            counter.add(sample)
            progress.update(task, completed=counter.done, description=counter.scores)

        yield advance


@contextlib.contextmanager
def _lines(counter: _Counter) -> Iterator[Callable[[Json], None]]:
    last = time.monotonic()

    def advance(sample: Json) -> None:
        nonlocal last
        counter.add(sample)
        if (now := time.monotonic()) - last >= LINE_SECONDS:
            last = now
            say(counter.line(), file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        say(counter.line(), file=sys.stderr, flush=True)

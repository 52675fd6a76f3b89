"""One run of a sample. cosmic-ray's database keeps each result as it comes, so that an interrupted run can go on."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkItem, WorkResult
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scripts.mutation import report
from scripts.mutation.choice import Recording
from scripts.mutation.draw import PACKAGES
from scripts.mutation.tools import ROOT
from scripts.mutation.trees import copy
from scripts.mutation.trial import Trials

PROCESSES = 2


@dataclass(frozen=True)
class Session:
    """path: of the database. tools: the folder with coverage, for the processes of the tests. budget: see `Trials`."""

    path: Path
    tools: Path
    specs: list[MutationSpec]
    packages: list[str]
    budget: float

    def run(self, *, resume: bool, retry: bool) -> None:
        """Tries the mutants and prints what they say.

        resume: those with a result keep it. retry: those that survived are tried again.
        """
        out, bar = Console(), Console(stderr=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            self.path.unlink(missing_ok=True)
        items = {_id(spec): spec for spec in self.specs}
        with use_db(self.path, WorkDB.Mode.create) as database:
            known = {item.job_id for item in database.work_items}
            database.add_work_items([WorkItem.single(job, spec) for job, spec in items.items() if job not in known])
            done = {
                job
                for job, result in database.results
                if job in items and not (retry and result.test_outcome is TestOutcome.SURVIVED)
            }
            left = {job: spec for job, spec in items.items() if job not in done}
            if left:
                self._try(database, left, len(done), bar)
            results = [(items[job], result) for job, result in database.results if job in items]
        report.survivors(out, results)
        report.scores(out, self.packages, results)

    def _try(self, database: WorkDB, left: dict[str, MutationSpec], done: int, console: Console) -> None:
        with TemporaryDirectory(prefix="ctxgate-mutants-") as folder:
            self._try_in(Path(folder), database, left, done, console)

    def _try_in(
        self, folder: Path, database: WorkDB, left: dict[str, MutationSpec], done: int, console: Console
    ) -> None:
        recording = Recording(PACKAGES.values())
        if stale := recording.stale():
            console.print(f"recording which lines {len(stale)} test files run; all of them take minutes")
            for failed in recording.record(copy(folder / "recording", self.tools), stale, PROCESSES):
                console.print(f"didn't pass without a mutant: {failed}", markup=False, soft_wrap=True)
        free, passing = SimpleQueue[Trials](), dict[str, bool]()
        for worker in range(PROCESSES):
            free.put(Trials(copy(folder / str(worker), self.tools), recording, worker, self.budget, passing))

        def attempt(spec: MutationSpec) -> WorkResult:
            trials = free.get()
            try:
                return trials.attempt(spec)
            finally:
                free.put(trials)

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
        with Progress(*columns, *times, console=console) as progress, ThreadPoolExecutor(PROCESSES) as pool:
            task, survived = progress.add_task("0 survived", total=done + len(left), completed=done), 0
            # By their ids, which are hashes: a run that is interrupted has seen something of every package.
            jobs = {pool.submit(attempt, spec): job for job, spec in sorted(left.items(), key=lambda item: item[0])}
            try:
                for future in as_completed(jobs):
                    result = future.result()
                    database.set_result(jobs[future], result)
                    survived += not result.is_killed
                    progress.update(task, advance=1, description=f"{survived} survived")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            self._confirm(database, free.get())

    def _confirm(self, database: WorkDB, trials: Trials) -> None:
        """Tries the mutants again whose test fails without them, too: a source may have changed since it passed."""
        specs = {_id(spec): spec for spec in self.specs}
        while True:
            caught = {job: result.output for job, result in database.results if job in specs and result.is_killed}
            failing = trials.failing({str(output) for output in caught.values()})
            if not failing:
                return
            for job in [job for job, output in caught.items() if output in failing]:
                database.set_result(job, trials.attempt(specs[job]))


def _id(spec: MutationSpec) -> str:
    """Of the fault in just this version of its module."""
    source = (ROOT / spec.module_path).read_bytes()
    text = f"{spec.module_path} {spec.operator_name} {spec.occurrence} {hashlib.sha256(source).hexdigest()}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]

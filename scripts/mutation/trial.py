"""Puts one fault into a copy of the code and runs the tests that can notice it."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from scripts.mutation.choice import Recording, Timed, batches, choose
from scripts.mutation.draw import PACKAGES, mutated
from scripts.mutation.trees import Tree

START_SECONDS = 60.0
"""Allowed for the start of pytest; a test may take `SLOWER` times as long as without the mutant."""
SLOWER = 5
STEADY_SECONDS = 0.5
"""A test that takes longer waits for processes, and may fail on a busy machine: it has to notice a mutant twice."""


Planted = Callable[[], AbstractContextManager[None]]
"""Within it, the mutant is in the tree."""


def package_of(spec: MutationSpec) -> str:
    path = spec.module_path.as_posix()
    return next(package for package, folder in PACKAGES.items() if path.startswith(f"{folder}/"))


class Trials:
    """Tries mutants in one tree, one after the other. Not for two threads at once.

    budget: a mutant that so many seconds of tests miss counts as a survivor. passing: whether each test that noticed
    one passes without, for all trials together; who tries them asks `failing` about those that it doesn't know.
    """

    def __init__(self, tree: Tree, recording: Recording, worker: int, budget: float, passing: dict[str, bool]) -> None:
        self._budget = budget
        self._tree = tree
        self._recording = recording
        self._passing = passing
        # Ports of tests/ports.py that no ordinary run of the suite takes.
        self._worker = f"gw{9 - worker}"

    def attempt(self, spec: MutationSpec) -> WorkResult:
        """The outcome; `output` says what noticed, or how many tests didn't."""
        path = self._tree.root / spec.module_path
        source = path.read_text("utf-8")
        code = mutated(source, spec)
        diff = "\n".join(
            difflib.unified_diff(
                source.splitlines(),
                code.splitlines(),
                f"a/{spec.module_path.as_posix()}",
                f"b/{spec.module_path.as_posix()}",
                lineterm="",
            )
        )
        lines = self._recording.lines(spec.module_path.as_posix())
        tests = choose(self._recording, lines, source, package_of(spec), path.stem, spec.start_pos[0])
        outcome, output = self._judge(tests, lambda: _planted(path, code))
        return WorkResult(WorkerOutcome.NORMAL, output, outcome, diff)

    def _judge(self, tests: list[Timed], planted: Planted) -> tuple[TestOutcome, str]:
        if not tests:
            return TestOutcome.SURVIVED, "no test runs this line"
        ran = 0
        for batch in batches(tests, self._budget):
            noticed = self.noticed_by(batch, planted)
            if noticed is not None:
                return TestOutcome.KILLED, noticed
            ran += len(batch)
        return TestOutcome.SURVIVED, f"{ran} of {len(tests)} tests missed it"

    def noticed_by(self, tests: list[Timed], planted: Planted) -> str | None:
        """What notices the mutant, and only the mutant: an id, or why pytest ended early."""
        while tests:
            with planted():
                status, failed = self._run(tests)
            if failed is not None:
                at = next(place for place, test in enumerate(tests) if test.id == failed)
                if self._tells(tests[at], planted):
                    return failed
                tests = tests[at + 1 :]
            elif status is None:
                return "time limit" if self._run(tests)[0] is not None else None
            elif status not in (0, 5):
                return "the tests can't be imported" if self._run(tests[:1])[0] == 0 else None
            else:
                return None
        return None

    def _tells(self, test: Timed, planted: Planted) -> bool:
        """Whether a test that failed does so because of the mutant."""
        if test.seconds >= STEADY_SECONDS:
            with planted():
                if self._run([test])[0] == 0:
                    return False
            if test.id not in self._passing:
                self._passing[test.id] = self._run([test])[0] == 0
        return self._passing.get(test.id, True)

    def failing(self, noticed: set[str]) -> set[str]:
        """Those of the tests that fail without a mutant, so that they say nothing of one."""
        tests = [test for id, test in self._recording.tests.items() if id in noticed and id not in self._passing]
        self._passing |= dict.fromkeys((test.id for test in tests), True)
        found = set[str]()
        while tests:
            _, failed = self._run(tests)
            if failed is None:
                break
            found.add(failed)
            tests = tests[[test.id for test in tests].index(failed) + 1 :]
        self._passing |= dict.fromkeys(found, False)
        return found

    def _run(self, tests: list[Timed]) -> tuple[int | None, str | None]:
        """pytest's exit status, None past the limit; and the test that failed."""
        folder = self._tree.work
        chosen, noticed = folder / "chosen.json", folder / "noticed"
        chosen.write_text(json.dumps([test.id for test in tests]), "utf-8")
        noticed.unlink(missing_ok=True)
        files = list(dict.fromkeys(test.id.partition("::")[0] for test in tests))
        environment = {
            "MUTANTS_CHOSEN": str(chosen),
            "MUTANTS_NOTICED": str(noticed),
            "PYTEST_XDIST_WORKER": self._worker,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        plugins = ["-p", "scripts.mutation.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
        limit = START_SECONDS + SLOWER * sum(test.seconds for test in tests)
        argv = ["-m", "pytest", "-q", "-x", "--tb=short", *plugins, *files]
        status = self._tree.run(argv, environment, folder / "log", limit)
        return status, noticed.read_text("utf-8") if noticed.is_file() else None


@contextmanager
def _planted(path: Path, code: str) -> Iterator[None]:
    """Puts a mutant in the place of its module."""
    source, stat = path.read_bytes(), path.stat()
    path.write_text(code, "utf-8")
    try:
        yield
    finally:
        path.write_bytes(source)
        # As before: else the compiled module would count as old.
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

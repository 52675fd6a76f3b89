"""Puts one fault into a copy of the code and runs the tests that can notice it."""

from __future__ import annotations

import difflib
import json
import os

from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from scripts.mutation.choice import Recording, Timed, batches, choose, statement
from scripts.mutation.draw import PACKAGES, mutated
from scripts.mutation.trees import Tree

START_SECONDS = 60.0
"""Allowed for the start of pytest; a test may take `SLOWER` times as long as without the mutant."""
SLOWER = 5


def package_of(spec: MutationSpec) -> str:
    path = spec.module_path.as_posix()
    return next(package for package, folder in PACKAGES.items() if path.startswith(f"{folder}/"))


class Trials:
    """Tries mutants in one tree, one after the other. Not for two threads at once.

    budget: a mutant that so many seconds of tests miss counts as a survivor.
    """

    def __init__(self, tree: Tree, recording: Recording, worker: int, budget: float) -> None:
        self._budget = budget
        self._tree = tree
        self._recording = recording
        # Ports of tests/ports.py that no ordinary run of the suite takes.
        self._worker = f"gw{9 - worker}"

    def attempt(self, spec: MutationSpec) -> WorkResult:
        """The outcome; `output` says what noticed, or how many tests didn't."""
        path = self._tree.root / spec.module_path
        source, stat = path.read_text("utf-8"), path.stat()
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
        tests = choose(self._recording, lines, source, package_of(spec), *statement(source, spec.start_pos[0]))
        path.write_text(code, "utf-8")
        try:
            outcome, output = self._judge(tests)
        finally:
            path.write_text(source, "utf-8")
            # As before: else the compiled module would count as old.
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return WorkResult(WorkerOutcome.NORMAL, output, outcome, diff)

    def _judge(self, tests: list[Timed]) -> tuple[TestOutcome, str]:
        if not tests:
            return TestOutcome.SURVIVED, "no test runs this line"
        ran = 0
        for batch in batches(tests, self._budget):
            status, noticed = self._run(batch)
            if noticed is not None:
                return TestOutcome.KILLED, noticed
            if status not in (0, 5):
                return TestOutcome.KILLED, "the tests can't be imported" if status is not None else "time limit"
            ran += len(batch)
        return TestOutcome.SURVIVED, f"{ran} of {len(tests)} tests missed it"

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

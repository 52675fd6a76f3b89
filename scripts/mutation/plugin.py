"""The part of scripts/mutants that runs inside pytest: records what each test runs, or runs chosen tests in order.

Environment: MUTANTS_RECORD is the folder that says which test runs (`Tree`); its file `tests` gets a line of JSON for
each. MUTANTS_CHOSEN is the file with the ids to
run, MUTANTS_NOTICED the file for the id of the first that fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings


def pytest_configure(config: pytest.Config) -> None:
    # The same examples for each mutant, and none made smaller: that a test fails is all that counts.
    quick = settings(
        settings.get_profile("untimed"), derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.register_profile("mutants", quick)
    settings.load_profile("mutants")
    if record := os.environ.get("MUTANTS_RECORD"):
        config.pluginmanager.register(Recorder(Path(record)))
    if chosen := os.environ.get("MUTANTS_CHOSEN"):
        config.pluginmanager.register(
            Chosen(json.loads(Path(chosen).read_text("utf-8")), Path(os.environ["MUTANTS_NOTICED"]))
        )


class Recorder:
    """Names each test to coverage, here and in the processes that it starts, and records how long it took."""

    def __init__(self, record: Path) -> None:
        self._record = record / "tests"
        self._current = record / str(os.getpid())
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        from coverage import Coverage

        measure: Any = Coverage.current()
        self._current.write_text(item.nodeid, "utf-8")
        if measure is not None:
            measure.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._current.write_text("", "utf-8")
            if measure is not None:
                measure.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ:
            return
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            passed = report.nodeid not in self._failed
            with self._record.open("a", encoding="utf-8") as file:
                file.write(json.dumps([report.nodeid, round(self._seconds[report.nodeid], 4), passed]) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        from coverage import Coverage

        # The workers of pytest-xdist leave without the end that coverage waits for.
        measure = Coverage.current()
        if measure is not None:
            measure.stop()
            measure.save()


class Chosen:
    """Runs these tests alone, in this order."""

    def __init__(self, ids: list[str], noticed: Path) -> None:
        self._noticed = noticed
        self._place = {nodeid: place for place, nodeid in enumerate(ids)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if item.nodeid not in self._place]
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place), key=lambda item: self._place[item.nodeid]
        )
        config.hook.pytest_deselected(items=others)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._noticed.exists():
            self._noticed.write_text(report.nodeid, "utf-8")

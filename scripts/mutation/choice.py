"""Which tests can notice a fault: those that coverage saw running its line."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import accumulate
from math import log
from pathlib import Path
from typing import Any

from scripts.mutation.tools import ROOT
from scripts.mutation.tools import cache as cache_folder
from scripts.mutation.trees import Tree

# Where no test ran a fault's lines in a process that coverage sees: the folders to try.
FOLDERS = {
    "core": ("request", "gateway", "operations", "engines"),
    "request": ("request", "gateway", "formats"),
    "answer": ("gateway", "backends", "formats"),
    "wire": ("gateway", "api", "backends"),
    "engines": ("engines", "prompts", "operations", "cli"),
    "normalizers": ("normalizers", "formats"),
}
# They test what no mutant touches, start a whole gateway for it, and take longer than all the rest.
LEFT_OUT = ("benchmarks", "clients", "model_test", "pull", "readme", "store", "tiny_model", "tools")

LEAST_TESTS = 10
"""Tests for one mutant, whatever the budget."""
FIRST_SECONDS = 2.0
"""Of the likeliest tests, which run in a process of their own: most mutants end there, and no other file is read."""

_COVERAGE = """\
[run]
parallel = true
sigterm = true
data_file = {data}
source = {sources}
context = ${{MUTANTS_CONTEXT-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
"""


@dataclass(frozen=True)
class Timed:
    """A test, and the seconds that it takes without a mutant."""

    id: str
    seconds: float


class Recording:
    """Which test runs which lines, kept between runs: only new and changed test files are recorded anew.

    The lines of a changed source are found again by their text. What else changed can make the choice of tests worse,
    never the verdict: a test counts only if it fails with the mutant and passes without.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self._sources = tuple(sources)
        self._folder = cache_folder() / "recording"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._index = self._folder / "index.json"
        # For each test file: its digest, the recording that has its lines, its tests with their seconds.
        self._files: dict[str, Any] = json.loads(self._index.read_text("utf-8")) if self._index.is_file() else {}
        self._lines: dict[str, dict[int, set[str]]] = {}

    def stale(self) -> list[str]:
        found = []
        for path in sorted((ROOT / "tests").rglob("test_*.py")):
            name = path.relative_to(ROOT).as_posix()
            if path.parts[len(ROOT.parts) + 1] not in LEFT_OUT and self._files.get(name, {}).get("digest") != _file(
                path
            ):
                found.append(name)
        return found

    def record(self, tree: Tree, files: list[str], processes: int) -> list[str]:
        """Runs these files under coverage; the tests that failed, which no mutant runs."""
        name = f"{max((int(path.stem) for path in self._folder.glob('*.coverage')), default=-1) + 1:03}"
        tree.recording.mkdir()
        sources = "".join(f"\n    {tree.root / source}" for source in self._sources)
        rc = _COVERAGE.format(data=tree.recording / "data", sources=sources)
        (tree.recording / "rc").write_text(rc, "utf-8")
        environment = {"MUTANTS_RECORD": str(tree.recording), "PYTHONDONTWRITEBYTECODE": ""}
        pytest = ["-m", "pytest", "-q", "-p", "scripts.mutation.plugin", "-p", "no:cacheprovider"]
        spread = ["-n", str(processes), "--dist", "loadfile", "-m", "not slow and not clients"]
        log = tree.work / "log"
        status = tree.run([*pytest, *spread, *files], environment, log, None)
        if status not in (0, 1, 5):
            raise SystemExit(f"the tests don't run: see {log}")
        return self._keep(name, tree, files)

    def _keep(self, name: str, tree: Tree, files: list[str]) -> list[str]:
        from coverage import Coverage

        work = tree.recording
        combined = Coverage(data_file=str(self._folder / f"{name}.coverage"), config_file=False)
        combined.combine([str(path) for path in work.glob("data.*")], keep=True)
        combined.save()
        for path in self._modules(tree.root):
            kept = self._folder / name / path.relative_to(tree.root)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, kept)
        tests: dict[str, list[Any]] = {}
        failed = []
        for line in (work / "tests").read_text("utf-8").splitlines() if (work / "tests").is_file() else ():
            nodeid, seconds, passed = json.loads(line)
            if passed:
                tests.setdefault(nodeid.partition("::")[0], []).append((nodeid, seconds))
            else:
                failed.append(nodeid)
        for file in files:
            digest = _file(tree.root / file)
            self._files[file] = {"digest": digest, "recording": name, "tests": tests.get(file, [])}
        self._index.write_text(json.dumps(self._files), "utf-8")
        for path in self._folder.glob("*.coverage"):
            if all(file["recording"] != path.stem for file in self._files.values()):
                path.unlink()
                shutil.rmtree(self._folder / path.stem, ignore_errors=True)
        return failed

    @cached_property
    def tests(self) -> dict[str, Timed]:
        here = (file for name, file in self._files.items() if (ROOT / name).is_file())
        return {row[0]: Timed(*row) for file in here for row in file["tests"]}

    def kinship(self, words: set[str]) -> dict[str, float]:
        """By test file: how many of these words it has, each counted the more the fewer files have it."""
        found: dict[str, float] = {}
        for word in words:
            having = [file for file, known in self._vocabulary.items() if word in known]
            for file in having:
                found[file] = found.get(file, 0.0) + log(len(self._vocabulary) / len(having))
        return found

    @cached_property
    def _vocabulary(self) -> dict[str, set[str]]:
        files = {test.partition("::")[0] for test in self.tests}
        return {file: _words((ROOT / file).read_text("utf-8")) for file in files}

    def lines(self, module: str) -> dict[int, set[str]]:
        """The tests that ran each line of a module."""
        if module not in self._lines:
            self._lines[module] = self._read(module)
        return self._lines[module]

    def _read(self, module: str) -> dict[int, set[str]]:
        from coverage import CoverageData

        found: dict[int, set[str]] = {}
        after = (ROOT / module).read_text("utf-8")
        for path in sorted(self._folder.glob("*.coverage")):
            before = self._folder / path.stem / module
            valid = {row[0] for file in self._files.values() if file["recording"] == path.stem for row in file["tests"]}
            if not valid or not before.is_file():
                continue
            data = CoverageData(basename=str(path))
            data.read()
            now = moved(before.read_text("utf-8"), after)
            for measured in data.measured_files():
                if measured.endswith(f"/tree/{module}"):
                    for line, contexts in data.contexts_by_lineno(measured).items():
                        for each in now.get(line, ()):
                            found.setdefault(each, set()).update(valid.intersection(self.tests, contexts))
        return found

    def _modules(self, root: Path) -> Iterable[Path]:
        return (path for source in self._sources for path in (root / source).rglob("*.py"))


def moved(before: str, after: str) -> dict[int, range]:
    """Where each line of a module is now; for lines that changed, all that stand in their place."""
    found: dict[int, range] = {}
    matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    for tag, start, end, first, last in matcher.get_opcodes():
        for offset in range(end - start):
            place = range(first + offset, first + offset + 1) if tag == "equal" else range(first, last)
            found[start + offset + 1] = range(place.start + 1, place.stop + 1)
    return found


def choose(
    recording: Recording, lines: dict[int, set[str]], source: str, package: str, name: str, line: int
) -> list[Timed]:
    """The tests that ran the code at this line, the likeliest first; none if tests ran the code around it alone.

    What runs at import (a table, a default, a decorator, a class's fields) counts as run by those that run its
    function, class or module. Code that ran in no process that coverage sees falls to the folders of its package, first
    to the files that have the module's name.
    """
    tree = ast.parse(source)
    first, last = statement(source, line)
    found = set[str]()
    for scope in _scopes(tree, first, last):
        span = range(first, last + 1) if scope is None else _body(scope)
        found = set().union(*(lines.get(line, ()) for line in span))
        if found:
            break
        if scope is None and any(lines.get(line) for line in _body(_function(tree, first, last))):
            return []
    words = _words(source.splitlines()[line - 1])
    if not found:
        words.add(name)
        found = {test for test in recording.tests if test.split("/")[1] in FOLDERS[package]}
    kinship = recording.kinship(words)
    return _likeliest([recording.tests[test] for test in sorted(found)], lines, kinship)


def batches(tests: list[Timed], budget: float) -> list[list[Timed]]:
    """The likeliest tests, then the rest."""
    until = list(accumulate(test.seconds for test in tests))
    first = max(1, sum(seconds <= FIRST_SECONDS for seconds in until))
    maximum = max(first, LEAST_TESTS, sum(seconds <= budget for seconds in until))
    return [batch for batch in (tests[:first], tests[first:maximum]) if batch]


def _likeliest(tests: list[Timed], lines: dict[int, set[str]], kinship: Mapping[str, float]) -> list[Timed]:
    """Fast tests first; before others of the same time those that run little else of the module, and long before them
    those whose files have the rarer words of the code in question. Parameters of one test take turns with others."""
    width: dict[str, int] = {}
    for ran in lines.values():
        for id in ran:
            width[id] = width.get(id, 0) + 1

    def cost(test: Timed) -> float:
        kin: float = (1 + kinship.get(test.id.partition("::")[0], 0.0)) ** 3
        return (test.seconds + 0.005) * (10 + width.get(test.id, 0)) / kin

    turns, costs = dict[str, int](), dict[str, float]()
    for test in sorted(tests, key=cost):
        function = test.id.partition("[")[0]
        turns[function] = turn = turns.get(function, 0) + 1
        costs[test.id] = cost(test) * turn
    return sorted(tests, key=lambda test: costs[test.id])


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w{3,}", text))


def _scopes(tree: ast.Module, first: int, last: int) -> list[ast.AST | None]:
    """Where to look for tests, nearest first; None stands for the lines themselves."""
    holds = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and min([node.lineno, *(d.lineno for d in node.decorator_list)]) <= first
        and last <= (node.end_lineno or 0)
    ]
    holds.sort(key=lambda node: node.lineno)
    inner = holds[-1] if holds else None
    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and first >= inner.body[0].lineno:
        return [None]
    return [*reversed(holds), tree]


def _function(tree: ast.Module, first: int, last: int) -> ast.AST:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= first
        and last <= (node.end_lineno or 0)
    ][-1]


def _body(scope: ast.AST) -> list[int]:
    """The lines of the function bodies in it: all others run at import, whoever imports first."""
    return [
        line
        for node in ast.walk(scope)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    ]


def statement(source: str, line: int) -> tuple[int, int]:
    """The first and last line of the statement at a line; of a compound one, its head."""
    found = (line, line)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1 if body else node.end_lineno or 0)
            if node.lineno <= line <= last:
                found = (node.lineno, last)
    return found


def _file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]

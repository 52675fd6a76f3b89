"""scripts/mutants: which faults it draws, and which tests it runs for one. No mutant runs here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scripts.mutation import tools
from scripts.mutation.choice import LEAST_TESTS, Recording, Timed, batches, choose, moved
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
SOURCE = dedent("""\
    LIMIT = 3

    class Reader:
        size: int = 1

        @property
        def whole(self) -> bool:
            return (
                self.size > 1
            )

        def read(self, more=False):
            if more:
                self.size += 1

    def alone():
        return LIMIT
    """)
WHOLE, READ, SLOW = (f"tests/api/test_x.py::{name}" for name in ("whole", "read", "slow"))
FOLDERS = [f"tests/{folder}/test_x.py::t" for folder in ("request", "gateway")]
# What tests run: the property; `read` without its last line.
LINES = {8: {WHOLE}, 9: {WHOLE}, 13: {READ, SLOW}}


class Recorded:
    """What `choose` reads of a recording."""

    def __init__(self) -> None:
        ids, seconds = (WHOLE, READ, SLOW, *FOLDERS), (0.1, 0.2, 9.0, 0.1, 0.1)
        self.tests = {id: Timed(id, each) for id, each in zip(ids, seconds, strict=True)}

    def kinship(self, words: set[str]) -> dict[str, float]:
        return {}


def chosen(line: int) -> list[str]:
    recording = cast(Recording, Recorded())
    return [test.id for test in choose(recording, LINES, SOURCE, "request", "x", line)]


@pytest.mark.parametrize(
    ("line", "tests"),
    [
        pytest.param(9, [WHOLE], id="within a statement"),
        pytest.param(13, [READ, SLOW], id="a condition, fast tests first"),
        pytest.param(14, [], id="no test comes there"),
        pytest.param(6, [WHOLE], id="a decorator: its function"),
        pytest.param(12, [READ, SLOW], id="a default: its function"),
        pytest.param(4, [WHOLE, READ, SLOW], id="a field: its class"),
        pytest.param(1, [WHOLE, READ, SLOW], id="a constant: its module"),
        pytest.param(
            17, [f"tests/{name}/test_x.py::t" for name in ("gateway", "request")], id="runs unseen: the folders"
        ),
    ],
)
def test_the_tests_for_a_line(line: int, tests: list[str]) -> None:
    assert chosen(line) == tests


def test_lines_are_found_again_after_an_edit() -> None:
    before = "a\nb\nc\nd\n"
    assert moved(before, before) == {line: range(line, line + 1) for line in range(1, 5)}
    # Two new lines above, one changed into two, one removed.
    found = moved(before, "x\ny\na\nB1\nB2\nc\n")
    assert {line: list(places) for line, places in found.items()} == {1: [3], 2: [4, 5], 3: [6], 4: []}


def test_a_budget_bounds_the_tests_of_a_mutant() -> None:
    fast = [Timed(str(number), 0.5) for number in range(100)]
    first, rest = batches(fast, 20.0)
    assert (len(first), len(first + rest)) == (4, 40)
    slow = [Timed(str(number), 30.0) for number in range(100)]
    assert [len(batch) for batch in batches(slow, 20.0)] == [1, LEAST_TESTS - 1]
    assert batches(slow[:1], 20.0) == [slow[:1]]


def test_help_has_examples_and_installs_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "scripts.mutation", "--help"]
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "PYTHONUTF8": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "scripts/mutants --only wire --sample 50" in done.stdout
    assert not [*tmp_path.iterdir()]


@pytest.fixture(scope="module")
def drawing() -> Any:
    """The module that draws; cosmic-ray isn't part of the tests' environment."""
    folder = tools.folder()
    if not folder.is_dir():
        pytest.skip("scripts/mutants has not installed cosmic-ray yet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        from scripts.mutation import draw

        yield draw


FAULTS = dedent('''\
    from typing import TYPE_CHECKING, overload

    if TYPE_CHECKING:
        x = 1 > 2

    WAIT_SECONDS = 5.0
    LIMIT = 3
    Number = int | float
    __slots__ = ("a", 1)

    class Row(Struct, gc=False):
        size: int | None = None

    @cache
    def f(a: int | str, *, b: bool = True) -> int | None:
        """Text."""
        log.info("%d", a + 1)
        if a in LIMITS and b:
            send(a)
        return a - 1
    ''')


def test_what_is_drawn(drawing: Any, tmp_path: Path) -> None:
    """Neither annotations, aliases, docstrings, logs, waits, slots nor memos, and each fault changes the code."""
    (tmp_path / "gateway/wire").mkdir(parents=True)
    (tmp_path / "gateway/wire/x.py").write_text(FAULTS, "utf-8")
    found = sorted((place.specs[0].start_pos[0], place.key.split()[1]) for place in drawing.places(tmp_path, "gateway"))
    assert found == [
        (7, "NumberReplacer"),
        (15, "ReplaceTrueWithFalse"),
        (18, "AddNot"),
        (18, "ReplaceAndWithOr"),
        (18, "SwapMembership"),
        (19, "RemoveStatement"),
        (20, "NumberReplacer"),
        (20, "ReplaceBinaryOperator"),
        (20, "ReturnNone"),
    ]
    specs = drawing.sample(tmp_path, ["wire"], 5, seed=3)
    assert specs == drawing.sample(tmp_path, ["wire"], 5, seed=3)
    assert len({(spec.operator_name, spec.start_pos) for spec in specs}) == 5
    for spec in specs:
        code = drawing.mutated(FAULTS, spec)
        compile(code, "x.py", "exec")
        assert code != FAULTS


def test_what_is_no_python_is_not_drawn(drawing: Any, tmp_path: Path) -> None:
    """cosmic-ray puts `not` before an assignment expression without its parentheses."""
    (tmp_path / "gateway/wire").mkdir(parents=True)
    (tmp_path / "gateway/wire/x.py").write_text("if found := f():\n    g(found, 1)\n", "utf-8")
    drawn = {spec.operator_name for spec in drawing.sample(tmp_path, ["wire"], 9, seed=1)}
    assert drawn == {"NumberReplacer", "RemoveStatement"}


def test_a_fault_stands_where_it_says(drawing: Any, tmp_path: Path) -> None:
    """The stars of parameters and calls count when cosmic-ray looks for the n-th one."""
    (tmp_path / "gateway/wire").mkdir(parents=True)
    source = "def f(a, *, b, **c):\n    g(*a, **c)\n    return a * b\n"
    (tmp_path / "gateway/wire/x.py").write_text(source, "utf-8")
    stars = [place for place in drawing.places(tmp_path, "gateway") if "ReplaceBinaryOperator" in place.key]
    assert [place.specs[0].start_pos for place in stars] == [(3, 13)]
    for spec in stars[0].specs:
        assert drawing.mutated(source, spec).splitlines()[:2] == source.splitlines()[:2]


def test_an_edit_elsewhere_keeps_the_sample(drawing: Any, tmp_path: Path) -> None:
    path = tmp_path / "gateway/wire/x.py"
    path.parent.mkdir(parents=True)
    drawn = []
    for source in (FAULTS, f"import os\n\n{FAULTS}"):
        path.write_text(source, "utf-8")
        drawn.append(
            [(spec.operator_name, spec.start_pos[1]) for spec in drawing.sample(tmp_path, ["wire"], 4, seed=1)]
        )
    assert drawn[0] == drawn[1]


BROKEN, FAST, OTHER, LONG = Timed("broken", 0.1), Timed("fast", 0.1), Timed("other", 0.1), Timed("long", 9.0)
LATE = None
Verdicts = dict[tuple[str, bool], list[int | None]]


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        pytest.param({}, None, id="nothing fails"),
        pytest.param({("other", True): [1]}, "other", id="a test fails"),
        pytest.param({("broken", True): [1], ("other", True): [1]}, "other", id="one that is known to fail always"),
        pytest.param({("long", True): [1, 1], ("long", False): [1]}, None, id="a long test fails always"),
        pytest.param({("long", True): [1, 1]}, "long", id="a long test fails twice"),
        pytest.param({("long", True): [1, 0]}, None, id="a long test fails once"),
        pytest.param({("fast", True): [LATE]}, "time limit", id="past the limit"),
        pytest.param({("fast", True): [LATE], ("fast", False): [LATE]}, None, id="past the limit in any case"),
        pytest.param({("fast", True): [2]}, "the tests can't be imported", id="no import"),
        pytest.param({("fast", True): [2], ("fast", False): [2]}, None, id="no import in any case"),
    ],
)
@pytest.mark.usefixtures("drawing")
def test_what_counts_as_noticed(verdicts: Verdicts, found: str | None) -> None:
    """verdicts: by test and whether the mutant is there: pytest's status each time it runs; 0 in the end."""
    from scripts.mutation.trial import Trials

    left, there = {key: [*values] for key, values in verdicts.items()}, [False]

    class Scripted(Trials):
        def _run(self, tests: list[Timed]) -> tuple[int | None, str | None]:
            for test in tests:
                status = values.pop(0) if (values := left.get((test.id, there[0]))) else 0
                if status != 0:
                    return status, test.id if status == 1 else None
            return 0, None

    @contextmanager
    def planted() -> Iterator[None]:
        there[0] = True
        yield
        there[0] = False

    trials = Scripted(cast(Any, None), cast(Any, None), 0, 20.0, {"broken": False})
    assert trials.noticed_by([FAST, BROKEN, OTHER, LONG], planted) == found
    assert not any(left.values()), "each verdict was asked for"


@pytest.mark.usefixtures("drawing")
def test_a_test_that_fails_without_a_mutant_is_found() -> None:
    from scripts.mutation.trial import Trials

    class Failing(Trials):
        def _run(self, tests: list[Timed]) -> tuple[int | None, str | None]:
            failed = next((test.id for test in tests if test.id in ("a", "c")), None)
            return int(failed is not None), failed

    known = SimpleNamespace(tests={id: Timed(id, 0.1) for id in "abcde"})
    passing = {"d": False}
    trials = Failing(cast(Any, None), cast(Any, known), 0, 20.0, passing)
    noticed = {"a", "b", "c", "d", "time limit"}
    assert trials.failing(noticed) == {"a", "c"}
    assert passing == {"a": False, "b": True, "c": False, "d": False}
    assert trials.failing(noticed) == set(), "asked once"

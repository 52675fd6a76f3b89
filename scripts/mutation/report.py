"""What a run found: the score by package, and the survivors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from scripts.mutation.trial import package_of

Result = tuple[MutationSpec, WorkResult]


def survivors(console: Console, results: Iterable[Result]) -> None:
    """Each as a diff, with its place, its kind and what ran."""
    for spec, result in sorted(results, key=lambda row: (row[0].module_path, row[0].start_pos)):
        if result.test_outcome is TestOutcome.SURVIVED:
            place = f"{spec.module_path.as_posix()}:{spec.start_pos[0]}"
            console.print(
                f"{place} {spec.definition_name or 'module'}, {spec.operator_name}: {result.output}",
                style="bold",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            diff = result.diff or ""
            console.print(
                Syntax(diff, "diff") if console.is_terminal else diff, markup=False, highlight=False, soft_wrap=True
            )
            console.print()


def scores(console: Console, packages: Iterable[str], results: Iterable[Result]) -> None:
    """The table: mutants, caught ones, those of them that ran into the time limit, and the share."""
    drawn, caught, late = Counter[str](), Counter[str](), Counter[str]()
    for spec, result in results:
        for row in (package_of(spec), "all"):
            drawn[row] += 1
            caught[row] += result.is_killed
            late[row] += result.is_killed and result.output == "time limit"
    table = Table("package", "mutants", "caught", "by time limit", "score")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in (*packages, "all"):
        score = f"{caught[row] / drawn[row]:.0%}" if drawn[row] else "-"
        table.add_row(row, str(drawn[row]), str(caught[row]), str(late[row]), score, end_section=row != "all")
    console.print(table)

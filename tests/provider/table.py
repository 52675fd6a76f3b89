"""How OpenArmature's fixtures fare: `python -m tests.provider.table [FOLDER]`.

FOLDER holds fixtures, or is the published repository; without one, OPENARMATURE_FIXTURES, else those beside the
checkout.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console
from rich.table import Table

from . import conformance, retrieval_conformance
from .fixtures import Case, Unclaimed, further_cases, load, seed_cases

Outcome = Literal["passed", "listed", "unclaimed", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""From best to worst: a file has the outcome of its worst case. listed: holds, but claims what can't be seen from
outside."""


async def run(case: Case) -> list[str]:
    """See `conformance.run`."""
    if case.retrieval:
        return await retrieval_conformance.run(case)
    return await conformance.run(case)


async def outcome(case: Case) -> Outcome:
    try:
        return "listed" if await run(case) else "passed"
    except Unclaimed:
        return "unclaimed"
    except Exception:  # noqa: BLE001 - whatever it is, the case failed
        return "failed"


def group(case: Case) -> str:
    mapping = case.file.get("mapping", "openai")
    if case.retrieval:
        return f"retrieval-provider, {case.file.get('mapping', 'any mapping')}"
    return f"llm-provider, {mapping if mapping in ('anthropic', 'gemini') else 'openai'}"


async def main(folder: str | None) -> int:
    cases = load(Path(folder)) if folder else further_cases() or seed_cases()
    files: dict[str, dict[str, Outcome]] = {}
    counts: dict[str, Counter[Outcome]] = {}
    failed = []
    for case in cases:
        found = await outcome(case)
        counts.setdefault(group(case), Counter())[found] += 1
        worst = files.setdefault(group(case), {})
        worst[case.fixture] = max(found, worst.get(case.fixture, "passed"), key=OUTCOMES.index)
        if found in ("unclaimed", "failed"):
            failed.append(f"{found}: {case.id}")
    table = Table("", "files", *OUTCOMES, "cases passed")
    for name in sorted(files):
        by_file = Counter(files[name].values())
        row = [len(files[name]), *(by_file[o] for o in OUTCOMES)]
        table.add_row(name, *map(str, row), f"{counts[name]['passed']} of {counts[name].total()}")
    console = Console()
    console.print(table)
    for line in failed:
        console.print(line, highlight=False)
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None)))

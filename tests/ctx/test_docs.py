"""docs/ctx.md shows what happens: its examples run on a real tree, one after another."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from gateway.engines.states import TABLE
from gateway.features.ctx.availability import BUSY, OFFLINE, READY, UNCONFIGURED
from gateway.features.ctx.drivers import DRIVERS
from tests.conftest import ROOT
from tests.ctx.served import tree

PAGE = (ROOT / "docs/ctx.md").read_text("utf-8")
CONSOLE = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [
    example for block in CONSOLE for example in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def test_the_page_shows_all_three_ways() -> None:
    commands = " ".join(command for command, _ in EXAMPLES)
    for way in ("/ctx/model/debug/echo", "ctxgate ctx ls", "ctxgate ctx export", "ctxgate ctx send", "tail -n +2"):
        assert way in commands


def test_examples(short: Path, small: dict[str, Any]) -> None:
    programs = short / "bin"
    programs.mkdir()
    (programs / "ctxgate").write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o700)
    with tree(short, small) as made:
        (short / "_models").mkdir()
        made.config.rename(short / "_models/config.yaml")
        for command, printed in EXAMPLES:
            done = made.sh(command, PATH=f"{programs}:{made.env['PATH']}")
            assert done.stderr == "", command
            assert done.stdout.replace(str(made.root), "/ctx") == printed, command


def test_words_that_the_page_explains() -> None:
    status = next(line for line in PAGE.splitlines() if line.startswith("| `status` |"))
    assert {READY, BUSY, OFFLINE, UNCONFIGURED} | {state for state, _ in TABLE} == set(
        re.findall(r"`(\w+)`", status)
    ) - {"status"}
    assert all(f"`{driver}`" in PAGE for driver in DRIVERS)


def test_the_table_of_statements_names_tests() -> None:
    page = (ROOT / "tests/ctx/statements.md").read_text("utf-8")
    tests = "".join(file.read_text("utf-8") for file in (ROOT / "tests/ctx").glob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", page):
        assert f"def {name}(" in tests, name
    for file in re.findall(r"`(tests/\S+\.py)`", page):
        assert (ROOT / file).is_file(), file
    for row in re.findall(r"^\| (?!statement|---)(.*) \|$", page, re.MULTILINE):
        statement, _, shown = row.partition(" | ")
        assert "test_" in shown or len(shown) > 60, statement  # a test, or a reason

"""docs/model-test.md and the slash command agree with the code."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from gateway.features.evaluation.commands import model_test as cli
from gateway.features.evaluation.model_test import commands
from gateway.features.evaluation.model_test.cases import SUITES, load
from gateway.features.evaluation.model_test.fake import MODES
from gateway.features.evaluation.model_test.judge import KINDS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "model-test.md").read_text("utf-8")
SLASH = (ROOT / ".claude" / "commands" / "model-test.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
NAME = r"(?:scripts/|ctxgate )model-test"
COMMANDS = [
    found.replace("$ARGUMENTS", "")
    for text in (PAGE, SLASH, README, cli.EPILOG)
    for found in re.findall(rf"^ *{NAME} ([^#`\n]*?)(?: {{2,}}.*)?$", text, re.MULTILINE)
    + re.findall(rf"`{NAME} ([^`]+)`", text)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str) -> None:
    with cli.root.make_context("ctxgate model-test", cli.with_command(shlex.split(command))) as context:
        name, found, rest = cli.root.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        found.make_context(name, rest, parent=context)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 10


def test_kinds_and_whose_fault_they_are() -> None:
    rows = re.findall(r"^\| the (model|dialect|gateway) \| (.*) \|$", PAGE, re.MULTILINE)
    shown = {kind.partition("@")[0]: who for who, kinds in rows for kind in re.findall(r"`([a-z_]+(?:@\w+)?)`", kinds)}
    assert shown == KINDS


def test_exit_codes() -> None:
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert shown == {
        *(commands.OK, commands.REGRESSION, commands.USAGE, commands.UNREACHABLE, commands.INCOMPLETE),
        *(commands.NOT_COMPARABLE, commands.CALLS_AS_TEXT, commands.INTERRUPTED),
    }
    assert {int(code) for code in re.findall(r"^  (\d+) ", cli.EPILOG, re.MULTILINE)} == shown


def test_numbers() -> None:
    core = load(SUITES / "core")
    categories = Counter(case.category for case in core.cases)
    tools = {tool["function"]["name"] for case in core.cases for tool in case.tools}
    assert f"| {len(core.cases)} | our own, {len(categories)} categories" in PAGE
    assert f"with {len(tools)} tools" in PAGE
    assert f": {len(core.cases)} questions" in README
    assert all(f"`{mode}" in PAGE for mode in MODES)

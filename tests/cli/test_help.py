"""Each `--help` explains each argument that it lists."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator

import pytest

from benchmarks.model_test import cli as model_test
from gateway.cli.main import parser as ctxgate


def parsers(root: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """It and the parsers of its commands. A command of ctxgate learns its arguments once it reads some."""
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        root.parse_known_args(["--help"])
    yield name, root
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, parser in action.choices.items():
                yield from parsers(parser, f"{name} {word}")


COMMANDS = [*parsers(ctxgate(), "ctxgate"), *parsers(model_test.parser(), "scripts/model-test")]


def test_there_are_commands() -> None:
    assert {"ctxgate serve", "ctxgate room new", "scripts/model-test run"} <= {name for name, _ in COMMANDS}


@pytest.mark.parametrize("parser", [parser for _, parser in COMMANDS], ids=[name for name, _ in COMMANDS])
def test_each_argument_is_explained(parser: argparse.ArgumentParser) -> None:
    listed = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    told = [action for action in listed if not isinstance(action, argparse._SubParsersAction)]
    assert [action.dest for action in told if not action.help] == []

"""Each `--help` explains each argument that it lists."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from gateway.cli.main import root as ctxgate
from gateway.features.evaluation.commands.model_test import root as model_test


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """The command and its subcommands, with the words that run them."""
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, click.Context(child, parent=context, info_name=name))


COMMANDS = [
    *commands(ctxgate, click.Context(ctxgate, info_name="ctxgate")),
    *commands(model_test, click.Context(model_test, info_name="scripts/model-test")),
]


def test_there_are_commands() -> None:
    assert {"ctxgate serve", "ctxgate room new", "scripts/model-test run"} <= {name for name, _ in COMMANDS}


@pytest.mark.parametrize("command", [command for _, command in COMMANDS], ids=[name for name, _ in COMMANDS])
def test_each_argument_is_explained(command: click.Command) -> None:
    assert [parameter.name for parameter in command.params if not explained(parameter)] == []
    assert command.callback is not None
    assert command.help


@pytest.mark.parametrize("name", ctxgate.list_commands(click.Context(ctxgate)))
def test_each_command_has_examples(name: str) -> None:
    assert f"examples:\n  ctxgate {name}" in (dict(COMMANDS)[f"ctxgate {name}"].epilog or "")


def explained(parameter: click.Parameter) -> bool:
    return bool(getattr(parameter, "help", None) or getattr(parameter, "hidden", False))

"""What a command that checks things has found, for a person."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import click

from gateway.errors import ProviderUnavailable
from gateway.wire.text import printable

State = Literal["ok", "note", "wrong"]
COLOURS: dict[State, str] = {"ok": "green", "note": "yellow", "wrong": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of `about`. cure: what to do; empty if there is nothing to do."""

    state: State
    about: str
    text: str
    cure: str = ""


def shown(findings: Iterable[Finding]) -> int:
    """Prints each as it comes. Returns the exit code: not 0 if anything is wrong."""
    wrong = False
    for found in findings:
        wrong = wrong or found.state == "wrong"
        state = click.style(f"{found.state:<6}", fg=COLOURS[found.state])
        click.echo(f"{state} {printable(f'{found.about}: {found.text}')}")
        if found.cure:
            click.echo(f"       {printable(found.cure)}")
    return ProviderUnavailable.exit_code if wrong else 0

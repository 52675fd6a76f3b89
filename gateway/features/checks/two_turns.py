"""Two turns of a real client, for `ctxgate doctor --client`: how much of the second one's prompt was cached."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cli.client import RunningGateway
from gateway.features.clients.contracts import Program

TURN_SECONDS = 300.0
"""Bound on one turn of a client: a slow machine needs minutes for the first prompt."""
FIRST, SECOND = "Say the word ready. Use no tool.", "Say the word again. Use no tool."
LONG = 0.5
"""Requests at least this share as long as the longest are the conversation; the others are titles and the like."""
SHOWN_CHARS = 300


DENIED = {"permission": {"bash": "deny", "edit": "deny", "webfetch": "deny"}}
"""opencode asks nobody before it runs what a model writes; without a person, the others refuse it."""


class NoTurn(Exception):
    """A turn did not come about; says why."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Tokens. first: of the first turn's longest prompt. prompt, cached: of the second's. prefix: what broke it."""

    first: int
    prompt: int
    cached: int
    prefix: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.cached / self.prompt


def two_turns(program: Program, place: str, text: str, gateway: RunningGateway) -> Turns:
    """Runs the client twice, in a home and a working folder of its own.

    text: its configuration, the contract's snippet for `place`. Raises NoTurn, and what `RunningGateway.ask` raises.
    """
    with tempfile.TemporaryDirectory(prefix="ctxgate-doctor-") as name:
        home, work = Path(name) / "home", Path(name) / "work"
        work.mkdir()
        start = max((entry["id"] for entry in _log(gateway)), default=-1)
        environment = _configured(place, text, home)
        _run((program.command, *program.first, FIRST), environment, work)
        began = [entry for entry in _log(gateway) if entry["id"] > start]
        before = max((entry["id"] for entry in began), default=start)
        _run((program.command, *program.more, SECOND), environment, work)
        return _of([entry for entry in _log(gateway) if entry["id"] > before], began)


def _log(gateway: RunningGateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.ask("GET", "/-/requests")["requests"]
    return found


def _of(entries: list[dict[str, Any]], began: list[dict[str, Any]]) -> Turns:
    """entries: of the second turn. began: of the first."""
    longest = max((entry["prompt_tokens"] for entry in entries), default=0)
    if not longest:
        raise NoTurn("the log has no request of the second turn whose tokens the engine counted")
    talk = [entry for entry in entries if entry["prompt_tokens"] >= LONG * longest]
    found = dict.fromkeys(line for entry in talk for line in entry["prefix"])
    return Turns(
        max((entry["prompt_tokens"] for entry in began), default=0),
        sum(entry["prompt_tokens"] for entry in talk),
        sum(entry["cached_tokens"] for entry in talk),
        tuple(found),
    )


def _configured(place: str, text: str, home: Path) -> dict[str, str]:
    """Writes the client's file, if it has one; its whole environment."""
    home.mkdir()
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(home), "TERM": "dumb", "DO_NOT_TRACK": "1"}
    if not place.startswith("~/"):
        return environment | dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))
    file = home / place.removeprefix("~/")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(json.loads(text) | DENIED) if file.name == "opencode.json" else text)
    return environment


def _run(command: tuple[str, ...], environment: dict[str, str], folder: Path) -> None:
    with subprocess.Popen(  # noqa: S603
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TURN_SECONDS)
        except subprocess.TimeoutExpired:
            raise NoTurn(f"{command[0]} did not end a turn within {TURN_SECONDS:g} s") from None
        finally:
            # Also what it has started.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = output.decode(errors="replace").strip()[-SHOWN_CHARS:]
        raise NoTurn(f"{command[0]} ended with exit code {process.returncode}: {last}")

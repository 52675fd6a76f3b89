"""One start of a client: its command line, variables and files, which leave the person's own files as they are."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gateway.features.clients.contracts import FOLDER, KEY, KEY_VARIABLE, Contract, Program, filled

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
LOOPBACK = "127.0.0.1,localhost"


class Start(Struct, frozen=True):
    """options: before the person's own. variables: to set. clears: to unset. files: name → text, in a folder that
    `FOLDER` stands for in all the others."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    clears: tuple[str, ...] = ()
    files: Mapping[str, str] = {}

    def environment(self, own: Mapping[str, str], folder: Path) -> dict[str, str]:
        """The program's, from the person's `own`. A proxy is told to leave this machine to us."""
        made = {name: value for name, value in own.items() if name not in self.clears}
        made |= {name: value.replace(FOLDER, str(folder)) for name, value in self.variables.items()}
        if any(made.get(name) or made.get(name.upper()) for name in PROXIES):
            for name in ("no_proxy", "NO_PROXY"):
                made[name] = ",".join(filter(None, (made.get(name), LOOPBACK)))
        return made

    def command(self, program: str, arguments: tuple[str, ...], folder: Path) -> list[str]:
        return [program, *(option.replace(FOLDER, str(folder)) for option in self.options), *arguments]

    def script(self, program: str, arguments: tuple[str, ...]) -> str:
        """The same for a shell. The key isn't in it, only the variable that has it."""
        lines = [f"unset {' '.join(self.clears)}"] if self.clears else []
        if self.files:
            lines.append('folder="$(mktemp -d)"')
        for name, text in self.files.items():
            lines.append(f"cat > {_quoted(f'{FOLDER}/{name}')} <<'END'\n{text.rstrip()}\nEND")
        for name, value in self.variables.items():
            lines.append(f"export {name}={_quoted(value)}")
        return "\n".join([*lines, " ".join(map(_quoted, (program, *self.options, *arguments)))])


def _quoted(text: str) -> str:
    """For a shell, in which the folder is a variable of its own."""
    if text == f"${KEY_VARIABLE}":
        return f'"{text}"'
    return '"$folder"'.join(shlex.quote(part) if part else "" for part in text.split(FOLDER)) or "''"


def start(contract: Contract, program: Program, address: str, model: str, window: int | None, key: str | None) -> Start:
    """How `program` is started with the configuration of its contract.

    window: of the model, None if unknown. key: what the gateway asks for, or a text that stands for it; None: nothing.
    """

    def ours(text: str) -> str:
        return filled(text, address, model, window)

    def keyed(text: str) -> str:
        return ours(text if key is None else text.replace(*program.keyed))

    text = keyed(contract.snippet)
    files = {Path(place).name: keyed(more) for place, more in contract.also.items()}
    options: list[str] = []
    variables: dict[str, str] = {} if key is None else {KEY_VARIABLE: key}
    match program.given:
        case "exports":
            variables |= _exports(text)
        case "settings":
            told = _exports(text)
            variables |= told
            options += ["--settings", json.dumps({"env": {n: value for n, value in told.items() if value != KEY}})]
        case "overrides":
            for name, value in _leaves(tomllib.loads(text)):
                options += ["-c", f"{name}={json.dumps(value)}"]
        case "options":
            options += _switches(text)
        case "content":
            variables[program.reads] = json.dumps(json.loads(text))
        case "file":
            name = Path(contract.place).name
            files[name] = text
            variables[program.reads] = f"{FOLDER}/{name}"
    variables |= {name: ours(value) for name, value in program.variables.items()}
    if key is not None:
        variables = {name: key if value == KEY else value for name, value in variables.items()}
    return Start((*options, *map(ours, program.options)), variables, program.clears, files)


def _exports(text: str) -> dict[str, str]:
    """The variables of shell lines."""
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each value in the tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _switches(text: str) -> Iterator[str]:
    """Lines `key: value` as options of a command line, without the key: all processes can read those."""
    for line in text.splitlines():
        name, _, value = line.partition(": ")
        if value in ("true", "false"):
            yield f"--{'' if value == 'true' else 'no-'}{name}"
        elif value != KEY:
            yield f"--{name}={value}"

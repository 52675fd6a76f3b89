"""`ctxgate launch`"""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import Command, config_option, configuration
from gateway.cli.text import say
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.clients.choice import NoneHere, choose, lacks, needed
from gateway.features.clients.contracts import CLIENTS, CONTRACTS, KEY_VARIABLE, Contract, Program

if TYPE_CHECKING:
    from gateway.config import Config, Model
    from gateway.features.clients.start import Start

EXAMPLES = """\
examples:
  ctxgate launch claude
  ctxgate launch codex --model qwen3-4b-64k
  ctxgate launch claude -- -p "What is in this folder?"   what is behind -- is for claude
  ctxgate launch opencode --print                         shows what it would do, as a script
  ctxgate launch any -- python my_agent.py                any program that reads OPENAI_BASE_URL or the like
"""

PROGRAMS = {name: contract for name, contract in CONTRACTS.items() if contract.program is not None}
KNOWN = ", ".join(sorted(contract.program.command for contract in PROGRAMS.values() if contract.program is not None))
FORWARDED = (signal.SIGTERM, signal.SIGHUP)
LEFT_TO_IT = (signal.SIGINT, signal.SIGQUIT)


class _Launch(Command):
    """Says where the program's own options go."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            message = f"No such option: {error.option_name}. The program's own options go behind --"
            raise click.UsageError(message, ctx=ctx) from None


@click.command(cls=_Launch, epilog=EXAMPLES)
@config_option
@click.option("--model", metavar="NAME", help="A model of config.yaml (default: one that suffices).")
@click.option("--print", "shows", is_flag=True, help="Print what it would do, as a shell script, and do nothing.")
@click.argument("program", metavar="PROGRAM", help=f"One of {KNOWN}; or any.")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT]...", help="For the program.")
def launch(config: Path | None, model: str | None, shows: bool, program: str, arguments: tuple[str, ...]) -> int:
    """Starts a coding agent, or another program, with a model of this machine.

    Picks a model whose window and tools suffice: the active one, or else the first one of config.yaml. Starts the
    gateway if none runs; it ends with the last program that uses it. Configures the program for this start alone, by
    variables, options and files in a temporary folder: its own configuration stays as it is. Ends with the program's
    exit code.
    """
    name, contract, found, arguments = _client(program, arguments)
    loaded = configuration(config, create=not shows)
    if not shows and shutil.which(found.command) is None:
        raise ProviderUnavailable(f"{found.command} isn't on the PATH; install it: {found.install}")
    try:
        chosen = choose(loaded, name, contract, model)
    except NoneHere as error:
        if shows or not _wanted(error):
            raise
        _run_own(error.command, loaded)
        loaded = configuration(config)
        chosen = choose(loaded, name, contract, model)
    if shows:
        return _show(loaded, contract, found, chosen, arguments)
    return _run(loaded, contract, found, chosen, arguments)


def _client(program: str, arguments: tuple[str, ...]) -> tuple[str, Contract, Program, tuple[str, ...]]:
    """Its name, contract, and how to start it. Raises ProviderInvalidRequest for one that can't be started."""
    name = CLIENTS.get(program)
    if name == "any" and arguments:
        own = Program(arguments[0], "it is the program that you named", "exports")
        return name, CONTRACTS[name], own, arguments[1:]
    if name in PROGRAMS:
        contract = PROGRAMS[name]
        assert contract.program is not None
        return name, contract, contract.program, arguments
    if name == "any":
        raise ProviderInvalidRequest("name the program: ctxgate launch any -- PROGRAM ARGUMENT...")
    if name is not None:
        raise ProviderInvalidRequest(
            f"{name} isn't a program that this could start: `ctxgate doctor --client {name}` shows how to configure it"
        )
    near = difflib.get_close_matches(program, CLIENTS, 1)
    cure = f"did you mean {near[0]}?" if near else f"for a program of your own: ctxgate launch any -- {program}."
    raise ProviderInvalidRequest(f"there is no client {program}: {cure} Known ones: {KNOWN}")


def _wanted(error: NoneHere) -> bool:
    """Whether the person wants what would help; nobody is asked where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(f"ctxgate: {error}", file=sys.stderr)
    return click.confirm("run it now?", default=True, err=True)


def _run_own(command: tuple[str, ...], config: Config) -> None:
    action, *rest = command
    more = ["--no-smoke"] if action == "add" else []
    words = [sys.executable, "-m", "gateway", action, "--config", str(config.source), *more, *rest]
    if subprocess.run(words, check=False).returncode:  # noqa: S603
        raise ProviderUnavailable(f"ctxgate {' '.join(command)} failed")


def _key(config: Config) -> str | None:
    keys = config.server.api_keys
    return keys[0].get_secret_value() if keys else os.environ.get(KEY_VARIABLE) or None


def _remarks(contract: Contract, model: Model) -> str:
    """What the person should know of the model."""
    if (fault := lacks(contract, model)) is not None:
        return f"{fault}; {needed(contract)} would be better"
    if model.context_window is None:
        return f"its window isn't known; this needs {needed(contract)}" if contract.window else ""
    return f"{model.context_window:,} tokens"


def _show(config: Config, contract: Contract, program: Program, model: Model, arguments: tuple[str, ...]) -> int:
    from gateway.features.clients.shared_gateway import running
    from gateway.features.clients.start import start

    key = _key(config)
    address = running(config, key)
    remarks = _remarks(contract, model)
    lines = [f"model {model.name}{f' ({remarks})' if remarks else ''}"]
    if address is None:
        from gateway.cli.running import listens

        lines.append("no gateway runs; it would start one: ctxgate serve, which ends with the last program using it")
        port = 0 if config.server.uds is not None or listens(config.server) else config.server.port
        address = f"http://127.0.0.1:{port or 'PORT'}"
    else:
        lines.append(f"gateway {address} runs already")
    if shutil.which(program.command) is None:
        lines.append(f"{program.command} isn't on the PATH; install it: {program.install}")
    begin = start(contract, program, address, model.name, model.context_window, f"${KEY_VARIABLE}" if key else None)
    say("\n".join(f"# {line}" for line in lines))
    say(begin.script(program.command, arguments))
    return 0


def _run(config: Config, contract: Contract, program: Program, model: Model, arguments: tuple[str, ...]) -> int:
    from gateway.features.clients.shared_gateway import shared
    from gateway.features.clients.start import start

    key = _key(config)
    with (
        shared(config, model.name, key) as place,
        tempfile.TemporaryDirectory(prefix="ctxgate-launch-") as name,
    ):
        begin = start(contract, program, place.address, model.name, model.context_window, key)
        folder = Path(name)
        for file, text in begin.files.items():
            (folder / file).write_text(text, "utf-8")
        remarks = _remarks(contract, model)
        about = f"{program.command} with {model.name}{f' ({remarks})' if remarks else ''}"
        say(f"ctxgate: {about}; the gateway at {place.address} {place.note}", file=sys.stderr)
        return _program(begin, program, arguments, folder)


def _program(begin: Start, program: Program, arguments: tuple[str, ...], folder: Path) -> int:
    """Runs it in front. Returns its exit code, as shells report it."""
    environment = begin.environment(os.environ, folder)
    command = begin.command(program.command, arguments, folder)
    started: list[subprocess.Popen[bytes]] = []
    with _passing_on(started):
        try:
            process = subprocess.Popen(command, env=environment)  # noqa: S603
        except OSError as error:
            raise ProviderUnavailable(f"{program.command} can't be started: {error.strerror}") from None
        started.append(process)
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _passing_on(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Signals are the program's: the terminal's reach it by themselves, others are passed on."""

    def pass_on(number: int, _: object) -> None:
        for process in started:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in FORWARDED}
    # Not SIG_IGN, which the program would inherit.
    before |= {number: signal.signal(number, lambda *_: None) for number in LEFT_TO_IT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

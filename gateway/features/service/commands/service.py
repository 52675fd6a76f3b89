"""`ctxgate service`"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from gateway.cli.client import address, base_url, configured, transport
from gateway.cli.options import Group, config_option, configuration, json_option
from gateway.cli.text import say
from gateway.config.folders import USER
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable

if TYPE_CHECKING:
    from gateway.config import Config, Server
    from gateway.features.service.base import Manager, State

EXAMPLES = """\
examples:
  ctxgate service install              starts it now, and whenever you log in
  ctxgate service install --linger     and keeps it running when you log out
  ctxgate service status
  ctxgate service logs --follow
  ctxgate service uninstall            removes what install wrote; models and configuration stay
"""
START_SECONDS = 30.0
"""How long to wait for the first answer. A first start may have to fetch a model: it continues by itself."""
POLL_SECONDS = 0.2
HEALTH_SECONDS = 5.0

manager_option = click.option(
    "--manager",
    type=click.Choice(("systemd", "launchd")),
    help="The service manager (default: launchd on macOS, else systemd).",
)


@click.group(cls=Group, epilog=EXAMPLES)
def service() -> None:
    """Keeps the gateway running as a user service, under systemd on Linux and launchd on macOS.

    It needs no root. systemd opens the gateway's address itself, so that requests wait while it starts or restarts.
    Keys go into the environment file, ~/.config/ctxgate/environment. See docs/service.md.
    """


@service.command("install")
@config_option
@click.option("--linger", is_flag=True, help="Keep the service running when you log out, and start it at boot.")
@click.option("--no-start", "start", is_flag=True, default=True, flag_value=False, help="Only write the files.")
@click.option(
    "--no-sandbox",
    "sandbox",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Let it write wherever you may, for engines of your own that need this.",
)
@manager_option
def install(config: Path | None, linger: bool, start: bool, sandbox: bool, manager: str | None) -> int:
    """Installs the service and starts it, now and whenever you log in. Replaces an installed one.

    Without --linger, systemd ends it when you log out. launchd always does.
    """
    from gateway.config.env_file import TEMPLATE
    from gateway.config.folders import whole
    from gateway.features.service.base import prune
    from gateway.features.service.plan import own_folders, plan

    environment = _environment()
    loaded = _loaded(config)
    chosen = _manager(manager)
    before = chosen.state() if start else None
    if before is not None:
        chosen.present()
        _free(loaded.server, before)
    environment.parent.mkdir(parents=True, exist_ok=True)
    if not environment.exists():
        whole(environment, TEMPLATE.encode())
    made = (chosen.linger(True) if linger else False) or chosen.made_linger()
    ready = plan(
        loaded,
        python=sys.executable,
        env_file=environment,
        listen=_listen(loaded.server),
        environ=os.environ,
        sandbox=sandbox,
        linger=made,
    )
    if sandbox:
        # What isn't there can't be left writable.
        for folder in (loaded.state_dir, *own_folders()):
            folder.mkdir(parents=True, exist_ok=True)
    chosen.write(ready)
    for file in chosen.files(ready):
        say(f"ctxgate: wrote {file}", file=sys.stderr)
    say(f"ctxgate: keys go into {environment}", file=sys.stderr)
    if not start:
        prune(own_folders(), chosen.home)
        return 0
    chosen.start()
    return _started(loaded.server, chosen)


@service.command("status")
@config_option
@json_option
@manager_option
def status(config: Path | None, as_json: bool, manager: str | None) -> int:
    """Shows whether the service is installed, runs and answers. The exit code is 0 only if it answers."""
    chosen = _manager(manager)
    state, server = chosen.state(), configured(config)
    answers = _answers(server)
    where = str(server.uds) if server.uds is not None else f"{base_url(server)}/v1"
    if as_json:
        found: dict[str, Any] = {
            "manager": chosen.name,
            "installed": state.installed,
            "running": state.running,
            "pid": state.pid,
            "state": state.text,
            "survives_logout": state.survives_logout,
            "address": where,
            "answers": answers,
        }
        say(json.dumps(found, indent=2))
    else:
        from gateway.cli.table import show, table

        show(table(("SERVICE", chosen.name), _rows(state, where, answers)))
    return 0 if state.running and answers else ProviderUnavailable.exit_code


@service.command("logs")
@click.option(
    "--lines", "-n", type=click.IntRange(1, 1_000_000), default=100, metavar="N", help="Number of lines (default: 100)."
)
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they are written, until Ctrl-C.")
@manager_option
def logs(lines: int, follow: bool, manager: str | None) -> None:
    """Shows the service's log: systemd's journal, or launchd's log file."""
    command = _manager(manager).logs(lines, follow)
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)  # noqa: S606 - a program of the system
    except FileNotFoundError:
        raise ProviderUnavailable(f"{command[0]} isn't on this machine, so there is no log") from None


@service.command("uninstall")
@manager_option
def uninstall(manager: str | None) -> None:
    """Stops the service and removes what `install` wrote. Configuration, models, state and your keys stay."""
    from gateway.config.env_file import TEMPLATE
    from gateway.features.service.base import prune
    from gateway.features.service.plan import own_folders

    chosen, environment = _manager(manager), _environment()
    lingers = chosen.made_linger()
    with contextlib.suppress(ProviderUnavailable):  # nothing runs where there is no manager
        chosen.stop()
    gone = chosen.remove()
    with contextlib.suppress(ProviderUnavailable):
        chosen.forget()
    if lingers:
        chosen.linger(False)
        say("ctxgate: your services end again when you log out", file=sys.stderr)
    for file in gone:
        say(f"ctxgate: removed {file}", file=sys.stderr)
    if not gone:
        say("ctxgate: no service is installed", file=sys.stderr)
    if environment.exists():
        if environment.read_bytes() == TEMPLATE.encode():
            environment.unlink()
        else:
            say(f"ctxgate: {environment} has your variables, so it stays", file=sys.stderr)
    prune((environment.parent, *own_folders()), chosen.home)


def _environment() -> Path:
    return USER.user_config_path / "environment"


def _loaded(config: Path | None) -> Config:
    """The configuration as the service will see it: with the variables of the environment file."""
    from gateway.cli.serve import Overrides
    from gateway.config.env_file import load

    if (environment := _environment()).exists():
        load(environment, os.environ)
    loaded = Overrides(None, None, None, None).apply(configuration(config, create=True))
    if loaded.server.uds is None and loaded.server.port == 0:
        raise ProviderInvalidRequest("a service needs a fixed address: set server.port of config.yaml")
    if loaded.server.https is not None:
        from gateway.server.tls import Certificate

        Certificate(loaded.server.https.cert, loaded.server.https.key)
    return loaded


def _manager(name: str | None) -> Manager:
    from gateway.features.service.launchd import Launchd
    from gateway.features.service.systemd import Systemd

    kinds: dict[str, type[Manager]] = {kind.name: kind for kind in (Systemd, Launchd)}
    return kinds[name or ("launchd" if sys.platform == "darwin" else "systemd")](Path.home())


def _free(server: Server, before: State) -> None:
    """Raises ProviderUnavailable if a program other than the service listens at its address."""
    from gateway.cli.running import listens

    if not before.running and listens(server) and not before.opened:
        where = address(server)
        raise ProviderUnavailable(
            f"something listens at {where} already: if it is a gateway, stop it; else set server.port of config.yaml"
        )


def _listen(server: Server) -> list[str]:
    """The addresses that `listening` would open, for systemd."""
    if server.uds is not None:
        return [str(server.uds)]
    from gateway.cli.listening import listening

    found = []
    for opened in listening(replace(server, port=0)):
        with opened:
            host = opened.getsockname()[0]
            found.append(f"{f'[{host}]' if ':' in host else host}:{server.port}")
    return found


def _started(server: Server, manager: Manager) -> int:
    """Prints how the start went. Returns the exit code."""
    until = time.monotonic() + START_SECONDS
    while not (answers := _answers(server)) and time.monotonic() < until:
        if not (state := manager.state()).running:
            say(f"ctxgate: the service doesn't run: {state.text}; {state.cure}", file=sys.stderr)
            return ProviderUnavailable.exit_code
        time.sleep(POLL_SECONDS)
    where = str(server.uds) if server.uds is not None else f"{base_url(server)}/v1"
    if answers:
        say(f"ctxgate: runs at {where}", file=sys.stderr)
    else:
        say(f"ctxgate: starts at {where}; it may have to fetch a model: ctxgate service logs", file=sys.stderr)
    if manager.name == "systemd" and not manager.state().survives_logout:
        cure = "`ctxgate service install --linger` keeps it"
        say(f"ctxgate: it ends when you log out; {cure}", file=sys.stderr)
    elif manager.name == "launchd":
        say("ctxgate: it ends when you log out, and starts again when you log in", file=sys.stderr)
    return 0


def _rows(state: State, where: str, answers: bool) -> list[tuple[str, str]]:
    rows = [("state", state.text if state.installed else "not installed; ctxgate service install")]
    if state.pid is not None:
        rows.append(("pid", str(state.pid)))
    rows.append(("address", f"{where} {'answers' if answers else 'does not answer'}"))
    if state.installed:
        left = "keeps running" if state.survives_logout else "ends; ctxgate service install --linger keeps it"
        rows.append(("at logout", left))
    if state.cure:
        rows.append(("cure", state.cure))
    return rows


def _answers(server: Server) -> bool:
    """Whether a gateway answers there. Waits for one that systemd is starting."""
    import httpx

    try:
        with httpx.Client(transport=transport(server), timeout=HEALTH_SECONDS, trust_env=False) as http:
            answer = http.get(f"{base_url(server)}/health").json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and "active_model" in answer

"""`ctxgate ctx`"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Literal, get_args

import click

from gateway.cli.options import FILE, Group, Text, config_option, configuration
from gateway.cli.text import say
from gateway.errors import ProviderInvalidModel
from gateway.features.ctx.settings import Ctx

EXAMPLES = """\
examples:
  ctxgate ctx sync                    make the tree of config.yaml's models
  ctxgate ctx ls                      list the objects and their states
  ctxgate ctx cat main                print the main model's object
  ctxgate ctx cat debug/echo.d/status
  ctxgate ctx run main "hello"        as if executed; also takes stdin, --text and --jsonl
  ctxgate ctx send main "hello" --session talk      one message of a stored conversation
  ctxgate ctx attach main talk        print its events, and new ones as they come
  ctxgate ctx sessions                list the conversations; an agent's is a room
  ctxgate ctx rm main talk            delete one
  ctxgate ctx export main default     write a session as files
  ctxgate ctx doctor                  check that everything works
"""

Scope = Literal["private", "shared"]
OBJECT = "An alias, provider/model, or kind/name."

root_option = click.option(
    "--root", "folder", type=FILE, metavar="DIR", help="The tree (default: $CTX_ROOT, ctx.root, /ctx, ...)."
)

scope_option = click.option(
    "--scope",
    type=click.Choice(get_args(Scope)),
    default="private",
    help="Your session, or one of all users (default: private).",
)


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def ctx(config: Path | None) -> None:
    """Models, agents and tools as files: executable objects, sockets and control files. See docs/ctx.md."""


@ctx.command("sync")
@config_option
@root_option
def sync(config: Path | None, folder: Path | None) -> None:
    """Updates the tree to match config.yaml."""
    from gateway.features.ctx.sync import sync as update
    from gateway.features.ctx.tree import find_root

    loaded = configuration(config)
    root = find_root(folder, loaded)
    report = update(root, loaded)
    for path in report.kept:
        say(f"kept, since it was changed by hand: {root / path}", file=sys.stderr)
    say(f"{root}: {len(report.made)} made, {len(report.changed)} changed, {len(report.removed)} removed")
    if not loaded.section(Ctx).enabled:
        say("the gateway doesn't serve the tree yet: set ctx: {enabled: true} in config.yaml", file=sys.stderr)


@ctx.command("ls")
@config_option
@root_option
@click.option("--tools", is_flag=True, help="List the tools instead.")
def ls(config: Path | None, folder: Path | None, tools: bool) -> None:
    """Lists the models and agents, or the tools."""
    from gateway.features.ctx.listing import table, tool_table

    for line in (tool_table if tools else table)(_root(folder, config)):
        say(line)


@ctx.command("cat")
@config_option
@root_option
@click.argument("object", metavar="OBJECT[.d/FILE]", help=OBJECT)
def cat(config: Path | None, folder: Path | None, object: str) -> None:
    """Prints an object, or one of its control files."""
    root = _root(folder, config)
    head, control, file = object.partition(".d/")
    path = _path(root, head)
    if control:
        path = path.resolve().with_name(f"{path.resolve().name}.d") / file
        if not file or "/" in file or not path.is_file():
            raise ProviderInvalidModel(f"{head} has no control file {file!r}")
    say(path.read_text("utf-8"), end="")


@ctx.command("run", context_settings={"allow_interspersed_args": False})
@config_option
@root_option
@click.argument("object", metavar="OBJECT", help=OBJECT)
@click.argument("input", metavar="[INPUT]...", nargs=-1, type=click.UNPROCESSED, help="--text, --jsonl, and the input.")
def run(config: Path | None, folder: Path | None, object: str, input: tuple[str, ...]) -> int:
    """Asks an object once. Prints the answer as events, or as text on a terminal."""
    from gateway.features.ctx.runner import run as ask

    root = _root(folder, config)
    sys.stdout.flush()
    return ask(os.path.realpath(root), str(_path(root, object)), list(input))


@ctx.command("send")
@config_option
@root_option
@click.option("--session", default="default", help="Name of the session (default: default).")
@scope_option
@click.option("--id", "id", help="The message's id; sent again with the same id, it isn't answered again.")
@click.option("-t", "--text", is_flag=True, help="Print the answer as text (default on a terminal).")
@click.argument("object", metavar="OBJECT", help=OBJECT)
@click.argument("input", metavar="[INPUT]...", nargs=-1, type=Text(), help="The message (default: standard input).")
def send(
    config: Path | None,
    folder: Path | None,
    session: str,
    scope: Scope,
    id: str | None,
    text: bool,
    object: str,
    input: tuple[str, ...],
) -> int:
    """Sends a message to an object's session, and prints the answer as events or as text."""
    import uuid

    said = " ".join(input) if input else sys.stdin.read()
    request = {"op": "send", "id": id or f"m-{uuid.uuid4().hex}", "session": session, "scope": scope, "input": said}
    return _talk(config, folder, object, {**request, "cwd": os.getcwd()}, text=text)


@ctx.command("attach")
@config_option
@root_option
@scope_option
@click.option("--after", metavar="EVENT", help="Begin after this event, such as event-7 (default: at the beginning).")
@click.option("-t", "--text", is_flag=True, help="Print text (default on a terminal).")
@click.argument("object", metavar="OBJECT", help=OBJECT)
@click.argument("session", metavar="[SESSION]", default="default", help="Name of the session (default: default).")
def attach(
    config: Path | None, folder: Path | None, scope: Scope, after: str | None, text: bool, object: str, session: str
) -> int:
    """Prints a session's events, and those to come, until Ctrl-C."""
    request = {"op": "resume", "session": session, "scope": scope} | ({"after": after} if after else {})
    return _talk(config, folder, object, request, text=text, follow=True)


@ctx.command("sessions")
@config_option
@root_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("object", metavar="[OBJECT]", required=False, help=OBJECT)
def sessions(config: Path | None, folder: Path | None, as_json: bool, object: str | None) -> None:
    """Lists stored sessions, the newest first; an agent's is a room, of which ROOM is the id."""
    import dataclasses
    import json

    from gateway.features.ctx.objects import name_at
    from gateway.features.ctx.stored import sessions as stored

    name = None
    if object is not None:
        root = _root(folder, config)
        name = name_at(root, _path(root, object))
    found = asyncio.run(stored(configuration(config), name))
    if as_json:
        say(json.dumps([dataclasses.asdict(row) for row in found], indent=2))
        return
    rows = [("OBJECT", "SESSION", "SCOPE", "STATE", "MESSAGES", "UPDATED", "ROOM")]
    rows += [
        (row.object, row.session, row.scope, row.state, str(row.messages), row.updated_at, row.room) for row in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


@ctx.command("rm")
@config_option
@root_option
@scope_option
@click.argument("object", metavar="OBJECT", help=OBJECT)
@click.argument("session", metavar="SESSION", help="Name of the session.")
def rm(config: Path | None, folder: Path | None, scope: Scope, object: str, session: str) -> None:
    """Deletes a stored session of a model, with its messages and events."""
    from gateway.features.ctx.objects import name_at
    from gateway.features.ctx.stored import remove

    root = _root(folder, config)
    name = name_at(root, _path(root, object))
    asyncio.run(remove(configuration(config), name, session, scope))
    say(f"deleted {name} {session}")


@ctx.command("export")
@config_option
@root_option
@scope_option
@click.argument("object", metavar="OBJECT", help=OBJECT)
@click.argument("session", metavar="SESSION", help="Name of the session; `default` if its client named none.")
@click.argument(
    "target",
    required=False,
    type=FILE,
    metavar="[DIR]",
    help="Where to write (default: the session's place in the tree).",
)
def export(
    config: Path | None, folder: Path | None, scope: Scope, object: str, session: str, target: Path | None
) -> None:
    """Writes a session as files: messages.jsonl, events.jsonl, latest.md, state, ..."""
    from gateway.features.ctx.export import export as write
    from gateway.features.ctx.objects import name_at

    root = _root(folder, config)
    name = name_at(root, _path(root, object))
    say(asyncio.run(write(configuration(config), root, name, session, scope, target)))


@ctx.command("doctor")
@config_option
@root_option
def doctor(config: Path | None, folder: Path | None) -> int:
    """Checks that everything works, and explains how to fix what doesn't."""
    from gateway.features.ctx.doctor import examine
    from gateway.features.ctx.tree import find_root

    loaded = configuration(config)
    findings = list(examine(find_root(folder, loaded), loaded))
    for finding in findings:
        say(finding)
    return 1 if any(finding.problem for finding in findings) else 0


def _talk(
    config: Path | None, folder: Path | None, object: str, request: dict[str, Any], *, text: bool, follow: bool = False
) -> int:
    from gateway.features.ctx.client import Failure
    from gateway.features.ctx.objects import Triple, name_at
    from gateway.features.ctx.talk import talk

    root = _root(folder, config)
    sock = Triple.of(Path(os.path.realpath(root)), name_at(root, _path(root, object))).sock
    try:
        return talk(sock, request, text=text or sys.stdout.isatty(), follow=follow)
    except Failure as failure:
        say(f"ctxgate: {failure}", file=sys.stderr)
        return failure.exit_code


def _root(folder: Path | None, config: Path | None) -> Path:
    """The root of the tree. Reads no configuration if the command line or CTX_ROOT names it."""
    from gateway.features.ctx.tree import find_root

    named = folder or (Path(os.environ["CTX_ROOT"]) if os.environ.get("CTX_ROOT") else None)
    return Path(os.path.abspath(named)) if named is not None else find_root(None, configuration(config))


def _path(root: Path, name: str) -> Path:
    """The object's file. Raises ProviderInvalidModel if there is none."""
    for folder in (root / "model", root):
        path = folder / name
        if ".." not in name.split("/") and path.is_file():
            return path
    raise ProviderInvalidModel(f"there is no object {name} in {root}; ctxgate ctx ls lists them")

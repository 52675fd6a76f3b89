"""`ctxgate ctx`"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Literal, get_args

import click

from gateway.cli.options import FILE, Group, config_option, configuration
from gateway.errors import ProviderInvalidModel

EXAMPLES = """\
examples:
  ctxgate ctx sync                    make the tree of config.yaml's models
  ctxgate ctx ls                      list the objects and their states
  ctxgate ctx cat main                print the main model's object
  ctxgate ctx cat debug/echo.d/status
  ctxgate ctx run main "hello"        as if executed; takes stdin, --text and --jsonl too
  ctxgate ctx export main default     write a session as files
  ctxgate ctx doctor                  check that everything works
"""

Scope = Literal["private", "shared"]
OBJECT = "An alias, provider/model, or kind/name."

root_option = click.option(
    "--root", "folder", type=FILE, metavar="DIR", help="The tree (default: $CTX_ROOT, ctx.root, /ctx, ...)."
)


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def ctx(config: Path | None) -> None:
    """Models as files: a tree of executable objects, sockets and control files. See docs/ctx.md."""


@ctx.command("sync")
@config_option
@root_option
def sync(config: Path | None, folder: Path | None) -> None:
    """Updates the tree to match config.yaml."""
    from gateway.ctx.sync import sync as update
    from gateway.ctx.tree import find_root

    loaded = configuration(config)
    root = find_root(folder, loaded)
    report = update(root, loaded)
    for path in report.kept:
        print(f"kept, since it was changed by hand: {root / path}", file=sys.stderr)
    print(f"{root}: {len(report.made)} made, {len(report.changed)} changed, {len(report.removed)} removed")
    if not loaded.ctx.enabled:
        print("the gateway doesn't serve the tree yet: set ctx: {enabled: true} in config.yaml", file=sys.stderr)


@ctx.command("ls")
@config_option
@root_option
def ls(config: Path | None, folder: Path | None) -> None:
    """Lists the objects."""
    from gateway.ctx.listing import table

    for line in table(_root(folder, config)):
        print(line)


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
    sys.stdout.write(path.read_text("utf-8"))


@ctx.command("run", context_settings={"allow_interspersed_args": False})
@config_option
@root_option
@click.argument("object", metavar="OBJECT", help=OBJECT)
@click.argument("input", metavar="[INPUT]...", nargs=-1, type=click.UNPROCESSED, help="--text, --jsonl, and the input.")
def run(config: Path | None, folder: Path | None, object: str, input: tuple[str, ...]) -> int:
    """Asks an object once. Prints the answer as events, or as text on a terminal."""
    from gateway.ctx.runner import run as ask

    root = _root(folder, config)
    sys.stdout.flush()
    return ask(os.path.realpath(root), str(_path(root, object)), list(input))


@ctx.command("export")
@config_option
@root_option
@click.option(
    "--scope",
    type=click.Choice(get_args(Scope)),
    default="private",
    help="Your session, or one of all users (default: private).",
)
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
    from gateway.ctx.export import export as write
    from gateway.ctx.objects import name_at

    root = _root(folder, config)
    name = name_at(root, _path(root, object))
    print(asyncio.run(write(configuration(config), root, name, session, scope, target)))


@ctx.command("doctor")
@config_option
@root_option
def doctor(config: Path | None, folder: Path | None) -> int:
    """Checks that everything works, and explains how to fix what doesn't."""
    from gateway.ctx.doctor import examine
    from gateway.ctx.tree import find_root

    loaded = configuration(config)
    findings = list(examine(find_root(folder, loaded), loaded))
    for finding in findings:
        print(finding)
    return 1 if any(finding.problem for finding in findings) else 0


def _root(folder: Path | None, config: Path | None) -> Path:
    """The root of the tree. Reads no configuration if the command line or CTX_ROOT names it."""
    from gateway.ctx.tree import find_root

    named = folder or (Path(os.environ["CTX_ROOT"]) if os.environ.get("CTX_ROOT") else None)
    return Path(os.path.abspath(named)) if named is not None else find_root(None, configuration(config))


def _path(root: Path, name: str) -> Path:
    """The object's file. Raises ProviderInvalidModel if there is none."""
    for folder in (root / "model", root):
        path = folder / name
        if ".." not in name.split("/") and path.is_file():
            return path
    raise ProviderInvalidModel(f"there is no object {name} in {root}; ctxgate ctx ls lists them")

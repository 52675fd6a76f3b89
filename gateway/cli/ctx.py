"""`ctxgate ctx`"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from gateway.cli.common import add_actions, configuration
from gateway.errors import ProviderInvalidModel

DESCRIPTION = "Models as files: the tree of executable objects, sockets and control files. See docs/ctx.md."
EXAMPLES = """\
examples:
  ctxgate ctx sync                    make the tree of config.yaml's models
  ctxgate ctx ls                      the objects, and how they are
  ctxgate ctx cat main                what is known of the main model
  ctxgate ctx cat debug/echo.d/status
  ctxgate ctx run main "hello"        as if executed; stdin, --text and --jsonl as well
  ctxgate ctx export main default     a session as files
  ctxgate ctx doctor                  does everything work?
"""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)

    def action(name: str, purpose: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        made.add_argument("--root", type=Path, metavar="DIR", help="the tree (default: $CTX_ROOT, ctx.root, /ctx, ...)")
        return made

    action("sync", "make the tree what config.yaml says")
    action("ls", "list the objects")
    one = "an alias, provider/model, or kind/name"
    cat = action("cat", "print an object, or one of its control files")
    cat.add_argument("object", metavar="OBJECT[.d/FILE]", help=one)
    run = action("run", "ask an object once; its answer as events, or as text on a terminal")
    run.add_argument("object", metavar="OBJECT", help=one)
    run.add_argument("input", metavar="INPUT", nargs=argparse.REMAINDER, help="--text, --jsonl, and the input")
    export = action("export", "write a session as files: messages.jsonl, events.jsonl, latest.md, state, ...")
    export.add_argument("object", metavar="OBJECT", help=one)
    export.add_argument("session", metavar="SESSION", help="its name; default, where a client names none")
    export.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="where to (default: its place in the tree)")
    export.add_argument("--scope", choices=("private", "shared"), default="private", help="whose: yours, or all users'")
    action("doctor", "look whether everything works, and say how to mend what doesn't")


def run(args: argparse.Namespace) -> int:
    actions = {"sync": _sync, "ls": _ls, "cat": _cat, "run": _run, "export": _export, "doctor": _doctor}
    return actions[args.action](args)


def _sync(args: argparse.Namespace) -> int:
    from gateway.ctx.sync import sync
    from gateway.ctx.tree import find_root

    config = configuration(args)
    root = find_root(args.root, config)
    report = sync(root, config)
    for path in report.kept:
        print(f"kept, since it was changed by hand: {root / path}", file=sys.stderr)
    print(f"{root}: {len(report.made)} made, {len(report.changed)} changed, {len(report.removed)} removed")
    if not config.ctx.enabled:
        print("the gateway doesn't answer for it yet: set ctx: {enabled: true} in config.yaml", file=sys.stderr)
    return 0


def _ls(args: argparse.Namespace) -> int:
    from gateway.ctx.listing import table

    for line in table(_root(args)):
        print(line)
    return 0


def _cat(args: argparse.Namespace) -> int:
    root = _root(args)
    head, control, file = args.object.partition(".d/")
    path = _path(root, head)
    if control:
        path = path.resolve().with_name(f"{path.resolve().name}.d") / file
        if not file or "/" in file or not path.is_file():
            raise ProviderInvalidModel(f"{head} has no control file {file!r}")
    sys.stdout.write(path.read_text("utf-8"))
    return 0


def _run(args: argparse.Namespace) -> int:
    from gateway.ctx.runner import run

    root = _root(args)
    sys.stdout.flush()
    return run(os.path.realpath(root), str(_path(root, args.object)), args.input)


def _export(args: argparse.Namespace) -> int:
    from gateway.ctx.export import export
    from gateway.ctx.objects import name_at

    root = _root(args)
    name = name_at(root, _path(root, args.object))
    print(asyncio.run(export(configuration(args), root, name, args.session, args.scope, args.folder)))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from gateway.ctx.doctor import examine
    from gateway.ctx.tree import find_root

    config = configuration(args)
    findings = list(examine(find_root(args.root, config), config))
    for finding in findings:
        print(finding)
    return 1 if any(finding.problem for finding in findings) else 0


def _root(args: argparse.Namespace) -> Path:
    """Without a configuration, where the tree is named otherwise."""
    from gateway.ctx.tree import find_root

    named = args.root or (Path(os.environ["CTX_ROOT"]) if os.environ.get("CTX_ROOT") else None)
    return Path(os.path.abspath(named)) if named is not None else find_root(None, configuration(args))


def _path(root: Path, name: str) -> Path:
    """The entry that is meant. Raises ProviderInvalidModel where there is none."""
    for folder in (root / "model", root):
        path = folder / name
        if ".." not in name.split("/") and path.is_file():
            return path
    raise ProviderInvalidModel(f"there is no object {name} in {root}; ctxgate ctx ls lists them")

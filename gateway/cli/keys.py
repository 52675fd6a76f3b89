"""`ctxgate keys`"""

from __future__ import annotations

import argparse
import json
import sys

from msgspec.structs import asdict

from gateway.cli.common import add_actions, configuration
from gateway.server.keys import FILE, SCOPES, KeyFile

DESCRIPTION = """\
Keys that callers of the gateway send as `Authorization: Bearer KEY`. With the first one a running gateway
begins to ask for keys; it goes on asking until it is started again without any.
A key belongs to a user of a tenant: rooms and what is in them are seen by their own tenant alone."""
EXAMPLES = """\
examples:
  ctxgate keys add                                     for everything, prints the key once
  ctxgate keys add --tenant acme --user ann --scope rooms --scope models
  ctxgate keys list
  ctxgate keys revoke 1a2b3c4d
"""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    add = actions.add_parser("add", help="make a key; what it prints can't be shown again")
    add.add_argument("--tenant", default="local", help="whose rooms it opens (default: local)")
    add.add_argument("--user", default="local", help="whose secrets it uses (default: local)")
    add.add_argument(
        "--scope", action="append", choices=SCOPES, dest="scopes", help="what it may do; may be repeated (default: *)"
    )
    listing = actions.add_parser("list", help="list the keys by their ids")
    listing.add_argument("--json", action="store_true", help="for programs")
    revoke = actions.add_parser("revoke", help="end a key; a running gateway knows within a second")
    revoke.add_argument("id", metavar="ID", help="as `ctxgate keys list` shows it")


def run(args: argparse.Namespace) -> int:
    file = KeyFile(configuration(args).state_dir / FILE)
    if args.action == "add":
        entry, key = file.add(tenant=args.tenant, user=args.user, scopes=args.scopes or ["*"])
        print(
            f"ctxgate: key {entry.id} of {entry.user} at {entry.tenant}: keep it, nobody can read it again",
            file=sys.stderr,
        )
        print(key)
    elif args.action == "revoke":
        gone = file.revoke(args.id)
        print(f"revoked {gone.id} of {gone.user} at {gone.tenant}")
    elif args.json:
        shown = [{name: value for name, value in asdict(key).items() if name != "digest"} for key in file.read()]
        print(json.dumps({"keys": shown}, indent=2))
    else:
        _print(file)
    return 0


def _print(file: KeyFile) -> None:
    rows = [("ID", "TENANT", "USER", "SCOPES", "CREATED")]
    rows += [(key.id, key.tenant, key.user, " ".join(key.scopes), key.created_at) for key in file.read()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

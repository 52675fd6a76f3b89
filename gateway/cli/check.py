"""`ctxgate check`"""

from __future__ import annotations

import argparse

from gateway.cli.common import configuration

DESCRIPTION = "Shows everything that is wrong with config.yaml at once, each with its place and cure."
EXAMPLES = """\
examples:
  ctxgate check
  ctxgate check --config other.yaml
  ctxgate check --schema > config.schema.json      for an editor
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", action="store_true", help="print the file's JSON Schema instead")


def run(args: argparse.Namespace) -> int:
    if args.schema:
        from gateway.config import schema

        print(schema.text(), end="")
        return 0
    config = configuration(args)
    for note in config.notes:
        print(f"note: {note}")
    count = len(config.models)
    print(f"{config.source}: {count} model{'s' if count != 1 else ''}, active: {config.active_model}")
    return 0

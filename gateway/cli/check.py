"""`ctxgate check`"""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.options import Command, config_option, configuration
from gateway.cli.text import say

EXAMPLES = """\
examples:
  ctxgate check
  ctxgate check --config other.yaml
  ctxgate check --schema > config.schema.json      for an editor
"""


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option("--schema", is_flag=True, help="Print the file's JSON Schema instead.")
def check(config: Path | None, schema: bool) -> None:
    """Shows all mistakes in config.yaml at once, each with its position and fix."""
    if schema:
        from gateway.config import schema as json_schema

        say(json_schema.text(), end="")
        return
    loaded = configuration(config)
    for note in loaded.notes:
        say(f"note: {note}")
    count = len(loaded.models)
    say(f"{loaded.source}: {count} model{'s' if count != 1 else ''}, active: {loaded.active_model}")

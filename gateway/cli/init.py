"""`ctxgate init`"""

from __future__ import annotations

import sys

import click

from gateway.cli.default_config import written
from gateway.cli.options import Command
from gateway.cli.text import say

EXAMPLES = """\
examples:
  ctxgate init                          writes ~/.config/ctxgate/config.yaml, unless it is there
  ctxgate init && ctxgate check
  XDG_CONFIG_HOME=/tmp/try ctxgate init      to another folder
"""


@click.command(cls=Command, epilog=EXAMPLES)
def init() -> None:
    """Writes the commented default configuration to the user's configuration folder, unless there is one already.

    `ctxgate serve` does the same where it finds no configuration. The weights go below ~/.local/share/ctxgate.
    """
    if not written():
        from gateway.config import default

        say(f"ctxgate: {default.place()} is there already, and stays as it is", file=sys.stderr)

"""`ctxgate cluster`"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from gateway.cli.options import Command, Group, config_option, configuration, json_option
from gateway.cli.text import say
from gateway.errors import ProviderInvalidRequest

EXAMPLES = """\
examples:
  ctxgate cluster check        what this machine lacks; exits with 1 if it lacks anything
  ctxgate status --once        the nodes, their memory and their engines
"""
HEAD = ("", "WHAT", "FOUND", "CURE")
LACKS = 1


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def cluster(config: Path | None) -> None:
    """Several machines that share their engines; docs/cluster.md explains the set-up."""


@cluster.command("check", cls=Command)
@config_option
@json_option
def check(config: Path | None, as_json: bool) -> int:
    """Shows what this machine lacks: packages, Ray, PostgreSQL, the clock, the key, the port, weights."""
    settings = configuration(config)
    if "cluster" not in settings.sections:
        raise ProviderInvalidRequest(f"{settings.source} has no cluster:; docs/cluster.md explains what to write")
    from gateway.features.cluster import check as checks

    findings = asyncio.run(checks.check(settings))
    if as_json:
        say(checks.as_json(findings))
    else:
        from gateway.cli.table import show, table

        show(table(HEAD, [("ok" if not each.cure else "!!", each.what, each.found, each.cure) for each in findings]))
    return LACKS if any(each.cure for each in findings) else 0

"""`ctxgate keys`"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
from msgspec import to_builtins

from gateway.cli.options import Group, config_option, configuration, json_option
from gateway.cli.text import say
from gateway.feature import offered
from gateway.features.keys.words import NAMES, parse, written
from gateway.server.keys import FILE, SCOPES, KeyFile

EXAMPLES = """\
examples:
  ctxgate keys add                                     a key for everything; printed only once
  ctxgate keys add --tenant acme --user ann --scope rooms --scope models
  ctxgate keys add --user nightly --limit tokens/day=2000000 --limit parallel=8 --limit tier=flex
  ctxgate keys add --user guest --limit requests/minute=20 --limit models=smollm2-135m-instruct
  ctxgate keys list
  ctxgate keys revoke 1a2b3c4d
"""


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def keys(config: Path | None) -> None:
    """Manages the keys that callers send as `Authorization: Bearer KEY`.

    A running gateway requires a key as soon as the first one exists, and until it restarts without any.
    A key belongs to a user of a tenant. Only its tenant sees the tenant's rooms and their content.
    In a cluster, a key works at every gateway.
    """


@keys.command("add")
@config_option
@click.option("--tenant", default="local", help="Tenant whose rooms the key may use (default: local).")
@click.option("--user", default="local", help="User whose secrets the key uses (default: local).")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    help="What the key allows; repeatable (default: *, with limits: models).",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"A limit on the use of models; repeatable: {', '.join(NAMES)} (its default service tier).",
)
def add(config: Path | None, tenant: str, user: str, scopes: tuple[str, ...], limits: tuple[str, ...]) -> None:
    """Creates a key and prints it. It can't be printed again.

    A request above a limit gets a 429 that says when to try again. The limits apply to the model APIs.
    """
    wanted = parse(limits)
    allowed = list(scopes) or ["models" if wanted is not None else "*"]
    entry, key = _file(config).add(tenant=tenant, user=user, scopes=allowed, limits=wanted)
    say(f"ctxgate: key {entry.id} of {entry.user} at {entry.tenant}: it can't be printed again", file=sys.stderr)
    say(key)


@keys.command("list")
@config_option
@json_option
def list_keys(config: Path | None, as_json: bool) -> None:
    """Lists the keys by id."""
    found = _file(config).read()
    if as_json:
        shown = [{name: value for name, value in to_builtins(key).items() if name != "digest"} for key in found]
        say(json.dumps({"keys": shown}, indent=2))
        return
    from gateway.cli.table import show, table

    rows = [(key.id, key.tenant, key.user, " ".join(key.scopes), written(key.limits), key.created_at) for key in found]
    show(table(("ID", "TENANT", "USER", "SCOPES", "LIMITS", "CREATED"), rows))


keys.add_command(list_keys, "ls")  # as the other lists are called


@keys.command("revoke")
@config_option
@click.argument("id", metavar="ID", help="As `ctxgate keys list` shows it.")
def revoke(config: Path | None, id: str) -> None:
    """Revokes a key. A running gateway refuses it within a second."""
    gone = _file(config).revoke(id)
    say(f"revoked {gone.id} of {gone.user} at {gone.tenant}")


def _file(config: Path | None) -> KeyFile:
    settings = configuration(config)
    if "cluster" not in settings.sections:
        return KeyFile(settings.state_dir / FILE)
    from gateway.services import store_url

    shared: Callable[[Path, str], KeyFile] = offered("key_file")
    return shared(settings.state_dir / FILE, store_url(settings))

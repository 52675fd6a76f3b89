"""`ctxgate keys`"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from msgspec.structs import asdict

from gateway.cli.options import Group, config_option, configuration, json_option
from gateway.server.keys import FILE, SCOPES, KeyFile

EXAMPLES = """\
examples:
  ctxgate keys add                                     a key for everything; printed only once
  ctxgate keys add --tenant acme --user ann --scope rooms --scope models
  ctxgate keys list
  ctxgate keys revoke 1a2b3c4d
"""


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def keys(config: Path | None) -> None:
    """Manages the keys that callers send as `Authorization: Bearer KEY`.

    A running gateway asks for keys as soon as the first one exists, and until it starts again without any.
    A key belongs to a user of a tenant. Only its tenant sees the tenant's rooms and their content.
    """


@keys.command("add")
@config_option
@click.option("--tenant", default="local", help="Tenant whose rooms the key opens (default: local).")
@click.option("--user", default="local", help="User whose secrets the key uses (default: local).")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    default=["*"],
    help="What the key allows; repeatable (default: *).",
)
def add(config: Path | None, tenant: str, user: str, scopes: tuple[str, ...]) -> None:
    """Makes a key and prints it. It can't be printed again."""
    entry, key = _file(config).add(tenant=tenant, user=user, scopes=list(scopes))
    print(f"ctxgate: key {entry.id} of {entry.user} at {entry.tenant}: it can't be printed again", file=sys.stderr)
    print(key)


@keys.command("list")
@config_option
@json_option
def list_keys(config: Path | None, as_json: bool) -> None:
    """Lists the keys by id."""
    found = _file(config).read()
    if as_json:
        shown = [{name: value for name, value in asdict(key).items() if name != "digest"} for key in found]
        print(json.dumps({"keys": shown}, indent=2))
        return
    from gateway.cli.table import show, table

    rows = [(key.id, key.tenant, key.user, " ".join(key.scopes), key.created_at) for key in found]
    show(table(("ID", "TENANT", "USER", "SCOPES", "CREATED"), rows))


@keys.command("revoke")
@config_option
@click.argument("id", metavar="ID", help="As `ctxgate keys list` shows it.")
def revoke(config: Path | None, id: str) -> None:
    """Ends a key. A running gateway refuses it within a second."""
    gone = _file(config).revoke(id)
    print(f"revoked {gone.id} of {gone.user} at {gone.tenant}")


def _file(config: Path | None) -> KeyFile:
    return KeyFile(configuration(config).state_dir / FILE)

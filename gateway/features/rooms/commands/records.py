"""`ctxgate records`"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli.options import Group, config_option, configuration, json_option
from gateway.cli.text import say
from gateway.errors import ProviderInvalidRequest
from gateway.feature import offered
from gateway.features.agents.settings import Rooms
from gateway.wire.text import printable_json

if TYPE_CHECKING:
    from gateway.features.agents.tools.records import Records

T = TypeVar("T")

EXAMPLES = """\
examples:
  ctxgate records define person person.schema.json --description "People we know."
  ctxgate records filter person adults adults.json     adults.json: {"where": {"age": {"$gte": 18}}}
  ctxgate records models --json
  ctxgate records find person --query '{"order": ["name"]}'
"""

tenant_option = click.option("--tenant", default="local", help="Tenant whose records these are (default: local).")
model_argument = click.argument("model", metavar="MODEL", help="Name of the records' model.")


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def records(config: Path | None) -> None:
    """Manages the models of a tenant's records and its saved filters.

    The tools describe.*, find.*, aggregate.* and data.* of the tenant's rooms work on them. Opens the store itself,
    so no gateway has to run.
    """


@records.command("define")
@config_option
@tenant_option
@click.option("--description", default="", help="Description that describe.model_get returns.")
@model_argument
@click.argument("file", metavar="FILE", help="A JSON Schema of type object; - reads stdin.")
def define(config: Path | None, tenant: str, description: str, model: str, file: str) -> None:
    """Creates a model, or replaces its schema."""
    schema = _object(file)
    made = _with_records(config, tenant, lambda records: records.define(model, schema, description))
    say(f"ctxgate: {tenant} has the model {made.name}", file=sys.stderr)


@records.command("filter")
@config_option
@tenant_option
@model_argument
@click.argument("name", metavar="NAME", help="Name of the query.")
@click.argument("file", metavar="FILE", help="The query as JSON; - reads stdin.")
def save_filter(config: Path | None, tenant: str, model: str, name: str, file: str) -> None:
    """Saves a query under a name, for find.filter."""
    query = _object(file)
    _with_records(config, tenant, lambda records: records.save_filter(model, name, query))
    say(f"ctxgate: {model} has the filter {name}", file=sys.stderr)


@records.command("models")
@config_option
@tenant_option
@json_option
def models(config: Path | None, tenant: str, as_json: bool) -> None:
    """Lists the models; with --json, also their schemas."""
    found = _with_records(config, tenant, lambda records: records.models())
    if as_json:
        shown = [{"name": model.name, "description": model.description, "schema": model.schema} for model in found]
        say(printable_json(json.dumps({"models": shown}, indent=2, ensure_ascii=False)))
        return
    if all(offered("record_views").get(model.name) for model in found):
        say(f"ctxgate: {tenant} has no model of its own yet; ctxgate records define makes one", file=sys.stderr)
    for model in found:
        say(f"{model.name}  {model.description}".rstrip())


@records.command("find")
@config_option
@tenant_option
@click.option("--query", default="{}", metavar="JSON", help="The query (default: the first 50 records).")
@model_argument
def find(config: Path | None, tenant: str, query: str, model: str) -> None:
    """Prints records as JSON, one on each line."""
    wanted = _parsed(query, "--query")
    for record in _with_records(config, tenant, lambda records: records.find(model, wanted)).records:
        say(printable_json(json.dumps(record, ensure_ascii=False)))


def _with_records(config: Path | None, tenant: str, work: Callable[[Records], Awaitable[T]]) -> T:
    """Runs `work` on the tenant's records. Raises ProviderInvalidRequest for what the records refuse."""
    from gateway.features.agents.tools.base import ToolError

    try:
        return asyncio.run(_run(config, tenant, work))
    except ToolError as error:
        raise ProviderInvalidRequest(error.message, code=error.code) from None


async def _run(config: Path | None, tenant: str, work: Callable[[Records], Awaitable[T]]) -> T:
    from gateway.features.agents.tools.data import records
    from gateway.services import store_url
    from gateway.store import Store

    loaded = configuration(config)
    store = await Store.open(store_url(loaded))
    try:
        return await work(records(loaded.section(Rooms).tools, store, tenant))
    finally:
        await store.aclose()


def _object(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ProviderInvalidRequest(f"{file} can't be read: {error}") from None
    return _parsed(text, file)


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProviderInvalidRequest(f"{where} isn't JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProviderInvalidRequest(f"{where} must be a JSON object")
    return value

"""`ctxgate records`"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.cli.common import add_actions, configuration
from gateway.config import Config
from gateway.errors import ProviderInvalidRequest

if TYPE_CHECKING:
    from gateway.tools.records import Records

T = TypeVar("T")

DESCRIPTION = """\
The models of a tenant's records, and its saved filters: what the tools describe.*, find.*, aggregate.* and data.*
of its rooms work on. It works on the store itself, whether a gateway runs or not."""
EXAMPLES = """\
examples:
  ctxgate records define person person.schema.json --description "People we know."
  ctxgate records filter person adults adults.json     adults.json: {"where": {"age": {"$gte": 18}}}
  ctxgate records models --json
  ctxgate records find person --query '{"order": ["name"]}'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    define = actions.add_parser("define", help="make a model, or give it another schema")
    define.add_argument("model", metavar="MODEL", help="the name of the records' model")
    define.add_argument("file", metavar="FILE", help="a JSON Schema of type object; - reads it from stdin")
    define.add_argument("--description", default="", help="told to models by describe.model_get")
    keep = actions.add_parser("filter", help="keep a query under a name, for find.filter")
    keep.add_argument("model", metavar="MODEL", help="the name of the records' model")
    keep.add_argument("name", metavar="NAME", help="of the query")
    keep.add_argument("file", metavar="FILE", help="the query as JSON; - reads it from stdin")
    listing = actions.add_parser("models", help="list the models")
    listing.add_argument("--json", action="store_true", help="for programs, with their schemas")
    find = actions.add_parser("find", help="print records as JSON, one a line")
    find.add_argument("model", metavar="MODEL", help="the name of the records' model")
    find.add_argument("--query", default="{}", help="as JSON (default: the first 50 records)")
    for action in (define, keep, listing, find):
        action.add_argument("--tenant", default="local", help="whose (default: local)")


def run(args: argparse.Namespace) -> int:
    from gateway.tools.base import ToolError

    actions: dict[str, Callable[[Records, argparse.Namespace], Awaitable[None]]] = {
        **{"define": _define, "filter": _filter, "models": _models, "find": _find}
    }
    try:
        asyncio.run(
            _with_records(configuration(args), args.tenant, lambda records: actions[args.action](records, args))
        )
    except ToolError as error:
        raise ProviderInvalidRequest(error.message, code=error.code) from None
    return 0


async def _with_records(config: Config, tenant: str, work: Callable[[Records], Awaitable[T]]) -> T:
    from gateway.services import store_url
    from gateway.store import Store
    from gateway.tools.data import records

    store = await Store.open(store_url(config))
    try:
        return await work(records(config.rooms.tools, store, tenant))
    finally:
        await store.aclose()


async def _define(records: Records, args: argparse.Namespace) -> None:
    model = await records.define(args.model, _object(args.file), args.description)
    print(f"ctxgate: {args.tenant} has the model {model.name}", file=sys.stderr)


async def _filter(records: Records, args: argparse.Namespace) -> None:
    await records.save_filter(args.model, args.name, _object(args.file))
    print(f"ctxgate: {args.model} has the filter {args.name}", file=sys.stderr)


async def _models(records: Records, args: argparse.Namespace) -> None:
    models = await records.models()
    if args.json:
        shown = [{"name": model.name, "description": model.description, "schema": model.schema} for model in models]
        print(json.dumps({"models": shown}, indent=2, ensure_ascii=False))
        return
    for model in models:
        print(f"{model.name}  {model.description}".rstrip())


async def _find(records: Records, args: argparse.Namespace) -> None:
    for record in (await records.find(args.model, _parsed(args.query, "--query"))).records:
        print(json.dumps(record, ensure_ascii=False))


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

"""`describe.*`, `find.*`, `aggregate.*`, `data.*`: a tenant's models and records."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.feature import offered
from gateway.features.agents.settings import RoomTools
from gateway.features.agents.tools.base import Access, Run, Tool, ToolContext, ToolError

if TYPE_CHECKING:
    from gateway.features.agents.tools.records import Page, Records, View
    from gateway.store import Store

_MODEL = {"type": "string", "minLength": 1, "maxLength": 64, "description": "The model's name."}
_ID = {"type": "string", "minLength": 1, "maxLength": 64, "description": "The record's id."}
_RECORD = {"type": "object", "description": "Its fields, as the model's schema has them."}
_WHERE = (
    'where: {"field": value} or {"field": {"$gt": value}}; operators $eq $ne $gt $gte $lt $lte $between $in $nin $like '
    "$nlike $ilike $nilike $exists $null $contains $any $all $size; joined by $and $or $not. "
    "trashed: exclude (default), include or only. limit: at most 500."
)
_FIND = {
    "type": "object",
    "description": f'{_WHERE} order: ["field desc"]. select: ["field"]. offset.',
}
_AGGREGATE = {
    "type": "object",
    "description": f'{_WHERE} aggregate: {{"total": {{"$sum": "field"}}}}, functions $count $sum $avg $min $max '
    '$distinct; group_by: ["field"]; order: ["total desc"].',
}

Work = Callable[["Records", dict[str, Any], int], Awaitable[dict[str, Any]]]


def records(settings: RoomTools, store: Store, tenant: str) -> Records:
    """The tenant's models and records, within the bounds of the settings."""
    from gateway.features.agents.tools.records import Records

    views: Mapping[str, View] = offered("record_views")
    return Records(store, tenant, maximum=settings.records_max_count, longest=settings.record_max_bytes, views=views)


def tools(settings: RoomTools) -> list[Tool]:
    trashed = {"enum": ["exclude", "include", "only"], "description": "Default exclude."}
    limit = {"type": "integer", "minimum": 1, "maximum": 500, "description": "Default 50."}
    offset = {"type": "integer", "minimum": 0, "maximum": 1_000_000, "description": "Default 0."}
    target = {"type": "string", "minLength": 1, "maxLength": 64, "description": "The filter's name."}
    table: list[tuple[str, Access, str, dict[str, Any], list[str], Work]] = [
        ("describe.model_get", "read", "Read a model: its description and JSON Schema.", {}, [], _describe),
        ("find.records", "read", "Find records of a model by a query.", {"query": _FIND}, ["query"], _find),
        ("find.filter", "read", "Find records of a model by a saved filter.", {"target": target}, ["target"], _filter),
        (
            *("aggregate.query", "read", "Count, sum and compare records of a model."),
            *({"query": _AGGREGATE}, ["query"], _aggregate),
        ),
        ("data.get", "read", "Read one record.", {"id": _ID}, ["id"], _get),
        (
            *("data.list", "read", "List records of a model, oldest first."),
            *({"limit": limit, "offset": offset, "trashed": trashed}, [], _list),
        ),
        ("data.create", "edit", "Make a record.", {"record": _RECORD}, ["record"], _create),
        (
            *("data.update", "edit", "Change fields of a record; the others stay."),
            *({"id": _ID, "record": _RECORD}, ["id", "record"], _update),
        ),
        ("data.delete", "edit", "Put a record into the trash.", {"id": _ID}, ["id"], _delete),
    ]
    return [
        Tool(
            name=name,
            description=description,
            parameters=_schema(properties, required),
            access=access,
            effect="read" if access == "read" else "write",
            # A second create makes a second record; a second update or delete may undo what others did in between.
            idempotent=access == "read",
            cost="local",
            run=_runner(settings, work),
        )
        for name, access, description, properties, required, work in table
    ]


def _schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"model": _MODEL, **properties},
        "required": ["model", *required],
        "additionalProperties": False,
    }


def _runner(settings: RoomTools, work: Work) -> Run:
    async def run(context: ToolContext, given: dict[str, Any]) -> dict[str, Any]:
        if context.records is None:
            raise ToolError("not_available", "there are no records here")
        return await work(context.records(), given, settings.max_result_chars)

    return run


async def _describe(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    model = await records.model(given["model"])
    return _bounded({"model": model.name, "description": model.description, "schema": model.schema}, maximum)


async def _find(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    return _page(await records.find(given["model"], given["query"]), given["query"].get("offset", 0), maximum)


async def _filter(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    query = await records.filter(given["model"], given["target"])
    return {"filter": query, **_page(await records.find(given["model"], query), query.get("offset", 0), maximum)}


async def _aggregate(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    groups, more = await records.aggregate(given["model"], given["query"])
    shown = _fitting(groups, maximum)
    return {"groups": shown, "truncated": more or len(shown) < len(groups)}


async def _get(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    return _bounded({"record": await records.get(given["model"], given["id"])}, maximum)


async def _list(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    query: dict[str, Any] = {key: given[key] for key in ("limit", "offset", "trashed") if key in given}
    return _page(await records.find(given["model"], query), given.get("offset", 0), maximum)


async def _create(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    made = await records.create(given["model"], given["record"])
    return {"id": made["id"], "created_at": made["created_at"]}


async def _update(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    return _bounded({"record": await records.update(given["model"], given["id"], given["record"])}, maximum)


async def _delete(records: Records, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    await records.delete(given["model"], given["id"])
    return {"id": given["id"], "trashed": True}


def _page(page: Page, offset: int, maximum: int) -> dict[str, Any]:
    shown = _fitting(page.records, maximum)
    if page.records and not shown:
        raise ToolError("too_large", "the first record alone is too long for a result; select fewer fields")
    result: dict[str, Any] = {"records": shown}
    if page.more or len(shown) < len(page.records):
        result["next_offset"] = offset + len(shown)
    return result


def _fitting(items: list[dict[str, Any]], maximum: int) -> list[dict[str, Any]]:
    """The first items that fit into `maximum` characters of JSON."""
    for at, item in enumerate(items):
        maximum -= len(json.dumps(item, ensure_ascii=False))
        if maximum < 0:
            return items[:at]
    return items


def _bounded(result: dict[str, Any], maximum: int) -> dict[str, Any]:
    if len(json.dumps(result, ensure_ascii=False)) > maximum:
        raise ToolError("too_large", f"the result has over {maximum} characters; select fewer fields with find.records")
    return result

"""What `/openapi.json` is told of the rooms is what they answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema

from gateway.features.rooms.feature import ROUTES
from gateway.features.rooms.openapi import paths, schemas
from tests.rooms.described import conforms
from tests.rooms.running import house, speaks


def test_every_route_is_described_and_no_other() -> None:
    described = {
        (path, method.upper()) for path, item in paths().items() for method in item if method not in ("parameters",)
    }
    known = {
        (path.removesuffix("[/]").replace(":path", ""), method)
        for path, handlers in ROUTES.paths.items()
        for method in handlers
    }
    assert described == known


def test_every_reference_leads_somewhere() -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for inner in value.values() for found in references(inner)]
        return [found for inner in value for found in references(inner)] if isinstance(value, list) else []

    components = schemas()
    wanted = {found.removeprefix("#/components/schemas/") for found in references([paths(), components])}
    assert wanted <= set(components)
    for schema in components.values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_answers_conform(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        rent = {"agents": [{"agent_id": "a"}], "tool_policy": {"access": "read"}, "metadata": {"name": "x"}}
        id = (await conforms(rooms, "POST", "/llm/room", 201, rent))["id"]
        await conforms(rooms, "POST", "/llm/room/{id}/messages", 202, {"content": "Hello"}, id=id)
        await rooms.until(id, "room:idle")
        await conforms(rooms, "GET", "/llm/room", 200, None)
        await conforms(rooms, "GET", "/llm/room/{id}", 200, None, id=id)
        await conforms(rooms, "GET", "/llm/room/{id}/history", 200, None, id=id)
        await conforms(rooms, "PATCH", "/llm/room/{id}", 200, {"purpose": "x", "bounds": {"tool_calls": 1}}, id=id)
        await conforms(rooms, "POST", "/llm/room/{id}/interrupt", 409, {}, id=id)
        await conforms(rooms, "POST", "/llm/room/{id}/wake", 200, {}, id=id)
        await conforms(rooms, "POST", "/llm/room/{id}/release", 200, {"mode": "graceful"}, id=id)
        await conforms(rooms, "GET", "/llm/room/{id}", 404, None, id="nothing")
        secret = {"name": "n", "value": "v", "metadata": {"provider": "p"}}
        made = await conforms(rooms, "POST", "/api/user/secrets", 201, secret)
        await conforms(rooms, "GET", "/api/user/secrets", 200, None)
        await conforms(rooms, "DELETE", "/api/user/secrets/{id}", 200, None, id=made["id"])

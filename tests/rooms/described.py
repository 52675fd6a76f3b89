"""Asks a route of the rooms, and holds the answer to what `/openapi.json` says of it."""

from __future__ import annotations

from typing import Any

import jsonschema

from gateway.features.rooms.openapi import paths, schemas
from tests.rooms.running import House


async def conforms(rooms: House, method: str, path: str, status: int, body: Any, **ids: str) -> Any:
    answer = await rooms.http.request(method, path.format(**ids), json=body)
    assert answer.status_code == status, answer.text
    operation = paths()[path][method.lower()]
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    whole = {**schema, "components": {"schemas": schemas()}}
    jsonschema.Draft202012Validator(whole).validate(answer.json())
    if body is not None and status < 300:
        asked = operation["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**asked, "components": {"schemas": schemas()}}).validate(body)
    return answer.json()["data"]

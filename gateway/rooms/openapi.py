"""The rooms' part of `/openapi.json`: `PATHS` and `schemas()`, in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.rooms import schemas as bodies
from gateway.rooms.states import STATES

PREFIX = "rooms."
"""Before the names of components, so that they never collide with those of other APIs."""

_REFERENCE = f"#/components/schemas/{PREFIX}" + "{name}"
_TYPES = (
    *(bodies.Room, bodies.Message, bodies.Event, bodies.History, bodies.SecretShown),
    *(bodies.Rent, bodies.Update, bodies.Say, bodies.Wake, bodies.Interrupt, bodies.Release, bodies.Secret),
)
_ERRORS = {
    "400": "The request is wrong; `message` names the field.",
    "401": "A valid API key is missing.",
    "403": "The key lacks the scope `rooms`, or for GET `rooms:read`.",
    "404": "There is no such room, or it is another tenant's.",
    "409": "The room's state does not allow it; `code` says why.",
    "503": "The store is unavailable.",
}


def schemas() -> dict[str, Any]:
    """Components by name; every name begins with PREFIX."""
    _, found = msgspec.json.schema_components(_TYPES, ref_template=_REFERENCE)
    components = {PREFIX + name: schema for name, schema in found.items()}
    null = {"type": "null"}
    components[PREFIX + "Error"] = {
        "title": "Error",
        "type": "object",
        "properties": {
            "success": {"const": False},
            "data": null,
            "error": {"type": "string", "description": "The same text as message."},
            "code": {"type": "string"},
            "message": {"type": "string"},
        },
        "required": ["success", "data", "error", "code", "message"],
    }
    return components


def paths() -> dict[str, Any]:
    """Path → method → operation."""
    room, message = _reference("Room"), _reference("Message")
    number = {"type": "integer", "minimum": 0}
    after = _query("after", number, "Start after this event number; Last-Event-ID takes precedence.")
    verbs = {
        "wake": ("Wake a room", "Wake", "200", room),
        "interrupt": ("Interrupt the running turn", "Interrupt", "200", room),
        "release": ("Release a room", "Release", "200", room),
        "messages": ("Send the room a message", "Say", "202", message),
    }
    secret = _reference("SecretShown")
    return {
        "/llm/room": {
            "get": _operation(
                "List the tenant's rooms, the newest first",
                {"200": _array(room)},
                parameters=[
                    _query("status", {"enum": [*STATES]}, "Only rooms in this state."),
                    _query(
                        "limit",
                        {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
                        "The largest number of rooms.",
                    ),
                    _query("offset", {**number, "default": 0}, "Rooms to skip."),
                ],
            ),
            "post": _operation("Rent a room", {"201": room}, "Rent"),
        },
        "/llm/room/{id}": {
            "parameters": [_id()],
            "get": _operation("Show a room", {"200": room}),
            "patch": _operation("Change a room's settings", {"200": room}, "Update"),
        },
        **{
            f"/llm/room/{{id}}/{verb}": {
                "parameters": [_id()],
                "post": _operation(summary, {status: shown}, body),
            }
            for verb, (summary, body, status, shown) in verbs.items()
        },
        "/llm/room/{id}/events": {
            "parameters": [_id()],
            "get": {
                "summary": "Replay a room's events, and follow it while a worker is attached",
                "tags": ["rooms"],
                "parameters": [
                    after,
                    _query("follow", {"type": "boolean", "default": False}, "Continue with future events."),
                    {"name": "Last-Event-ID", "in": "header", "schema": number},
                ],
                "responses": {
                    "200": {
                        "description": "Server-sent events: `id` is the event's number, `event` its type, `data` a "
                        "rooms.Event.",
                        "content": {"text/event-stream": {"schema": {"type": "string"}}},
                    },
                    **_errors(),
                },
            },
        },
        "/llm/room/{id}/history": {
            "parameters": [_id()],
            "get": _operation(
                "Read a room's messages and events",
                {"200": _reference("History")},
                parameters=[
                    _query("after_event", number, "Events after this number."),
                    _query("after_message", number, "Messages after this number."),
                    _query(
                        "limit",
                        {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000},
                        "The largest number of each.",
                    ),
                ],
            ),
        },
        "/api/user/secrets": {
            "get": _operation("List the user's secrets, without their values", {"200": _array(secret)}),
            "post": _operation("Store a secret, encrypted", {"201": secret}, "Secret"),
        },
        "/api/user/secrets/{id}": {
            "parameters": [_id()],
            "delete": _operation("Delete a secret", {"200": {"type": "null"}}),
        },
    }


def _operation(
    summary: str, answers: dict[str, Any], body: str | None = None, parameters: list[Any] | None = None
) -> dict[str, Any]:
    """answers: the schema of the envelope's data by status. body: the name of a component."""
    operation: dict[str, Any] = {"summary": summary, "tags": ["rooms"]}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": _reference(body)}}}
    good = {
        status: {"description": summary, "content": {"application/json": {"schema": _envelope(data)}}}
        for status, data in answers.items()
    }
    return {**operation, "responses": {**good, **_errors()}}


def _envelope(data: dict[str, Any]) -> dict[str, Any]:
    nothing = {name: {"type": "null"} for name in ("error", "code", "message")}
    properties = {"success": {"const": True}, "data": data, **nothing}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": _reference("Error")}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=name)}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _id() -> dict[str, Any]:
    return {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}


PATHS = paths()

"""The rooms' part of `/openapi.json`: `PATHS`, `schemas()` and `ABOUT`, in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.features.rooms import schemas as bodies
from gateway.features.rooms.states import STATES

ABOUT = {
    "rooms": "A room is where a model works on the server: one message at a time, with tools, files and events. "
    "Rent one, send it a message, follow its events until `room:idle`, and read `agent:output`. Answers are "
    "`{success, data, error, code, message}`."
}

PREFIX = "rooms."
"""Before the names of components, so that they never collide with those of other APIs."""

_REFERENCE = f"#/components/schemas/{PREFIX}" + "{name}"
_TYPES = (
    *(bodies.Room, bodies.Message, bodies.Event, bodies.History, bodies.SecretShown),
    *(bodies.Rent, bodies.Update, bodies.Say, bodies.Wake, bodies.Interrupt, bodies.Release, bodies.Secret),
    *(bodies.Template, bodies.Made, bodies.Defined),
)
_NUMBER = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_ANY = {"type": "object"}
_BYTES = {"type": "string", "format": "binary"}
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
    rooms = {**_list_paths(), **_room_paths(), **_verb_paths(), **_log_paths(), **_file_paths(), **_factory_paths()}
    return {**rooms, **_record_paths(), **_secret_paths()}


def _list_paths() -> dict[str, Any]:
    room = _reference("Room")
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    parameters = [
        _query("status", {"enum": ["open", *STATES]}, "Only rooms in this state; open: in any but `released`."),
        _query("limit", limit, "The largest number of rooms."),
        _query("offset", {**_NUMBER, "default": 0}, "Rooms to skip."),
    ]
    listed = _operation("List the tenant's rooms, the newest first", {"200": _array(room)}, None, parameters)
    about = {"type": "boolean", "description": "Whether there are more: a page ends at the limit, or at 4 MB."}
    envelope = listed["responses"]["200"]["content"]["application/json"]["schema"]
    envelope["properties"]["more"] = about
    envelope["required"].append("more")
    return {
        "/llm/room": {
            "get": listed,
            "post": _operation("Rent a room", {"201": room}, "Rent"),
        }
    }


def _room_paths() -> dict[str, Any]:
    room = _reference("Room")
    return {
        "/llm/room/{id}": {
            "parameters": [_id()],
            "get": _operation("Show a room", {"200": room}),
            "patch": _operation("Change a room's settings", {"200": room}, "Update"),
        }
    }


def _verb_paths() -> dict[str, Any]:
    room, message = _reference("Room"), _reference("Message")
    verbs = {
        "wake": ("Wake a room", "Wake", "200", room),
        "interrupt": ("Interrupt the running turn", "Interrupt", "200", room),
        "release": ("Release a room", "Release", "200", room),
        "messages": ("Send the room a message", "Say", "202", message),
    }
    return {
        f"/llm/room/{{id}}/{verb}": {"parameters": [_id()], "post": _operation(summary, {status: answer}, body)}
        for verb, (summary, body, status, answer) in verbs.items()
    }


def _log_paths() -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000}
    about = "Server-sent events: `id` is the event's number, `event` its type, `data` a rooms.Event."
    events = {
        "summary": "Replay a room's events, and follow it while a worker is attached",
        "tags": ["rooms"],
        "parameters": [
            _query("after", _NUMBER, "Start after this event number; Last-Event-ID takes precedence."),
            _query("follow", {"type": "boolean", "default": False}, "Continue with future events."),
            {"name": "Last-Event-ID", "in": "header", "schema": _NUMBER},
        ],
        "responses": {
            "200": {"description": about, "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **_errors(),
        },
    }
    parameters = [
        _query("after_event", _NUMBER, "Events after this number."),
        _query("after_message", _NUMBER, "Messages after this number."),
        _query("limit", limit, "The largest number of each; a page ends at 4 MB of each, too."),
    ]
    history = _operation("Read a room's messages and events", {"200": _reference("History")}, None, parameters)
    return {
        "/llm/room/{id}/events": {"parameters": [_id()], "get": events},
        "/llm/room/{id}/history": {"parameters": [_id()], "get": history},
    }


def _file_paths() -> dict[str, Any]:
    entry = _object(path=_TEXT, type={"enum": ["file", "directory", "link", "other"]}, size=_NUMBER, modified=_TEXT)
    path = _query("path", {"type": "string", "default": "/"}, "A folder.")
    parameters = [
        path,
        _query("recursive", {"type": "boolean", "default": False}, "Also the contents of its folders."),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1000}, "The most entries."),
    ]
    entries = _object(entries=_array(entry), more={"type": "boolean"})
    upload = _operation("Upload a file, or replace it", {"200": entry, "201": entry})
    upload["requestBody"] = {"content": {"application/octet-stream": {"schema": _BYTES}}, "required": True}
    recursive = _query("recursive", {"type": "boolean", "default": False}, "A folder with all its contents.")
    inside = {"name": "path", "in": "path", "required": True, "schema": _TEXT, "description": "It may have slashes."}
    return {
        "/llm/room/{id}/files": {
            "parameters": [_id()],
            "get": _operation("List a room's files", {"200": entries}, None, parameters),
        },
        "/llm/room/{id}/files/{path}": {
            "parameters": [_id(), inside],
            "get": _bytes("Get a file", "application/octet-stream"),
            "put": upload,
            "delete": _operation("Delete a file or a folder", {"200": {"type": "null"}}, None, [recursive]),
        },
        "/llm/room/{id}/zip": {
            "parameters": [_id()],
            "get": _bytes("Get a folder as a zip", "application/zip", [path]),
        },
    }


def _factory_paths() -> dict[str, Any]:
    template = _reference("Template")
    runs = {"404": {"description": "There are no runs; `message` says why.", **_json(_reference("Error"))}}
    none = {"summary": "Runs, which this gateway doesn't keep", "tags": ["rooms"], "responses": runs}
    return {
        "/llm/factory": {"get": _operation("List the templates of rooms", {"200": _array(template)})},
        "/llm/factory/runs": {"get": none, "post": none},
        "/llm/factory/{name}": {
            "parameters": [_named("name")],
            "get": _operation("Show a template", {"200": template}),
            "post": _operation("Rent a room from a template", {"201": _reference("Room")}, "Made"),
        },
    }


def _record_paths() -> dict[str, Any]:
    model = _object(model=_TEXT, description=_TEXT, schema=_ANY)
    page = _object(records=_array(_ANY), next_offset={"type": ["integer", "null"]})
    listing = [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}, "The most records."),
        _query("offset", {**_NUMBER, "default": 0}, "Records to skip."),
        _query("trashed", {"enum": ["exclude", "include", "only"], "default": "exclude"}, "Records in the trash."),
    ]
    one, name = [_named("model"), _named("id")], [_named("model")]
    return {
        "/llm/describe": {"get": _operation("List the models of records", {"200": _array(model)})},
        "/llm/describe/{model}": {
            "parameters": name,
            "get": _operation("Show a model of records", {"200": model}),
            "put": _operation("Make a model of records, or replace its schema", {"200": model}, "Defined"),
        },
        "/llm/data/{model}": {
            "parameters": name,
            "get": _operation("List records, the oldest first", {"200": page}, None, listing),
            "post": _with_object(_operation("Make a record", {"201": _ANY})),
        },
        "/llm/data/{model}/{id}": {
            "parameters": one,
            "get": _operation("Show a record", {"200": _ANY}),
            "patch": _with_object(_operation("Change fields of a record", {"200": _ANY})),
            "delete": _operation("Put a record into the trash", {"200": {"type": "null"}}),
        },
        "/llm/find/{model}": {
            "parameters": name,
            "post": _with_object(_operation("Find records by a query", {"200": page})),
        },
        "/llm/aggregate/{model}": {
            "parameters": name,
            "post": _with_object(
                _operation(
                    "Count, sum and compare records",
                    {"200": _object(groups=_array(_ANY), truncated={"type": "boolean"})},
                )
            ),
        },
    }


def _secret_paths() -> dict[str, Any]:
    secret = _reference("SecretShown")
    return {
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


def _bytes(summary: str, kind: str, parameters: list[Any] | None = None) -> dict[str, Any]:
    found = {"description": summary, "content": {kind: {"schema": _BYTES}}}
    shown: dict[str, Any] = {"summary": summary, "tags": ["rooms"], "responses": {"200": found, **_errors()}}
    return {**shown, "parameters": parameters} if parameters else shown


def _with_object(operation: dict[str, Any]) -> dict[str, Any]:
    return {**operation, "requestBody": _json(_ANY)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT}


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

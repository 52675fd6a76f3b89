"""The file's JSON Schema for editors, generated from the classes that validate the file."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from msgspec import Struct

from gateway.config.fields import IMPORT_STRING
from gateway.config.sections import file_class
from gateway.config.spelling import IGNORED, RENAMED, RUNTIMES
from gateway.config.values import (
    Ctx,
    CtxModel,
    Log,
    MCPServer,
    Model,
    RoomMount,
    Rooms,
    RoomTemplate,
    RoomTools,
    Runtime,
    Server,
)

_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_]\w*(:-[^${}]*)?\}"}


def json_schema() -> dict[str, Any]:
    """Draft 2020-12. Includes old spellings, marked as deprecated."""
    schema = file_class().model_json_schema()
    definitions = schema["$defs"]
    for definition in (schema, *definitions.values()):
        for name, prop in definition["properties"].items():
            definition["properties"][name] = _property(prop)
    model, runtime = definitions["ModelEntry"]["properties"], definitions["RuntimeEntry"]["properties"]
    for properties, values in ((model, Model), (model, Runtime), (runtime, Runtime)):
        _defaults(properties, values)
    _defaults(definitions["RoomsEntry"]["properties"], Rooms)
    _defaults(definitions["RoomToolsEntry"]["properties"], RoomTools)
    _defaults(definitions["RoomMountEntry"]["properties"], RoomMount)
    _defaults(definitions["RoomTemplateEntry"]["properties"], RoomTemplate)
    _defaults(definitions["MCPServerEntry"]["properties"], MCPServer)
    _defaults(definitions["ServerEntry"]["properties"], Server)
    _defaults(definitions["LogEntry"]["properties"], Log)
    _defaults(definitions["CtxEntry"]["properties"], Ctx)
    _defaults(definitions["CtxModelEntry"]["properties"], CtxModel)
    model["tool_call_format"] |= {"anyOf": _formats()}

    schema["properties"]["models"]["additionalProperties"] = False

    for old, new in RENAMED.items():
        model[old] = {**model[new], "deprecated": True, "description": f"Another name of {new}."}
    definitions["ModelEntry"]["properties"]["runtime"]["anyOf"].append({"enum": list(RUNTIMES)})
    schema["properties"]["runtimes"]["anyOf"][0]["propertyNames"]["anyOf"].append({"enum": list(RUNTIMES)})
    for kind, properties in (("file", schema["properties"]), ("model", model), ("runtime", runtime)):
        for name, reason in IGNORED[kind].items():
            ignored = {"deprecated": True, "description": f"Ignored: {reason}."}
            if name in properties:  # also a key of ours: only the app's own values are ignored
                properties[name]["anyOf"].append({"type": "string", **ignored})
            else:
                properties[name] = ignored
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def text() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


def _property(prop: dict[str, Any]) -> dict[str, Any]:
    """Removes titles, which repeat the key, and allows `${NAME}` for a number."""
    prop = {key: value for key, value in prop.items() if key not in ("title", "default")}
    choices = prop.get("anyOf", [])
    if any(choice.get("type") in ("integer", "number") for choice in choices):
        prop["anyOf"] = [*choices, _VARIABLE]
    return prop


def defaults(values: type[Struct]) -> dict[str, Any]:
    """Field → default, for the defaults that `values` spells out."""
    # Not `msgspec.structs.fields`: it resolves annotations, and some names exist only for type checkers.
    given = zip(reversed(values.__struct_fields__), reversed(values.__struct_defaults__), strict=False)
    return {name: default for name, default in given if isinstance(default, str | int | float | tuple)}


def _defaults(properties: dict[str, Any], values: type[Struct]) -> None:
    for name, default in defaults(values).items():
        if name in properties and default != ():
            properties[name]["default"] = default


def _formats() -> list[dict[str, Any]]:
    from normalizers import FormatSpec
    from normalizers.formats import FORMATS

    known = [name for spec in FORMATS for name in (spec.name, *spec.aliases)]
    own = {
        "type": "object",
        "properties": {"like": {"enum": known}} | {field.name: {} for field in fields(FormatSpec)},
        "anyOf": [{"required": ["dialect"]}, {"required": ["like"]}],
        "additionalProperties": False,
    }
    return [{"enum": known}, {"type": "string", "pattern": f"^{IMPORT_STRING.pattern}$"}, own, {"type": "null"}]

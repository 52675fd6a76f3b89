"""The file's JSON Schema for editors, generated from the classes that validate the file."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import fields
from itertools import pairwise
from typing import Any

from gateway.config.fields import IMPORT_STRING
from gateway.config.file import Entry, Keys, defaults, flat
from gateway.config.sections import file_keys
from gateway.config.spelling import IGNORED, RENAMED, RUNTIMES
from gateway.config.values import RequestFields

_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_]\w*(:-[^${}]*)?\}"}


def json_schema() -> dict[str, Any]:
    """Draft 2020-12. Includes old spellings, marked as deprecated."""
    schema = file_keys().form.model_json_schema()
    definitions = schema["$defs"]
    for keys in _all(file_keys()):
        properties = definitions.get(keys.name, schema)["properties"]
        for kind in reversed(keys.kinds):
            for name, default in plain_defaults(kind).items():
                if name in properties and default != ():
                    properties[name]["default"] = default
            for name, text in _docstrings(kind).items():
                if name in properties:
                    properties[name]["description"] = text
    for definition in (schema, *definitions.values()):
        for name, prop in definition["properties"].items():
            definition["properties"][name] = _property(prop)
    model = definitions["Model"]["properties"]
    model["tool_call_format"] |= {"anyOf": _formats()}
    for name in RequestFields.__struct_fields__:
        model[name]["description"] = "Default of a request's field."
    schema["properties"]["models"]["additionalProperties"] = False
    _old_spellings(schema["properties"], model, definitions["Runtime"]["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _old_spellings(file: dict[str, Any], model: dict[str, Any], runtime: dict[str, Any]) -> None:
    """Adds to the properties what `gateway.config.spelling` renames and ignores."""
    for old, new in RENAMED.items():
        model[old] = {**model[new], "deprecated": True, "description": f"Another name of {new}."}
    model["runtime"]["anyOf"].append({"enum": list(RUNTIMES)})
    file["runtimes"]["anyOf"][0]["propertyNames"]["anyOf"].append({"enum": list(RUNTIMES)})
    for kind, properties in (("file", file), ("model", model), ("runtime", runtime)):
        for name, reason in IGNORED[kind].items():
            ignored = {"deprecated": True, "description": f"Ignored: {reason}."}
            if name in properties:  # also a key of ours: only the app's own values are ignored
                properties[name]["anyOf"].append({"type": "string", **ignored})
            else:
                properties[name] = ignored


def text() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


def _property(prop: dict[str, Any]) -> dict[str, Any]:
    """Removes titles, which repeat the key, and allows `${NAME}` for a number."""
    prop = {key: value for key, value in prop.items() if key != "title" and (key, value) != ("default", None)}
    choices = prop.get("anyOf", [])
    if any(choice.get("type") in ("integer", "number") for choice in choices):
        prop["anyOf"] = [*choices, _VARIABLE]
    return prop


def plain_defaults(kind: type[Entry]) -> dict[str, Any]:
    """Field → default, for the defaults that a file could spell out."""
    return {name: value for name, value in defaults(kind).items() if isinstance(value, str | int | float | tuple)}


def _all(keys: Keys, found: tuple[Keys, ...] = ()) -> tuple[Keys, ...]:
    """These and the keys of all values below."""
    found = (*found, keys)
    for field in keys.form.model_fields.values():
        for part in flat(field.annotation):
            if isinstance(part, Keys) and part not in found:
                found = _all(part, found)
    return found


def _docstrings(kind: type[Entry]) -> dict[str, str]:
    """Field → the text below it in the source."""
    found = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(Entry)]):
        (tree,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = " ".join(words.split())
    return found


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

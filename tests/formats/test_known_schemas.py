"""Schemas that llama.cpp's own grammars refuse, of `response_format` and of tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest
from gateway.request.known_schemas import known
from tests.formats.asking import ASK, Json, ask, chat_request, tool
from tests.formats.conftest import Serve, config, external


def object_of(**properties: Any) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties]}


TEXT: Json = {"type": "string", "maxLength": 3}
REF: Json = {"$ref": "#"}
MOVED: Json = {"$ref": "#/$defs/ref0"}


def listed(next: Json) -> Json:
    return {"type": "array", "maxItems": 1, "items": {"type": "object", "properties": {"next": next}}}


TEMPLATE = """{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}"""

# The schema, and what it becomes; None if it stays as it is.
SCHEMAS: dict[str, tuple[Json, Json | None]] = {
    "a plain one": (object_of(a=TEXT), None),
    "a circle below #/": (
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}},
        None,
    ),
    "booleans that are no schemas": (
        {**object_of(a={"const": True}, b={"enum": [False]}, c={"default": 1, **TEXT}), "additionalProperties": False},
        None,
    ),
    "a property of the name $ref": ({"type": "object", "properties": {"$ref": TEXT}}, None),
    "the root, in a list": (
        object_of(a=listed(REF)),
        {**object_of(a=listed(MOVED)), "$defs": {"ref0": object_of(a=listed(MOVED))}},
    ),
    "the root or null": (
        object_of(a={"anyOf": [{"type": "null"}, REF]}),
        {
            **object_of(a={"anyOf": [{"type": "null"}, MOVED]}),
            "$defs": {"ref0": object_of(a={"anyOf": [{"type": "null"}, MOVED]})},
        },
    ),
    "an escaped pointer": (
        {**object_of(a={"$ref": "#/$defs/x~1y"}), "$defs": {"x/y": TEXT}},
        {**object_of(a=MOVED), "$defs": {"x/y": TEXT, "ref0": TEXT}},
    ),
    "a name that is taken": (
        {**object_of(a={"$ref": "#/$defs/~0"}, b=MOVED), "$defs": {"~": TEXT, "ref0": {"type": "null"}}},
        {
            **object_of(a={"$ref": "#/$defs/ref0_"}, b=MOVED),
            "$defs": {"~": TEXT, "ref0": {"type": "null"}, "ref0_": TEXT},
        },
    ),
    "true as a property": (object_of(a=True), object_of(a={})),
    "true as items": (object_of(a={"type": "array", "items": True}), object_of(a={"type": "array", "items": {}})),
    "true in anyOf": (object_of(a={"anyOf": [True, TEXT]}), object_of(a={"anyOf": [{}, TEXT]})),
    "true in allOf": (object_of(a={"allOf": [True, TEXT]}), object_of(a=TEXT)),
    "true alone in allOf": ({"allOf": [True], **object_of(a=TEXT)}, object_of(a=TEXT)),
    "true in $defs": (
        {**object_of(a={"$ref": "#/$defs/t"}), "$defs": {"t": True}},
        {**object_of(a={"$ref": "#/$defs/t"}), "$defs": {"t": {}}},
    ),
    "false as a property": ({**object_of(a=TEXT), "properties": {"a": TEXT, "b": False}}, object_of(a=TEXT)),
    "false in anyOf": (object_of(a={"anyOf": [False, TEXT]}), object_of(a={"anyOf": [TEXT]})),
    "false as items": (
        object_of(a={"type": "array", "items": False}),
        object_of(a={"type": "array", "items": {"type": "null"}, "maxItems": 0}),
    ),
    "false behind prefixItems": (
        object_of(a={"type": "array", "prefixItems": [TEXT], "items": False}),
        object_of(a={"type": "array", "prefixItems": [TEXT]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_becomes_of_it(name: str) -> None:
    schema, wanted = SCHEMAS[name]
    given = json.loads(json.dumps(schema))
    assert known(schema) == (schema if wanted is None else wanted)
    assert schema == given, "the argument stays as it is"


@pytest.mark.some(3)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SCHEMAS)
async def test_the_engine_enforces_it(llama_cpp: str, name: str, stream: bool) -> None:
    schema, _ = SCHEMAS[name]
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway:
        said = await ask(gateway, ASK, response_format=format, stream=stream)
    assert said.content
    if said.finish_reason == "stop":
        jsonschema.validate(json.loads(said.content), schema)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", ["native_json", "hermes"])
async def test_a_tool_may_have_it(serve: Serve, test_model: Path, format: str, stream: bool) -> None:
    """llama.cpp makes a grammar of tools wherever the chat template shows them and their calls."""
    url = serve("xllamacpp", test_model, "--chat-template", TEMPLATE)
    async with Gateway(config(external(url, format))) as gateway:
        for schema, _ in SCHEMAS.values():
            tools = [tool({"name": "f", "parameters": schema})]
            said = await ask(gateway, ASK, tools=tools, stream=stream, max_tokens=4)
            assert said.finish_reason
            request = chat_request(ASK, tools=tools)
            assert await gateway.count_tokens(request)


@pytest.mark.some(2)
@pytest.mark.parametrize("strict", [False, True], ids=["free", "strict"])
@pytest.mark.parametrize("format", ["native_json", "hermes"])
async def test_many_tools_with_large_schemas(serve: Serve, test_model: Path, format: str, strict: bool) -> None:
    """58 tools with 100 kB of schemas, most properties optional, as agents send them."""
    names = [f"t{n}" for n in range(58)]
    field = {"type": "string", "maxLength": 500}
    parameters = {"type": "object", "properties": {f"field_{n}": field for n in range(40)}, "required": ["field_0"]}
    tools = [tool({"name": name, "parameters": parameters, "strict": strict}) for name in names]
    assert len(json.dumps(tools)) > 100_000
    url = serve(
        "xllamacpp",
        test_model,
        "--chat-template",
        TEMPLATE.replace("{{ tool | tojson }}\n", "{{ tool.function.name }} "),
    )
    async with Gateway(config(external(url, format))) as gateway:
        for choice in ("auto", "required", {"type": "function", "function": {"name": "t3"}}):
            said = await ask(gateway, ASK, tools=tools, tool_choice=choice, max_tokens=96)
            assert said.finish_reason, choice
            if choice != "auto":
                assert [name in names for name, _ in said.calls], choice


def test_long_chains_end() -> None:
    """Of references that move."""
    chain = {f"a~{n}": {"$ref": f"#/$defs/a~0{n + 1}"} for n in range(3000)}
    found = known({"$ref": "#/$defs/a~00", "$defs": {**chain, "a~3000": TEXT}})
    assert found["$defs"]["ref3000"] == TEXT
    deep: Any = True
    for _ in range(900):
        deep = {"items": deep}
    assert known(deep)


@pytest.mark.parametrize("reference", ["other.json", "#anchor", "https://x.test/s", "#/$defs/missing", "#/~1"])
async def test_what_cant_be_said_is_refused_by_name(llama_cpp: str, reference: str) -> None:
    schema = object_of(a={"$ref": reference})
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway:
        with pytest.raises(ProviderInvalidRequest) as caught:
            await ask(gateway, ASK, response_format=format)
    assert caught.value.param == "response_format.json_schema.schema"

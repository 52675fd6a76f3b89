"""Structured output (OpenArmature §5, §6, §8.1.5), beyond what the fixtures say."""

from __future__ import annotations

import json
from datetime import date
from typing import Any, Literal, assert_type

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from gateway import errors
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.provider import (
    Capabilities,
    Message,
    OpenAIProvider,
    Response,
    Stream,
    StructuredOutputInvalid,
    SystemMessage,
    Tool,
    Usage,
    UserMessage,
)
from gateway.provider.structured import OutputSchema
from gateway.schema.objects import ObjectSchema

from .doubles import SERVER, provider_of
from .server import completion

HI = [UserMessage("Who?")]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    age: int
    born: date | None = None

    @field_validator("name")
    @classmethod
    def capital(cls, name: str) -> str:
        if not name[:1].isupper():
            raise ValueError("names begin with a capital")
        return name


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Server:
    """Answers with the content given; refuses `response_format` with the refusal given."""

    def __init__(self, content: str, refusal: httpx.Response | None = None) -> None:
        self.content, self.refusal, self.bodies = content, refusal, list[dict[str, Any]]()

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        if self.refusal is not None and "response_format" in body:
            return httpx.Response(self.refusal.status_code, content=self.refusal.content)
        return httpx.Response(200, json=completion(self.content))

    def provider(self, native: bool | None = None) -> OpenAIProvider:
        routes = respx.MockRouter(base_url=SERVER)
        routes.post("/v1/chat/completions").mock(side_effect=self.answer)
        return provider_of(routes, capabilities=Capabilities(native_response_format=native))


async def test_a_model_class_gives_its_instance() -> None:
    server = Server('{"name": "Ada", "age": 36, "born": "1815-12-10"}')
    response = await server.provider().complete(HI, response_schema=Person)
    assert_type(response, Response[Person | None])
    assert response.parsed == Person(name="Ada", age=36, born=date(1815, 12, 10))
    assert response.message.content == server.content
    sent = server.bodies[0]["response_format"]["json_schema"]
    assert (sent["name"], sent["schema"]) == ("Person", Person.model_json_schema())


async def test_a_schema_gives_a_dict_and_no_schema_gives_nothing() -> None:
    provider = Server('{"name": "Ada", "age": 36}').provider()
    structured = await provider.complete(HI, response_schema=PERSON)
    assert_type(structured.parsed, dict[str, Any] | None)
    assert structured.parsed == {"name": "Ada", "age": 36}
    plain = await provider.complete(HI)
    assert_type(plain, Response[None])
    assert plain.parsed is None


async def test_a_recursive_model_has_its_object_at_the_root() -> None:
    server = Server('{"value": 1, "children": [{"value": 2}]}')
    response = await server.provider().complete(HI, response_schema=Node)
    assert response.parsed == Node(value=1, children=[Node(value=2)])
    assert server.bodies[0]["response_format"]["json_schema"]["schema"]["type"] == "object"


async def test_a_model_that_is_no_object_is_refused() -> None:
    with pytest.raises(ProviderInvalidRequest, match="object schema"):
        await Server("").provider().complete(HI, response_schema=RootModel[list[int]])


@pytest.mark.parametrize(
    ("schema", "content", "reason"),
    [
        pytest.param(PERSON, "Ada is 36.", "not JSON", id="prose"),
        pytest.param(PERSON, "", "not JSON", id="nothing"),
        pytest.param(PERSON, '```json\n{"name": "Ada", "age": 36}\n```', "not JSON", id="code fence"),
        pytest.param(PERSON, '{"name": "Ada", "age": NaN}', "NaN", id="NaN"),
        pytest.param(PERSON, "[" * 100_000, "deep", id="nested too deeply"),
        pytest.param(PERSON, "[]", "the value", id="an array"),
        pytest.param(PERSON, '{"name": "Ada"}', "'age'", id="key missing"),
        pytest.param(PERSON, '{"name": "Ada", "age": "36"}', "/age", id="wrong type"),
        pytest.param(Person, '{"name": "Ada", "age": "36"}', "/age", id="wrong type, which pydantic would take"),
        pytest.param(Person, '{"name": "ada", "age": 36}', "/name: .*capital", id="the class's own check"),
        pytest.param(
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "null"}}},
            '{"a/b~c": [null, 1]}',
            "/a~1b~0c/1",
            id="pointer",
        ),
    ],
)
async def test_refused_content_is_carried_whole(schema: Any, content: str, reason: str) -> None:
    with pytest.raises(StructuredOutputInvalid, match=reason) as caught:
        await Server(content).provider().complete(HI, response_schema=schema)
    error = caught.value
    assert isinstance(error, errors.StructuredOutputInvalid)
    assert (error.category, error.transient) == ("structured_output_invalid", False)
    assert (error.output_content, error.finish_reason, error.usage) == (content, "stop", Usage(3, 2, 5))
    assert error.response_schema == (PERSON if schema is PERSON else OutputSchema(schema).schema.schema)
    assert len(error.message) < 1000


REFUSALS = {
    "llama-cpp-python": (500, "body, response_format, type: Input should be 'text' or 'json_object'"),
    "llama.cpp, old": (400, 'response_format type must be one of "text" or "json_object", but got: json_schema'),
    "OpenAI, old model": (400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported"),
    "vLLM, old": (400, "Unrecognized request argument supplied: response_format"),
    "pydantic": (422, "response_format: Extra inputs are not permitted"),
}


@pytest.mark.parametrize(("status", "message"), REFUSALS.values(), ids=REFUSALS)
async def test_the_lack_of_response_format_is_learnt_once(status: int, message: str) -> None:
    server = Server('{"name": "Ada", "age": 36}', httpx.Response(status, json={"error": {"message": message}}))
    provider = server.provider()
    paths = [provider.structured_output]
    for _ in range(2):
        response = await provider.complete(HI, response_schema=PERSON)
        assert response.parsed == {"name": "Ada", "age": 36}
        paths.append(provider.structured_output)
    assert paths == ["native", "prompt", "prompt"]
    assert ["response_format" in body for body in server.bodies] == [True, False, False]
    assert json.dumps(PERSON, separators=(",", ":")) in server.bodies[1]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("native", "status", "message", "category"),
    [
        pytest.param(
            None, 400, "Invalid schema for response_format 'x': must be …", "invalid_request", id="bad schema"
        ),
        pytest.param(None, 400, "temperature must be positive", "invalid_request", id="something else"),
        pytest.param(None, 503, "response_format is not available: overloaded", "unavailable", id="busy"),
        pytest.param(True, 400, "response_format is not supported", "invalid_request", id="native by decree"),
    ],
)
async def test_other_refusals_are_raised(native: bool | None, status: int, message: str, category: str) -> None:
    server = Server("{}", httpx.Response(status, json={"error": {"message": message}}))
    provider = server.provider(native)
    with pytest.raises(GatewayError) as caught:
        await provider.complete(HI, response_schema=PERSON)
    assert (caught.value.category, len(server.bodies)) == (f"provider_{category}", 1)
    assert provider.structured_output == "native"


async def test_the_prompt_extends_a_system_message_and_leaves_the_callers_alone() -> None:
    server = Server('{"name": "Ada", "age": 36}')
    messages: list[Message] = [SystemMessage("Be brief."), *HI]
    tools = [Tool("f", "", {"type": "object"})]
    provider = server.provider(native=False)
    await provider.complete(messages, tools, response_schema=PERSON)
    assert messages == [SystemMessage("Be brief."), *HI]
    head, *rest = server.bodies[0]["messages"]
    assert head["content"].startswith("Be brief.\n\n")
    assert "calling a tool stays allowed" in head["content"]
    assert rest == [{"role": "user", "content": "Who?"}]


def nested(**inner: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        pytest.param(PERSON, True, id="closed"),
        pytest.param({**PERSON, "additionalProperties": True}, False, id="open"),
        pytest.param({k: v for k, v in PERSON.items() if k != "additionalProperties"}, False, id="open by default"),
        pytest.param({**PERSON, "required": ["name"]}, False, id="optional property"),
        pytest.param(nested(type="array", items=PERSON), True, id="closed in an array"),
        pytest.param(nested(type="array", items={"type": "object"}), False, id="open in an array"),
        pytest.param(nested(anyOf=[PERSON, {"type": "null"}]), True, id="choice"),
        pytest.param(nested(anyOf=[{"type": "object"}]), False, id="open in a choice"),
        pytest.param({**PERSON, "anyOf": [PERSON]}, False, id="choice at the root"),
        pytest.param({**nested(**{"$ref": "#/$defs/p"}), "$defs": {"p": PERSON}}, True, id="definition"),
        pytest.param(
            {**nested(**{"$ref": "#/$defs/p"}), "$defs": {"p": {"type": "object"}}}, False, id="open definition"
        ),
        pytest.param(nested(type="object", patternProperties={}), False, id="keyword that strict decoding lacks"),
        pytest.param(nested(oneOf=[PERSON]), False, id="oneOf"),
    ],
)
def test_strict_is_claimed_only_where_it_holds(schema: dict[str, Any], strict: bool) -> None:
    assert ObjectSchema(schema, "response_schema").strict() is strict


# fmt: off
keywords = st.sampled_from([
    "$schema", "$id", "$ref", "$defs", "$anchor", "$dynamicRef", "definitions", "properties", "items", "anyOf", "not",
    "required", "pattern", "format", "enum", "const", "title", "additionalProperties", "minimum", "type", "default",
])
# fmt: on
words = st.sampled_from(
    ["#", "#/$defs/a", "#/properties/a", "a", "http://x.test/s", "object", "string", "(", "integer"]
)
schemas = st.recursive(
    st.booleans() | st.integers(-2, 2) | words | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keywords | st.just("a"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keywords, schemas, max_size=4), schemas)
def test_no_schema_escapes_the_categories(schema: dict[str, Any], value: Any) -> None:
    try:
        checked = ObjectSchema({**schema, "type": "object"}, "response_schema")
        checked.violation(value)
        checked.violation({"a": value})
    except ProviderInvalidRequest:
        return
    assert checked.name()
    assert checked.strict() in (True, False)


def test_names_are_stable_and_fit_the_wire() -> None:
    def name(**keys: Any) -> str:
        return ObjectSchema({"type": "object", **keys}, "response_schema").name()

    assert name(title="A person, plainly") == "A_person_plainly"
    assert len(name(title="x" * 100)) == 64
    assert name(title="→") == name(title="→") != name()
    assert name().startswith("schema_")


async def test_an_error_of_the_server_itself_carries_what_there_is() -> None:
    refusal = httpx.Response(422, json=errors.StructuredOutputInvalid("no").body())
    with pytest.raises(StructuredOutputInvalid) as caught:
        await Server("", refusal).provider().complete(HI, response_schema=PERSON)
    assert (caught.value.output_content, caught.value.usage) == (None, Usage())


async def typed(provider: OpenAIProvider) -> None:
    """Read by mypy alone: a stream's Response is typed as a whole one's is."""
    assert_type(await provider.complete(HI, stream=True), Stream[None])
    assert_type(await provider.complete(HI, response_schema=Person, stream=True), Stream[Person | None])
    stream = await provider.complete(HI, response_schema=PERSON, stream=True)
    assert_type((await stream.response()).parsed, dict[str, Any] | None)


class Verdict(BaseModel):
    answer: Literal["yes", "no"] = Field(alias="the answer")


async def test_aliases_are_what_goes_over_the_wire() -> None:
    server = Server('{"the answer": "yes"}')
    response = await server.provider().complete(HI, response_schema=Verdict)
    assert response.parsed is not None
    assert response.parsed.answer == "yes"

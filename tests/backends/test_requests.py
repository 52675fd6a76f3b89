"""What each engine is sent, and what its errors mean: tables, no engine needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from gateway import backends
from gateway.backends import Address
from gateway.backends.openai import OpenAIBackend
from gateway.config import Model
from gateway.errors import (
    GatewayError,
    ImagesUnsupported,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderModelNotLoaded,
    ProviderUnavailable,
    ProviderUnsupportedContentBlock,
    WeightsMissing,
)
from gateway.wire.chat import ChatRequest, encode
from tests.gateway.double import Double, answers, completion

Json = dict[str, Any]


async def backend(runtime: str, **more: Any) -> OpenAIBackend:
    made = backends.load(runtime)(Model(**{"name": "a", "runtime": runtime, **more}), Address(port=1))
    assert isinstance(made, OpenAIBackend)
    return made


def call(arguments: Any) -> Json:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}


USER: Json = {"role": "user", "content": "hi"}
DEVELOPER: Json = {"role": "developer", "content": "Be brief."}
SYSTEM: Json = {"role": "system", "content": "Be brief."}
NULL_BESIDE_CALLS: Json = {"role": "assistant", "content": None, "tool_calls": [call('{"a":1}')]}
EMPTY_BESIDE_CALLS: Json = {"role": "assistant", "content": "", "tool_calls": [call('{"a":1}')]}
MISSING_BESIDE_CALLS: Json = {"role": "assistant", "tool_calls": [call('{"a":1}')]}
PARTS: Json = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
OBJECT: Json = {"role": "assistant", "content": "", "tool_calls": [call({"a": 1})]}
EMPTY: Json = {"role": "assistant", "content": "", "tool_calls": [call("")]}
NO_ARGUMENTS: Json = {"role": "assistant", "content": "", "tool_calls": [call("{}")]}

MESSAGES: dict[str, tuple[str, Json, Json]] = {
    "llama.cpp reads developer": ("llama.cpp", DEVELOPER, DEVELOPER),
    "llama.cpp reads null": ("llama.cpp", NULL_BESIDE_CALLS, NULL_BESIDE_CALLS),
    "llama.cpp reads objects": ("llama.cpp", OBJECT, OBJECT),
    "llama.cpp fails on empty arguments": ("llama.cpp", EMPTY, NO_ARGUMENTS),
    "mlx hands developer to the template": ("mlx", DEVELOPER, SYSTEM),
    "mlx reads null": ("mlx", NULL_BESIDE_CALLS, NULL_BESIDE_CALLS),
    "mlx reads parts": ("mlx", PARTS, PARTS),
    "llama-cpp-python refuses developer": ("llama-cpp-python", DEVELOPER, SYSTEM),
    "llama-cpp-python fails on null": ("llama-cpp-python", NULL_BESIDE_CALLS, EMPTY_BESIDE_CALLS),
    "llama-cpp-python fails on no content": ("llama-cpp-python", MISSING_BESIDE_CALLS, EMPTY_BESIDE_CALLS),
    "llama-cpp-python fails on parts": ("llama-cpp-python", PARTS, USER),
    "llama-cpp-python refuses objects": ("llama-cpp-python", OBJECT, EMPTY_BESIDE_CALLS),
    "any other server gets what was sent": ("openai", DEVELOPER, DEVELOPER),
}


@pytest.mark.parametrize(("runtime", "sent", "expected"), MESSAGES.values(), ids=MESSAGES)
async def test_messages(runtime: str, sent: Json, expected: Json) -> None:
    fields = {"messages": Raw(encode([USER, sent]))}
    (await backend(runtime)).adapt(fields)
    assert json.loads(bytes(fields["messages"])) == [USER, expected]


@pytest.mark.parametrize("runtime", ["llama.cpp", "mlx", "ollama", "llama-cpp-python", "openai"])
async def test_messages_that_need_nothing_keep_their_bytes(runtime: str) -> None:
    raw = Raw(b'[ {"role": "user",\t"content": "the developer said \\"content\\": null"} ]')
    fields = {"messages": raw}
    (await backend(runtime)).adapt(fields)
    assert fields["messages"] is raw


@pytest.mark.parametrize(
    ("runtime", "kept"),
    [("llama.cpp", True), ("mlx", True), ("openai", True), ("llama-cpp-python", False)],
)
async def test_max_completion_tokens_where_it_is_ignored(runtime: str, kept: bool) -> None:
    fields = {"messages": Raw(b"[]"), "max_completion_tokens": Raw(b"5")}
    (await backend(runtime)).adapt(fields)
    assert fields.get("max_completion_tokens" if kept else "max_tokens") == Raw(b"5")
    assert len(fields) == 2


async def test_mlx_calls_the_repeat_penalty_otherwise() -> None:
    fields = {"messages": Raw(b"[]"), "repeat_penalty": Raw(b"1.1")}
    (await backend("mlx")).adapt(fields)
    assert fields == {"messages": Raw(b"[]"), "repetition_penalty": Raw(b"1.1")}


REFUSED: dict[str, tuple[Json, type[GatewayError], str]] = {
    "a grammar": ({"grammar": "root ::= ((("}, ProviderInvalidRequest, "grammar"),
    "a schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        ProviderInvalidRequest,
        "response_format",
    ),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        ProviderUnsupportedContentBlock,
        "messages[0].content[0]",
    ),
}


@pytest.mark.parametrize(("more", "error", "param"), REFUSED.values(), ids=REFUSED)
async def test_what_llama_cpp_python_is_never_sent(more: Json, error: type[GatewayError], param: str) -> None:
    fields = {name: Raw(encode(value)) for name, value in {"messages": [USER], **more}.items()}
    with pytest.raises(error) as caught:
        (await backend("llama-cpp-python")).adapt(fields)
    assert caught.value.param == param


@pytest.mark.parametrize("more", [{"grammar": None}, {"response_format": {"type": "json_object"}}])
async def test_what_llama_cpp_python_may_be_sent(more: Json) -> None:
    (await backend("llama-cpp-python")).adapt({k: Raw(encode(v)) for k, v in {"messages": [USER], **more}.items()})


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "default_model"),
        ({"model_name": "org/m"}, "org/m"),
        ({"model_name": "x", "path": Path("/m")}, "default_model"),
    ],
    ids=["any server", "one that was told a name", "our own"],
)
async def test_mlx_is_asked_for_the_model_it_has(more: Json, name: str) -> None:
    asked = ChatRequest.parse(encode({"messages": [USER]}))
    async with Double(answers(completion("Hi"))).serve() as double:
        made = backends.load("mlx")(Model(**{"name": "a", "runtime": "mlx", **more}), double.address)
        (await made.open(asked, dict(asked.fields))).close()
        await made.aclose()
    assert double.requests[0].json["model"] == name


def body(message: str, kind: str = "server_error", code: Any = None, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "code": code, **more}}).encode()


PYDANTIC = (
    "1 validation error:\n  {'type': 'int_parsing', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be a valid "
    "integer', 'input': 'many'}\n\n  File \"/site-packages/llama_cpp/server/app.py\", line 376"
)
NESTED = (
    "7 validation errors:\n  {'type': 'literal_error', 'loc': ('body', 'messages', 0, "
    "'ChatCompletionRequestSystemMessage', 'role'), 'msg': \"Input should be 'system'\", 'input': 'wizard'}"
)

ERRORS: dict[str, tuple[str, int, bytes, type[GatewayError], str]] = {
    # llama-server, as recorded
    "loading": ("llama.cpp", 503, body("Loading model", "unavailable_error", 503), ProviderModelNotLoaded, "Loading"),
    "key": ("llama.cpp", 401, body("Invalid API Key", "authentication_error"), ProviderAuthentication, "API Key"),
    "roleless": ("llama.cpp", 500, body("Failed to parse messages: Missing 'role'"), ProviderInvalidRequest, "role"),
    "tools": ("llama.cpp", 500, body("Failed to parse tools: Missing tool type"), ProviderInvalidRequest, "tool type"),
    "schema": ("llama.cpp", 500, body("JSON schema error at #: unrecognized type"), ProviderInvalidRequest, "schema"),
    "image": ("llama.cpp", 500, body("image input is not supported"), ImagesUnsupported, "image"),
    "a part of no known kind": (
        *("llama.cpp", 400, body("unsupported content[].type"), ProviderUnsupportedContentBlock, "doesn't support"),
    ),
    "audio": ("llama.cpp", 500, body("audio input is not supported"), ProviderUnsupportedContentBlock, "audio"),
    "broken": ("llama.cpp", 500, body("llama_decode failed"), ProviderUnavailable, "llama_decode failed"),
    "router: no such model": ("llama.cpp", 400, body("model 'x' not found"), ProviderInvalidModel, "'x'"),
    "router: not loaded": ("llama.cpp", 400, body("model is not loaded"), ProviderModelNotLoaded, "not loaded"),
    "not json": ("llama.cpp", 502, b"<html>Bad Gateway</html>", ProviderUnavailable, "Bad Gateway"),
    "a bare string": ("llama.cpp", 500, b'"oops"', ProviderUnavailable, "oops"),
    "an error without an object": ("llama.cpp", 500, b'{"error": "oops"}', ProviderUnavailable, "oops"),
    # llama_cpp.server, as recorded
    "a field": ("llama-cpp-python", 500, body(PYDANTIC), ProviderInvalidRequest, "max_tokens: Input should be a valid"),
    "a nested field": ("llama-cpp-python", 500, body(NESTED), ProviderInvalidRequest, "messages[0].role: Input should"),
    "no such tool": (
        "llama-cpp-python",
        500,
        body("Tool choice 'x' not found in tools."),
        ProviderInvalidRequest,
        "'x'",
    ),
    "its own fault": ("llama-cpp-python", 500, body("llama_decode returned -3"), ProviderUnavailable, "returned -3"),
    "no words": ("llama-cpp-python", 500, b"Internal Server Error", ProviderUnavailable, "Internal"),
    # mlx_lm.server, as recorded: 404 for nearly everything
    "bad arguments": ("mlx", 404, b'{"error": "Expecting value: line 1"}', ProviderInvalidRequest, "Expecting value"),
    "template": ("mlx", 404, b"{\"error\": \"'dict object' has no attribute 'role'\"}", ProviderInvalidRequest, "role"),
    "parts": (
        "mlx",
        404,
        b'{"error": "Only \'text\' content type is supported."}',
        ImagesUnsupported,
        "",
    ),
    "no such repository": (
        "mlx",
        404,
        b'{"error": "Cannot find an appropriate cached snapshot folder for the specified revision"}',
        ProviderInvalidModel,
        "snapshot",
    ),
    "dead": ("mlx", 404, b'{"error": "generation thread died"}', ProviderUnavailable, "died"),
    "unhealthy": ("mlx", 503, b'{"status": "unavailable"}', ProviderUnavailable, "not ready"),
    "value": ("mlx", 400, b'{"error": "temperature must be at least 0"}', ProviderInvalidRequest, "temperature"),
    # Ollama, as documented
    "not pulled": (
        "ollama",
        404,
        body('model "a" not found', "not_found_error"),
        WeightsMissing,
        "ollama pull a",
    ),
    "unread call": ("ollama", 500, body("error parsing tool call: raw='x'"), ProviderInvalidResponse, "raw='x'"),
    "no tools": ("ollama", 400, body("a does not support tools", "api_error"), ProviderInvalidRequest, "tools"),
    "runner": ("ollama", 500, body("llama runner process has terminated"), ProviderUnavailable, "terminated"),
}


@pytest.mark.parametrize(("runtime", "status", "raw", "error", "words"), ERRORS.values(), ids=ERRORS)
async def test_errors(runtime: str, status: int, raw: bytes, error: type[GatewayError], words: str) -> None:
    made = (await backend(runtime)).error(status, raw)
    assert type(made) is error
    assert words in str(made)
    assert "site-packages" not in str(made)


async def test_pydantics_complaint_names_the_field() -> None:
    assert (await backend("llama-cpp-python")).error(500, body(NESTED)).param == "messages[0].role"


CONTEXT: dict[str, tuple[str, bytes]] = {
    "llama.cpp": (
        "llama.cpp",
        body("request (6031 tokens) exceeds", "exceed_context_size_error", 400, n_prompt_tokens=6031, n_ctx=2048),
    ),
    "llama-cpp-python": (
        "llama-cpp-python",
        body(
            "This model's maximum context length is 2048 tokens. However, you requested 6055 tokens (6031 in the "
            "messages, 24 in the completion).",
            "invalid_request_error",
            "context_length_exceeded",
        ),
    ),
    "mlx": ("mlx", b'{"error": "request (6031 tokens) exceeds the available context size (2048 tokens)"}'),
}


@pytest.mark.parametrize(("runtime", "raw"), CONTEXT.values(), ids=CONTEXT)
async def test_the_context_is_told_with_both_numbers(runtime: str, raw: bytes) -> None:
    error = (await backend(runtime)).error(400 if runtime != "mlx" else 404, raw)
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert error.details == {"prompt_tokens": 6031, "context_window": 2048}


DETAILS = {
    "a text": (b'{"detail": "no such voice"}', "no such voice"),
    "an object": (b'{"detail": {"error": "validation_error", "message": "no such voice"}}', "no such voice"),
    "fields": (
        b'{"detail": [{"loc": ["body", "voice"], "msg": "Field required"}, {"loc": ["body"], "msg": "odd"}, 3]}',
        "voice: Field required; odd",
    ),
    "nothing": (b'{"detail": []}', "{'detail': []}"),
}


@pytest.mark.parametrize(("raw", "said"), DETAILS.values(), ids=DETAILS)
async def test_what_fastapi_says(raw: bytes, said: str) -> None:
    """As kokoro-fastapi and speaches refuse."""
    assert str((await backend("openai")).error(422, raw)) == f"the engine answered 422: {said}"


TEMPLATES: dict[str, tuple[dict[str, str], bool]] = {
    "its own file": ({"chat_template.jinja": "{% if tools %}"}, True),
    "its own file, no tools": (
        {"chat_template.jinja": "{{ x }}", "tokenizer_config.json": '{"chat_template":"tools"}'},
        False,
    ),
    "in the tokenizer's file": ({"tokenizer_config.json": '{"chat_template": "{% if tools %}"}'}, True),
    "several": ({"tokenizer_config.json": '{"chat_template": [{"name": "tool_use", "template": "x"}]}'}, True),
    "a json file": ({"chat_template.json": '{"chat_template": "{{ tools }}"}', "tokenizer_config.json": "{}"}, True),
    "none": ({"tokenizer_config.json": "{}"}, False),
    "nothing": ({}, False),
}


@pytest.mark.parametrize(("files", "takes"), TEMPLATES.values(), ids=TEMPLATES)
async def test_mlx_takes_tools_by_the_models_folder(files: dict[str, str], takes: bool, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    made = await backend("mlx", path=tmp_path)
    assert await made.takes_tools() is takes

"""A field that is null is absent, on every API: it overrides nothing that is configured, and no engine sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest

from gateway.errors import GatewayError
from gateway.features.messages.wire import request as messages
from gateway.features.ollama.wire.request import Chat, Embed, Generate
from gateway.features.responses.wire import request as responses
from gateway.features.vectors.wire.embeddings import CreateEmbedding, CreateRerank
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.completions import CreateCompletion
from gateway.wire.nulls import without_nulls
from tests.gateway.double import Exchange, Json, chunk, completion
from tests.gateway.running import running
from tests.patience import PATIENCE

HELLO: list[Json] = [{"role": "user", "content": "Hello"}]
SCHEMA: Json = {"type": "object", "properties": {"a": {"enum": ["x", None], "default": None}}}
FUNCTION: Json = {"name": "f", "description": "F.", "parameters": SCHEMA, "strict": False}
TOOL: Json = {"type": "function", "function": FUNCTION}
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
COMMON: Json = {"model": "m", "temperature": 0.5, "top_p": 0.5, "seed": 3, "service_tier": "flex", "stream": False}

FULL: dict[str, Json] = {
    "/v1/chat/completions": {
        **COMMON,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "x"}}], "name": "n"},
            {"role": "assistant", "content": "x", "refusal": "r", "reasoning_content": "y", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "1"},
        ],
        "max_tokens": 9,
        "max_completion_tokens": 9,
        "stop": ["a"],
        "n": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"5": 1},
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": True,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "low",
        "call_deltas": "always",
        "call_threshold": 0.5,
        "unknown_here": 1,
    },
    "/v1/completions": {
        **COMMON,
        "prompt": "Hi",
        "max_tokens": 9,
        "stop": "a",
        "n": 1,
        "logprobs": 1,
        "echo": False,
        "best_of": 1,
        "logit_bias": {"5": 1},
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "stream_options": {"include_usage": True},
        "top_k": 3,
    },
    "/v1/responses": {
        **COMMON,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}], "id": "msg_1"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n", "status": "s"},
            {"type": "function_call_output", "call_id": "c", "output": "1", "id": "fco_1"},
        ],
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "top_logprobs": 2,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {
            "format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"},
            "verbosity": "low",
        },
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": True,
        "truncation": "auto",
        "user": "u",
        "store": False,
    },
    "/v1/messages": {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "x"}}]}],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "x"}}],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "stop_sequences": ["a"],
        "stream": False,
        "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "tools": [{"name": "f", "description": "F.", "input_schema": SCHEMA, "type": "custom", "strict": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "service_tier": "auto",
        "metadata": {"user_id": "u"},
    },
    "/v1/embeddings": {
        "model": "m",
        "input": ["Hi"],
        "encoding_format": "float",
        "dimensions": 2,
        "user": "u",
        "service_tier": "flex",
    },
    "/v1/rerank": {
        "model": "m",
        "query": "q",
        "documents": [{"text": "t", "title": "u"}],
        "top_n": 1,
        "return_documents": True,
        "service_tier": "flex",
    },
    "/api/chat": {
        "model": "m",
        "messages": [
            {"role": "user", "content": "Hi", "name": "n", "tool_name": "x"},
            {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [{"function": {"name": "f"}}]},
        ],
        "stream": False,
        "format": "json",
        "think": True,
        "keep_alive": "5m",
        "tools": [TOOL],
        "service_tier": "flex",
        "options": {"temperature": 0.5, "num_predict": 9, "stop": ["a"], "seed": 3, "top_k": 3, "num_ctx": 7},
    },
    "/api/generate": {
        "model": "m",
        "prompt": "Hi",
        "system": "Be brief.",
        "suffix": "x",
        "raw": True,
        "stream": False,
        "format": "json",
        "images": [],
        "options": {"temperature": 0.5, "num_predict": 9},
    },
    "/api/embed": {"model": "m", "input": ["Hi"], "dimensions": 2, "service_tier": "flex", "options": {"num_ctx": 7}},
}
"""A request of each API with its fields."""


def _of_response(body: bytes) -> Json:
    wanted = responses.CreateResponse.parse(body)
    return responses.chat_fields(wanted, wanted.items, responses.ToolTable(wanted.tools))


def _of_generate(body: bytes) -> Json:
    wanted = Generate.parse(body)
    return wanted.completion_fields() | wanted.chat_fields()


def _of_embed(body: bytes) -> Embed:
    wanted = Embed.parse(body)
    wanted.options = wanted.options or None
    return wanted


READ: dict[str, Callable[[bytes], Any]] = {
    "/v1/chat/completions": lambda body: ChatRequest.parse(body).fields,
    "/v1/completions": lambda body: CreateCompletion.parse(body).parts("openai")[0].fields,
    "/v1/responses": _of_response,
    "/v1/messages": lambda body: messages.chat_fields(messages.CreateMessage.parse(body)),
    "/v1/embeddings": lambda body: CreateEmbedding.parse(body).fields,
    "/v1/rerank": lambda body: CreateRerank.parse(body).fields,
    "/api/chat": lambda body: Chat.parse(body).chat_fields(),
    "/api/generate": _of_generate,
    "/api/embed": _of_embed,
}
"""What becomes of a body, without an engine."""

VALUES = ("parameters", "schema", "input_schema", "arguments", "metadata", "documents")
"""Within them, null is a value, and not a field's."""


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every field of a body."""
    for name, one in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and name != "content":
            yield (*way, name)
        if isinstance(one, dict | list) and name not in VALUES:
            yield from places(one, (*way, name))


def without(body: Json, way: tuple[Any, ...], value: Any = ...) -> bytes:
    """The body without one of its fields; with `value` there, if it is given."""
    changed = deepcopy(body)
    *before, last = way
    inner: Any = changed
    for step in before:
        inner = inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(changed).encode()


def read(path: str, body: bytes) -> Any:
    """What becomes of the body; for one that is refused, the reason."""
    try:
        return READ[path](body)
    except GatewayError as error:
        return error.message


CASES = [(path, way) for path, body in FULL.items() for way in places(body)]


def test_there_are_enough_cases() -> None:
    assert len(CASES) > 150
    assert {path for path, _ in CASES} == {*READ}


@pytest.mark.parametrize("path", READ)
def test_null_is_read_as_if_the_field_were_missing(path: str) -> None:
    for way in (way for case, way in CASES if case == path):
        body = FULL[path]
        missing, null = read(path, without(body, way)), read(path, without(body, way, None))
        assert as_json(null) == as_json(missing), way


def as_json(read: Any) -> Any:
    """Without objects that are empty: one whose only field is null goes, too."""
    made = json.loads(encode(read))
    return {name: one for name, one in made.items() if one != {}} if isinstance(made, dict) else made


KEPT: dict[str, Json] = {
    "a message's content": {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
    "a schema": {"tools": [{"type": "function", "function": FUNCTION}], "messages": HELLO},
    "an answer's schema": {"response_format": {"json_schema": {"schema": SCHEMA}}, "messages": HELLO},
    "a call's arguments": {"messages": [{"tool_calls": [{"function": {"arguments": {"a": None}}}]}]},
    "a call's input": {"messages": [{"content": [{"type": "tool_use", "input": {"a": None}}]}]},
    "a result": {"input": [{"type": "function_call_output", "output": {"a": None}}]},
    "an unknown object": {"vllm_xargs": {"a": None}, "messages": HELLO},
    "a list's null": {"stop": [None]},
    "a text": {"messages": [{"role": "user", "content": '{"name": null}'}]},
    "a document": {"documents": [{"text": "x", "title": None}]},
    "a schema of Ollama": {"format": {"enum": [None], "default": None}},
}
"""Where null is no field's."""


@pytest.mark.parametrize("name", KEPT)
def test_a_null_that_is_a_value_stays(name: str) -> None:
    body = json.dumps(KEPT[name]).encode()
    assert without_nulls(body) is body


GONE: dict[str, tuple[Json, Json]] = {
    "all": ({"stop": None, "n": None}, {}),
    "an object that is empty then": ({"stream_options": {"include_usage": None}}, {}),
    "an object that was empty": ({"options": {}, "n": None}, {"options": {}}),
    "beside a value": ({"response_format": {"type": "text", "schema": None}}, {"response_format": {"type": "text"}}),
    "in a list": ({"tools": [{"name": "f", "strict": None}]}, {"tools": [{"name": "f"}]}),
    "a bias": ({"logit_bias": {"5": None, "6": 1}}, {"logit_bias": {"6": 1}}),
    "beside a content": (
        {"messages": [{"role": "user", "content": None, "name": None}]},
        {"messages": [{"role": "user", "content": None}]},
    ),
    "a part of a content": (
        {"messages": [{"content": [{"text": "x", "cache_control": None}]}]},
        {"messages": [{"content": [{"text": "x"}]}]},
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_a_field_that_is_null_goes(name: str) -> None:
    body, left = GONE[name]
    assert json.loads(without_nulls(json.dumps(body).encode())) == left


@pytest.mark.parametrize("body", [b"", b"null", b"[null]", b'{"a":null', b'"null"'])
def test_what_cant_be_read_stays_as_it_is(body: bytes) -> None:
    assert without_nulls(body) == body


CONFIGURED: Json = {"max_tokens": 8, "temperature": 0.25, "top_p": 0.5, "top_k": 7, "seed": 5, "stop": ["zzz"]}
NULLS: dict[str, Json] = {
    "/v1/chat/completions": {"messages": HELLO, **dict.fromkeys((*CONFIGURED, "max_completion_tokens"))},
    "/v1/completions": {"prompt": "Hi", **dict.fromkeys(CONFIGURED)},
    "/v1/responses": {"input": "Hi", "max_output_tokens": None, "temperature": None, "top_p": None, "seed": None},
    "/v1/messages": {
        "max_tokens": 8,
        "messages": HELLO,
        "stop_sequences": None,
        **dict.fromkeys(("temperature", "top_p", "top_k")),
    },
    "/api/chat": {"messages": HELLO, "options": dict.fromkeys((*CONFIGURED, "num_predict"))},
    "/api/generate": {"prompt": "Hi", "options": dict.fromkeys((*CONFIGURED, "num_predict"))},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_null_overrides_nothing_that_is_configured(stream: bool) -> None:
    async with running(_answer, defaults=CONFIGURED) as gateway:
        for path, body in NULLS.items():
            answer = await gateway.ask({"model": "m", "stream": stream, **body}, path)
            assert answer.status == 200, answer.body
            sent = gateway.engine.requests[-1].json
            assert {name: sent.get(name) for name in CONFIGURED} == CONFIGURED, path
            assert None not in sent.values(), path


async def _answer(exchange: Exchange) -> None:
    if not exchange.json.get("stream"):
        return await exchange.whole(completion())
    await exchange.start()
    await exchange.event(chunk("Hello"), chunk(reason="stop"))
    await exchange.end()


REFUSED_BEFORE: dict[str, Json] = {
    "name": {"messages": [{"role": "user", "content": "Hello", "name": None}]},
    "an old answer": {
        "messages": [
            *HELLO,
            {"role": "assistant", "content": "x", **dict.fromkeys(("name", "refusal", "audio", "tool_calls"))},
            *HELLO,
        ]
    },
    "a result's name": {
        "messages": [
            *HELLO,
            {"role": "assistant", "content": None, "function_call": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "name": None, "content": "1"},
        ]
    },
    "a tool's type": {"messages": HELLO, "tools": [{"type": None, "function": FUNCTION}]},
    "a tool's schema": {
        "messages": HELLO,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": None}}],
    },
    "a format's type": {"messages": HELLO, "response_format": {"type": None}},
    "a field of the engine": {"messages": HELLO, "reasoning_format": None},
    "functions": {"messages": HELLO, "functions": None, "function_call": None, "tools": [TOOL]},
}
"""By the engine, or by the gateway."""


@pytest.mark.parametrize("stream", [False, True])
def test_null_is_refused_nowhere(real: str, stream: bool) -> None:
    for name, body in REFUSED_BEFORE.items():
        asked = {"model": "tiny", "max_tokens": 2, "stream": stream, **body}
        answer = httpx.post(f"{real}/v1/chat/completions", json=asked, timeout=PATIENCE)
        assert answer.status_code == 200, (name, answer.text)
        assert '"error"' not in answer.text, name

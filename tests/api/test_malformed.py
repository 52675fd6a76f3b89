"""Puts a value of another type at every place of a request: the answer is a 200 or an error of the client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.double import Exchange, Json, chunk, completion
from tests.gateway.mutations import mutations
from tests.gateway.running import Running, running

PICTURE = "iVBORw0KGgo="
IMAGE: Json = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
SCHEMA: Json = {"type": "object", "properties": {"n": {"type": "integer", "pattern": "a"}}, "required": ["n"]}
# OpenAI's rule forbids the dot in its name.
TOOL: Json = {"type": "function", "function": {"name": "f.g", "description": "d", "parameters": SCHEMA, "strict": True}}
BY_SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
ALLOWED: Json = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}
TEXT: Json = {"type": "input_text", "text": "x"}
SAID: Json = {"type": "text", "text": "x"}
SAID_BY_USER: Json = {"role": "user", "content": "x"}

CHAT: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}, IMAGE]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "ok"},
        SAID_BY_USER,
    ],
    "tools": [TOOL],
    "tool_choice": ALLOWED,
    **{"n": 1, "stop": ["a"], "max_tokens": 3, "max_completion_tokens": 3, "reasoning_effort": "low", "logprobs": True},
    **{"stream_options": {"include_usage": True}, "parallel_tool_calls": False, "options": {"num_ctx": 5}},
    **{"keep_alive": 5, "think": True, "chat_template_kwargs": {"a": 1}, "repeat_penalty": 1.1, "stream": False},
}
RESPONSE: Json = {
    "model": "m",
    "input": [
        {"type": "message", "role": "user", "content": [TEXT, {"type": "input_image", "image_url": "data:,AA"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc"},
        {"type": "function_call_output", "call_id": "c", "output": [TEXT]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "x"},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "x"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "d"},
        {"type": "web_search\r\nx-not: a header"},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "q"}]},
    ],
    **{"instructions": "i", "tool_choice": "auto", "reasoning": {"effort": "low", "summary": "auto"}, "store": False},
    **{"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}, "metadata": {"a": "b"}},
    **{"include": ["reasoning.encrypted_content"], "max_output_tokens": 5, "stream": False, "background": False},
}
MESSAGE: Json = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                SAID,
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
                {"type": "document", "source": {"type": "text", "data": "x", "media_type": "text/plain"}, "title": "t"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "u", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": [SAID], "is_error": True}]},
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True},
        {"type": "web_search_1\nx: y", "name": "w"},
    ],
    **{"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "metadata": {"user_id": "x"}, "top_k": 1},
    **{"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, "stop_sequences": ["x"]},
    **{"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}}, "stream": False},
}
OLLAMA: Json = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "x", "images": [PICTURE]},
        {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "content": "x", "tool_name": "f"},
    ],
    **{"tools": [TOOL], "format": {"type": "object"}, "options": {"num_predict": 3, "stop": ["x"], "temperature": 1}},
    **{"think": True, "stream": False, "keep_alive": "5m"},
}
GENERATE: Json = {"model": "m", "prompt": "x", "images": [PICTURE], "system": "s", "format": "json", "think": "low"}
COMPLETION: Json = {"model": "m", "prompt": ["x"], "max_tokens": 3, "stop": ["x"], "stream": False, "n": 1}
EMBEDDING: Json = {"model": "m", "input": ["x"], "encoding_format": "base64", "dimensions": 1}

REQUESTS: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat, held": ("/v1/chat/completions", {**CHAT, "messages": [SAID_BY_USER], "response_format": BY_SCHEMA}),
    "responses": ("/v1/responses", RESPONSE),
    "its tokens": ("/v1/responses/input_tokens", RESPONSE),
    "messages": ("/v1/messages", MESSAGE),
    "their tokens": ("/v1/messages/count_tokens", MESSAGE),
    "Ollama, chat": ("/api/chat", OLLAMA),
    "Ollama, generate": ("/api/generate", GENERATE),
    "Ollama, raw": ("/api/generate", {"model": "m", "prompt": "x", "raw": True, "options": {"seed": 1}}),
    "Ollama, show": ("/api/show", {"model": "m"}),
    "completions": ("/v1/completions", COMPLETION),
}
EMBEDDING_REQUESTS: dict[str, tuple[str, Json]] = {
    "embeddings": ("/v1/embeddings", EMBEDDING),
    "Ollama, embed": ("/api/embed", {"model": "m", "input": ["x"], "dimensions": 1}),
    "Ollama, embeddings": ("/api/embeddings", {"model": "m", "prompt": "x"}),
    "rerank": ("/v1/rerank", {"model": "m", "query": "x", "documents": ["a", {"text": "b"}], "top_n": 1}),
}
RUNTIMES = ("ollama", "llama.cpp", "mlx", "llama-cpp-python", "echo")


async def engine(exchange: Exchange) -> None:
    """Answers any request."""
    path, asked = exchange.path, exchange.json if exchange.body else {}
    if path == "/v1/embeddings":
        vectors = [{"index": at, "embedding": [0.5]} for at in range(len(asked["input"]))]
        await exchange.whole({"data": vectors})
    elif path == "/api/chat":
        await exchange.whole({"message": {"content": '{"n":1}'}, "done": True})
    elif path == "/v1/completions" and not asked.get("stream"):
        await exchange.whole({"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]})
    elif path in ("/v1/chat/completions", "/v1/completions") and asked.get("stream") is True:
        await exchange.start()
        await exchange.event(chunk('{"n":1}') if "chat" in path else {"choices": [{"index": 0, "text": "Hi"}]})
        await exchange.end()
    elif path == "/v1/chat/completions":
        await exchange.whole(completion('{"n":1}'))
    else:
        await exchange.whole({"prompt": "Hi", "tokens": [1], "version": "0.12.6", "template": ".Tools"})


async def broken(gateway: Running, path: str, request: Json) -> list[str]:
    """Sends each mutation of a request; returns those answered by a 500 or not at all."""
    found: list[str] = []
    left = [*mutations(request)]
    while left:
        async with await gateway.connect() as client:
            closed = False
            while left and not closed:
                place, body = left.pop()
                try:
                    answer = await client.ask(json.dumps(body).encode(), path)
                except (OSError, asyncio.IncompleteReadError) as error:
                    found.append(f"{place}: {error!r}: {body}")
                    break
                if answer.status == 500:
                    found.append(f"{place}: {body}")
                closed = answer.headers.get("connection") == "close"
    return found


@pytest.mark.some(2)
@pytest.mark.parametrize("name", REQUESTS)
async def test_no_request_is_answered_500(name: str) -> None:
    path, request = REQUESTS[name]
    async with running(engine) as gateway:
        assert (await gateway.ask(request, path)).status == 200, "the unchanged request is valid"
        assert await broken(gateway, path, request) == []


@pytest.mark.parametrize("name", EMBEDDING_REQUESTS)
async def test_no_embedding_request_is_answered_500(name: str) -> None:
    path, request = EMBEDDING_REQUESTS[name]
    async with running(engine, role="embedding") as gateway:
        assert (await gateway.ask(request, path)).status == 200, "the unchanged request is valid"
        assert await broken(gateway, path, request) == []


FORMATS: dict[str, tuple[str, Any]] = {
    **{f"{runtime}, its own calls": (runtime, "native_json") for runtime in RUNTIMES},
    **{f"{runtime}, its text": (runtime, "lfm2") for runtime in ("openai", "llama.cpp", "ollama")},
}


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", FORMATS)
async def test_no_chat_is_answered_500_by_any_engine(kind: str) -> None:
    path, request = REQUESTS["chat"]
    runtime, format = FORMATS[kind]
    async with running(engine, runtime=runtime, tool_call_format=format) as gateway:
        assert await broken(gateway, path, request) == []

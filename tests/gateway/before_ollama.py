"""A gateway before the double of Ollama, and its answers by three APIs, whole and streamed, in one form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.backends.ollama_double import OllamaDouble
from tests.gateway.client import Answer
from tests.gateway.double import Json, answers
from tests.gateway.running import Running, running

APIS = ("chat", "messages", "responses")
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


@dataclass
class Said:
    """status: of HTTP, or 500 for an error within a stream. cut: an answer that ended too early."""

    status: int = 200
    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    cut: bool = False
    error: Json = field(default_factory=dict)
    usage: tuple[int, int] = (0, 0)


@asynccontextmanager
async def before(double: OllamaDouble, model: str = "m", **settings: Any) -> AsyncIterator[Running]:
    """model: Ollama's name of the gateway's model `m`."""
    async with double.serve() as at:
        of_ollama = {"runtime": "ollama", "base_url": f"http://127.0.0.1:{at.port}", "model_name": model}
        async with running(answers(), **{**of_ollama, **settings}) as gateway:
            yield gateway


async def ask(
    gateway: Running, api: str, said: str, /, *, stream: bool, tools: list[Json] | None = None, **more: Any
) -> Said:
    """more: further fields in the words of the API. tools: as chat completions declare them."""
    messages = [{"role": "user", "content": said}]
    body: Json = {"model": "m", "stream": stream}
    functions = [tool["function"] for tool in tools or ()]
    match api:
        case "chat":
            body |= {"messages": messages, **({"stream_options": {"include_usage": True}} if stream else {})}
            declared: list[Json] = tools or []
        case "messages":
            body |= {"messages": messages, "max_tokens": 200}
            declared = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
        case _:
            body |= {"input": said, "store": False}
            declared = [{"type": "function", **one} for one in functions]
    if tools:
        body["tools"] = declared
    answer = await gateway.ask({**body, **more}, PATHS[api])
    if answer.status != 200:
        return Said(answer.status, error=answer.json["error"])
    return {"chat": _chat, "messages": _messages, "responses": _responses}[api](answer, stream)


def named(api: str, tool: str) -> Json:
    """`tool_choice` with a tool's name, in the words of the API."""
    match api:
        case "chat":
            return {"type": "function", "function": {"name": tool}}
        case "messages":
            return {"type": "tool", "name": tool}
    return {"type": "function", "name": tool}


def required(api: str) -> Any:
    return {"type": "any"} if api == "messages" else "required"


def _chat(answer: Answer, stream: bool) -> Said:
    if not stream:
        body = answer.json
        choice = body["choices"][0]
        message = choice["message"]
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        counted = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
        return Said(200, message["content"] or "", calls, choice["finish_reason"] == "length", usage=counted)
    said, parts = Said(), list[list[str]]()
    for chunk in map(json.loads, answer.events[:-1]):
        if "error" in chunk:
            said.status, said.error = 500, chunk["error"]
            continue
        if usage := chunk.get("usage"):
            said.usage = usage["prompt_tokens"], usage["completion_tokens"]
        for frame in chunk["choices"]:
            said.text += frame["delta"].get("content") or ""
            said.cut = said.cut or frame["finish_reason"] == "length"
            for call in frame["delta"].get("tool_calls") or ():
                if call["index"] == len(parts):
                    parts.append([call["function"]["name"], ""])
                parts[call["index"]][1] += call["function"].get("arguments") or ""
    said.calls = [(name, json.loads(text)) for name, text in parts]
    return said


def _messages(answer: Answer, stream: bool) -> Said:
    if not stream:
        body = answer.json
        text = "".join(part["text"] for part in body["content"] if part["type"] == "text")
        calls = [(part["name"], part["input"]) for part in body["content"] if part["type"] == "tool_use"]
        counted = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
        return Said(200, text, calls, body["stop_reason"] == "max_tokens", usage=counted)
    said, parts = Said(), dict[int, list[str]]()
    for event in _data(answer):
        match event["type"]:
            case "error":
                said.status, said.error = 500, event["error"]
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                parts[event["index"]] = [event["content_block"]["name"], ""]
            case "content_block_delta":
                said.text += event["delta"].get("text", "")
                if "partial_json" in event["delta"]:
                    parts[event["index"]][1] += event["delta"]["partial_json"]
            case "message_delta":
                said.cut = event["delta"]["stop_reason"] == "max_tokens"
                said.usage = event["usage"].get("input_tokens", 0), event["usage"]["output_tokens"]
    said.calls = [(name, json.loads(text or "{}")) for name, text in parts.values()]
    return said


def _responses(answer: Answer, stream: bool) -> Said:
    body = answer.json if not stream else {}
    for event in _data(answer) if stream else ():
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            body = event["response"]
    if body["status"] == "failed":
        return Said(500, error=body["error"])
    text = "".join(part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"])
    calls = [
        (item["name"], json.loads(item["arguments"])) for item in body["output"] if item["type"] == "function_call"
    ]
    counted = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
    return Said(200, text, calls, body["status"] == "incomplete", usage=counted)


def _data(answer: Answer) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]

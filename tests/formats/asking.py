"""Requests to a `Gateway`, whole and streamed, and the two folded to one form."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from gateway.core import Gateway
from gateway.wire.chat import ChatRequest

Json = dict[str, Any]

WEATHER: Json = {
    "name": "get_weather",
    "description": "Current weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
}
ASK: Json = {"role": "user", "content": "What is the weather in Paris in celsius?"}


def tool(function: Json) -> Json:
    return {"type": "function", "function": function}


@dataclass
class Said:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Json | None = None
    ctxgate: Json = field(default_factory=dict)

    @property
    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def chat_request(*messages: Json, **fields: Any) -> ChatRequest:
    body = {"messages": messages or [ASK], "temperature": 0, "max_tokens": 96, **fields}
    return ChatRequest.parse(json.dumps(body).encode())


async def ask(gateway: Gateway, *messages: Json, **fields: Any) -> Said:
    request = chat_request(*messages, **fields)
    with await gateway.chat(request) as run:
        if not request.stream:
            return from_whole(json.loads(await run.whole()))
        chunks: list[Json] = []
        while payloads := await run.payloads():
            chunks += map(json.loads, payloads)
        return from_stream(chunks)


def from_whole(body: Json) -> Said:
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return Said(
        message.get("content") or "",
        message.get("reasoning_content") or "",
        calls,
        choice["finish_reason"],
        body.get("usage"),
        body.get("ctxgate") or {},
    )


def from_stream(chunks: list[Json]) -> Said:
    said = Said()
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        said.usage = chunk.get("usage") or said.usage
        said.ctxgate = chunk.get("ctxgate") or said.ctxgate
        for choice in chunk["choices"]:
            delta = choice["delta"]
            said.content += delta.get("content") or ""
            said.reasoning += delta.get("reasoning_content") or ""
            said.finish_reason = choice["finish_reason"] or said.finish_reason
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                if "name" in function:
                    assert call["index"] == len(said.calls)
                    said.calls.append((function["name"], ""))
                name, before = said.calls[call["index"]]
                said.calls[call["index"]] = (name, before + function.get("arguments", ""))
    return said

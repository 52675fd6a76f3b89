"""Answers of Anthropic's Messages API, and a server that gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import respx

from gateway.provider import (
    AssistantMessage,
    RedactedThinkingBlock,
    Response,
    RuntimeConfig,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    UserMessage,
)
from gateway.provider.anthropic import AnthropicProvider

from .doubles import SERVER

HI = [UserMessage("hi")]
CONFIG = RuntimeConfig(max_tokens=100)


def message(*content: dict[str, Any], stop_reason: Any = "end_turn", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3}
    head: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "stop_sequence": None,
    }
    return head | {"content": list(content), "stop_reason": stop_reason, "usage": usage} | more


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(input: Any, name: str = "get_weather") -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": input}


def events(body: dict[str, Any], piece: int = 3) -> Iterator[dict[str, Any]]:
    """The body as the stream that the documentation describes, its texts in pieces."""
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    yield {"type": "message_start", "message": {**body, **begun}}
    yield {"type": "ping"}
    for index, block in enumerate(body["content"]):
        kind = block["type"]
        empty: dict[str, dict[str, Any]] = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty.get(kind, {})}}
        key, value = {
            "text": ("text", block.get("text", "")),
            "thinking": ("thinking", block.get("thinking", "")),
            "tool_use": ("partial_json", json.dumps(block.get("input"))),
        }.get(kind, ("", ""))
        name = "input_json_delta" if kind == "tool_use" else f"{kind}_delta"
        for start in range(0, len(value), piece):
            delta = {"type": name, key: value[start : start + piece]}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        if kind == "thinking":
            delta = {"type": "signature_delta", "signature": block["signature"]}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {name: body[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ending, "usage": body["usage"]}
    yield {"type": "message_stop"}


def sse(stream: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> httpx.Response:
    lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in stream)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=lines)


class Server:
    """Answers every request the same, and keeps the bodies."""

    def __init__(self, answer: httpx.Response | dict[str, Any]) -> None:
        self.routes = respx.MockRouter(base_url=SERVER)
        answer = httpx.Response(200, json=answer) if isinstance(answer, dict) else answer
        self.post = self.routes.post("/v1/messages").mock(return_value=answer)

    def provider(self, **options: Any) -> AnthropicProvider:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.routes.async_handler))
        return AnthropicProvider(SERVER, "claude", "key-1", http_client=client, **options)

    async def ask(self, messages: Any = HI, config: RuntimeConfig = CONFIG, **options: Any) -> Response[Any]:
        capabilities = options.pop("capabilities", None)
        found: Response[Any] = await self.provider(capabilities=capabilities).complete(
            messages, config=config, **options
        )
        return found

    @property
    def body(self) -> Any:
        return json.loads(self.post.calls.last.request.content)


ANSWERS = {
    "text": (message(text("Hi!")), AssistantMessage("Hi!"), "stop"),
    "stop sequence": (message(text("Hi"), stop_reason="stop_sequence"), AssistantMessage("Hi"), "stop"),
    "cut": (message(text("Hi"), stop_reason="max_tokens"), AssistantMessage("Hi"), "length"),
    "refused": (message(text("No."), stop_reason="refusal"), AssistantMessage("No."), "content_filter"),
    "refused without a word": (message(stop_reason="refusal"), AssistantMessage(), "content_filter"),
    "paused": (message(text("…"), stop_reason="pause_turn"), AssistantMessage("…"), "stop"),
    "a reason of a later version": (message(text("?"), stop_reason="tired"), AssistantMessage("?"), "error"),
    "thinking": (
        message({"type": "thinking", "thinking": "Hm, hm.", "signature": "sig=="}, text("42")),
        AssistantMessage((ThinkingBlock("Hm, hm.", "sig=="), TextBlock("42"))),
        "stop",
    ),
    "thinking that the server keeps": (
        message({"type": "thinking", "thinking": "", "signature": "sig=="}, text("42")),
        AssistantMessage((ThinkingBlock("", "sig=="), TextBlock("42"))),
        "stop",
    ),
    "redacted thinking": (
        message({"type": "redacted_thinking", "data": "EmwK"}, text("42")),
        AssistantMessage((RedactedThinkingBlock("EmwK"), TextBlock("42"))),
        "stop",
    ),
    "call": (
        message(text("I look."), call({"location": "Paris"}), stop_reason="tool_use"),
        AssistantMessage("I look.", (ToolCall("toolu_1", "get_weather", {"location": "Paris"}),)),
        "tool_calls",
    ),
    "call without arguments": (
        message(call({}), stop_reason="tool_use"),
        AssistantMessage("", (ToolCall("toolu_1", "get_weather", {}),)),
        "tool_calls",
    ),
    "a block of a tool that Anthropic runs": (
        message({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}, text("Found.")),
        AssistantMessage("Found."),
        "stop",
    ),
}  # fmt: skip

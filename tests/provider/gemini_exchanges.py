"""Answers of Google's Gemini API, and a server that gives them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import respx

from gateway.provider import AssistantMessage, Response, TextBlock, ThinkingBlock, ToolCall, UserMessage
from gateway.provider.gemini import GeminiProvider

from .doubles import SERVER

HI = [UserMessage("hi")]

USAGE = {"promptTokenCount": 8, "candidatesTokenCount": 2, "totalTokenCount": 40, "thoughtsTokenCount": 30}


def candidate(*parts: dict[str, Any], reason: str | None = "STOP", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if reason is not None:
        found["finishReason"] = reason
    return {"candidates": [found], "usageMetadata": USAGE, "modelVersion": "gemini-x", "responseId": "r1", **more}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"text": value, **more}


def call(args: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "functionCall": {"name": "set_light", "id": "c1", "args": {"brightness": 5} if args is None else args},
        **more,
    }


def sse(*bodies: dict[str, Any]) -> httpx.Response:
    lines = "".join(f"data: {json.dumps(body)}\r\n\r\n" for body in bodies)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=lines)


class Server:
    def __init__(self, answer: httpx.Response | dict[str, Any]) -> None:
        self.routes = respx.MockRouter(base_url=SERVER)
        answer = httpx.Response(200, json=answer) if isinstance(answer, dict) else answer
        self.whole = self.routes.post("/v1beta/models/gemini-x:generateContent").mock(return_value=answer)
        self.streamed = self.routes.post("/v1beta/models/gemini-x:streamGenerateContent", params={"alt": "sse"}).mock(
            return_value=answer
        )

    def provider(self, **options: Any) -> GeminiProvider:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.routes.async_handler))
        return GeminiProvider(SERVER, "gemini-x", "key-1", http_client=client, **options)

    async def ask(self, messages: Any = HI, **options: Any) -> Response[Any]:
        found: Response[Any] = await self.provider().complete(messages, **options)
        return found

    @property
    def body(self) -> Any:
        return json.loads(self.whole.calls.last.request.content)


CALL = ToolCall("c1", "set_light", {"brightness": 5}, "c2ln")
ANSWERS = {
    "text": (candidate(text("Hello")), AssistantMessage("Hello"), "stop"),
    "cut": (candidate(text("Hel"), reason="MAX_TOKENS"), AssistantMessage("Hel"), "length"),
    "cut while thinking": (
        {"candidates": [{"finishReason": "MAX_TOKENS", "index": 0}], "usageMetadata": USAGE},
        AssistantMessage(),
        "length",
    ),
    "unsafe": (candidate(reason="SAFETY"), AssistantMessage(), "content_filter"),
    "a reason of a later version": (candidate(text("?"), reason="TIRED"), AssistantMessage("?"), "error"),
    "blocked prompt": (
        {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": USAGE},
        AssistantMessage(),
        "content_filter",
    ),
    "thoughts": (
        candidate(text("Let me see.", thought=True), text("42", thoughtSignature="c2ln")),
        AssistantMessage((ThinkingBlock("Let me see."), TextBlock("42", "c2ln"))),
        "stop",
    ),
    "signed call": (
        candidate(text("Hm.", thought=True), call(thoughtSignature="c2ln")),
        AssistantMessage((ThinkingBlock("Hm."),), (CALL,)),
        "tool_calls",
    ),
}

"""Ollama's server, by its own `/api/chat`."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Raw

from gateway.backends import ollama_chat
from gateway.backends.about import About
from gateway.backends.base import Address, Reply
from gateway.backends.context import exceeded, may_exceed
from gateway.backends.openai import MAX_ERROR_BODY, OpenAIBackend, error_message, json_object
from gateway.config import Model
from gateway.errors import (
    GatewayError,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnsupportedContentBlock,
)
from gateway.upstream import Response
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.sse import DEFAULT_MAX_EVENT_SIZE

TRUNCATES = (0, 12, 6)
"""The first Ollama that can be told not to cut a prompt."""

OWN_WINDOW = 2048
"""Tokens of context that any Ollama gives a model by itself, or more."""


class OllamaReply(Reply):
    """A reply read from `/api/chat`: JSON, streamed as one object a line."""

    def __init__(self, response: Response, chat: ollama_chat.Chat) -> None:
        self._response = response
        self._chat = chat
        self._rest = b""
        self.done = False

    async def whole(self) -> bytes:
        return self._chat.whole(await self._response.read())

    async def payloads(self) -> list[bytes]:
        while not self.done:
            data = await self._response.receive()
            # Errors that come before the first line have no line break of their own.
            *lines, self._rest = (self._rest + (data or b"\n")).split(b"\n")
            if len(self._rest) > DEFAULT_MAX_EVENT_SIZE:
                raise ProviderInvalidResponse(f"a line of Ollama's answer exceeds {DEFAULT_MAX_EVENT_SIZE} bytes")
            payloads: list[bytes] = []
            for line in filter(None, map(bytes.strip, lines)):
                payloads += self._chat.chunks(line)
            self.done = self._chat.done
            if payloads or not data:
                return payloads
        return []

    def close(self) -> None:
        if self.done:
            self._response.finish()
        else:
            self._response.close()


class OllamaBackend(OpenAIBackend):
    chat_path = "/api/chat"

    def __init__(self, model: Model, address: Address | None) -> None:
        super().__init__(model, address)
        self._show_head = self.upstream.head(
            "POST", self.address.prefix + "/api/show", [*self._auth, ("Content-Type", "application/json")]
        )
        self._shown: dict[str, Any] | None = None
        self._version: tuple[int, ...] | None = None

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> OllamaReply:  # type: ignore[override]
        """Ollama is told the model's `context_window` as num_ctx, and to refuse what is longer."""
        asked = ollama_chat.request(self.model.upstream_name, fields, self.model.context_window)
        window = asked["options"].get("num_ctx")
        if may_exceed(fields, window if isinstance(window, int) else OWN_WINDOW):
            await self._must_not_cut()
        response = await self.accepted(self._chat_head, asked)
        return OllamaReply(response, ollama_chat.Chat(self.model.upstream_name, usage=request.include_usage))

    async def _must_not_cut(self) -> None:
        """Raises ProviderInvalidRequest for an Ollama that would cut a long prompt whatever it is told."""
        if self._version is None:
            status, body = await self.get("/api/version")
            told = json_object(body).get("version") if status == 200 else None
            found = re.match(r"(\d+)\.(\d+)\.(\d+)", str(told))
            # One that was built from source is 0.0.0.
            self._version = tuple(map(int, found.groups())) if found else (0, 0, 0)
        if (0, 0, 0) < self._version < TRUNCATES:
            version, first = (".".join(map(str, number)) for number in (self._version, TRUNCATES))
            raise ProviderInvalidRequest(
                f"the prompt may be longer than the context window, and Ollama {version} would cut it in silence: "
                f"shorten it, raise context_window, or update Ollama to {first} or later",
                code="context_length_unknown",
                param="messages",
            )

    async def ready(self) -> None:
        """Ollama loads a model when it is first asked; ready means that it has it."""
        await self._show()

    async def takes_tools(self) -> bool:
        shown = await self.shown()
        capabilities = shown.get("capabilities")
        # Before 0.6.4 it told no capabilities, only the template.
        return "tools" in capabilities if isinstance(capabilities, list) else ".Tools" in _template(shown)

    async def keeps_calls(self) -> bool:
        """A model with a renderer built into Ollama has a template that names neither."""
        template = _template(await self.shown())
        return ".ToolCalls" in template or ".Tools" not in template

    async def about(self) -> About:
        shown = await self.shown()
        info = shown.get("model_info")
        architecture = info.get("general.architecture", "") if isinstance(info, dict) else ""
        return About(_template(shown), architecture, source="/api/show")

    async def shown(self) -> dict[str, Any]:
        """What /api/show tells of the model, asked once. Raises ProviderInvalidModel where Ollama doesn't have it."""
        if self._shown is None:
            self._shown = json_object(await self._show())
        return self._shown

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        if status == 404:
            cure = f"`ctxgate pull {self.model.name}` or `ollama pull {self.model.upstream_name}` fetches it"
            return ProviderInvalidModel(f"Ollama: {message}; {cure}", param="model")
        if (too_long := exceeded(message, self.model.context_window)) is not None:
            return too_long
        if "error parsing tool call" in message:
            return ProviderInvalidResponse(f"the model wrote a tool call that Ollama could not read: {message}")
        if "invalid image input" in message or "does not support image" in message:
            return ProviderUnsupportedContentBlock(f"Ollama: {message}", param="messages")
        return super().error(status, body)

    async def _show(self) -> bytes:
        """/api/show of the model. Raises ProviderInvalidModel where Ollama doesn't have it."""
        response = await self.upstream.request(self._show_head, encode({"model": self.model.upstream_name}))
        try:
            body = await response.read(MAX_ERROR_BODY * 16)
        finally:
            response.close()
        if response.status != 200:
            raise self.error(response.status, body)
        return body


def _template(shown: dict[str, Any]) -> str:
    return str(shown.get("template") or "")

"""llama.cpp's llama-server, also as the wheel xllamacpp opens it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.backends import messages
from gateway.backends.base import Address
from gateway.backends.context import context_length_exceeded
from gateway.backends.openai import OpenAIBackend, error_message
from gateway.config import Model
from gateway.errors import (
    GatewayError,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderModelNotLoaded,
    ProviderUnsupportedContentBlock,
)

_needs_edit = messages.needs(messages.EMPTY_ARGUMENTS)

BAD_INPUT = (
    "Failed to parse messages",
    "Failed to parse tools",
    "Failed to parse tool call arguments",
    "Failed to parse input",
    "Unable to generate parser for this template",
    "JSON schema",
    "Jinja Exception",
    "[json.exception.",
)
"""What a 500 says if the request is to blame."""


class LlamaCppBackend(OpenAIBackend):
    ready_path = "/health"

    def __init__(self, model: Model, address: Address | None) -> None:
        super().__init__(model, address)
        self._takes_tools: bool | None = None

    def adapt(self, fields: dict[str, Raw]) -> None:
        if _needs_edit(fields["messages"]):
            messages.edit(fields, messages.arguments_are_text)

    async def takes_tools(self) -> bool:
        """Asked once, of /props; a server without it (a router that has several models) is trusted to."""
        if self._takes_tools is None:
            status, body = await self.get("/props")
            if status != 200:
                return True
            self._takes_tools = _supports_tools(msgspec.json.decode(body))
        return self._takes_tools

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        try:
            error = msgspec.json.decode(body)["error"]
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError):
            error = {}
        kind = error.get("type") if isinstance(error, dict) else None
        if kind == "exceed_context_size_error":
            return context_length_exceeded(error.get("n_prompt_tokens", 0), error.get("n_ctx", 0))
        if kind == "unavailable_error":
            return ProviderModelNotLoaded(f"the engine is not ready yet: {message}", retry_after=1)
        if "input is not supported" in message:
            return ProviderUnsupportedContentBlock(f"the model can't read this: {message}", param="messages")
        if status == 400 and message.startswith("model "):
            # llama-server as a router of several models.
            if message.endswith("is not loaded"):
                return ProviderModelNotLoaded(f"llama-server: {message}", retry_after=5)
            if message.endswith("not found"):
                return ProviderInvalidModel(f"llama-server: {message}", param="model")
        if status == 501 or (status == 500 and any(words in message for words in BAD_INPUT)):
            return ProviderInvalidRequest(f"the engine refused the request: {message}")
        return super().error(status, body)


def _supports_tools(props: dict[str, Any]) -> bool:
    """By llama.cpp's own analysis of the chat template; older builds tell only the template."""
    caps = props.get("chat_template_caps")
    if isinstance(caps, dict) and "supports_tools" in caps:
        return bool(caps["supports_tools"])
    return "tools" in str(props.get("chat_template", "")) or "chat_template_tool_use" in props

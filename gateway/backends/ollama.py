"""Ollama's server, by its OpenAI-compatible endpoint."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.backends import messages
from gateway.backends.about import About
from gateway.backends.base import Address, Mender
from gateway.backends.menders import RoleOnce
from gateway.backends.openai import MAX_ERROR_BODY, OpenAIBackend, error_message
from gateway.config import Model
from gateway.errors import (
    GatewayError,
    ProviderInvalidModel,
    ProviderInvalidResponse,
    ProviderUnsupportedContentBlock,
)
from gateway.wire.chat import encode

_needs_edit = messages.needs(messages.DEVELOPER, messages.OBJECT_ARGUMENTS, messages.EMPTY_ARGUMENTS)


class OllamaBackend(OpenAIBackend):
    def __init__(self, model: Model, address: Address | None) -> None:
        super().__init__(model, address)
        self._show_head = self.upstream.head(
            "POST", self.address.prefix + "/api/show", [*self._auth, ("Content-Type", "application/json")]
        )
        self._shown: dict[str, Any] | None = None

    async def ready(self) -> None:
        """Ollama loads a model when it is first asked; ready means that it has it."""
        await self._show()

    async def takes_tools(self) -> bool:
        shown = await self.shown()
        capabilities = shown.get("capabilities")
        # Before 0.6.4 it told no capabilities, only the template.
        return "tools" in capabilities if isinstance(capabilities, list) else ".Tools" in shown.get("template", "")

    async def keeps_calls(self) -> bool:
        """A model with a renderer built into Ollama has a template that names neither."""
        template = (await self.shown()).get("template", "")
        return ".ToolCalls" in template or ".Tools" not in template

    async def about(self) -> About:
        shown = await self.shown()
        info = shown.get("model_info")
        architecture = info.get("general.architecture", "") if isinstance(info, dict) else ""
        return About(shown.get("template", ""), architecture, source="/api/show")

    async def shown(self) -> dict[str, Any]:
        """What /api/show tells of the model, asked once. Raises ProviderInvalidModel where Ollama doesn't have it."""
        if self._shown is None:
            self._shown = msgspec.json.decode(await self._show(), type=dict[str, Any])
        return self._shown

    def adapt(self, fields: dict[str, Raw]) -> None:
        # The only name that it knows for the limit.
        if "max_completion_tokens" in fields:
            fields["max_tokens"] = fields.pop("max_completion_tokens")
        if _needs_edit(fields["messages"]):
            messages.edit(fields, messages.developer_is_system, messages.arguments_are_text)

    def mender(self) -> Mender:
        return RoleOnce()

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        if status == 404:
            cure = f"`ctxgate pull {self.model.name}` or `ollama pull {self.model.upstream_name}` fetches it"
            return ProviderInvalidModel(f"Ollama: {message}; {cure}", param="model")
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

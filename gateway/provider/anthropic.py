"""A Provider for Anthropic's Messages API, and for servers that speak it, as ctxgate does (OpenArmature §8.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import quote

from gateway.provider.chat import ChatProvider
from gateway.provider.mapping.anthropic import AnthropicCall


class AnthropicProvider(ChatProvider):
    """See `ChatProvider`. The version in a base_url is `/v1`. Each call needs `RuntimeConfig(max_tokens=…)`."""

    system = "anthropic"
    version = "/v1"
    key_header = "x-api-key"
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    calls = AnthropicCall

    async def ready(self) -> None:
        """Asks for the model by its name; see `Provider.ready`."""
        await self._server.get(f"/models/{quote(self.model, safe='')}")

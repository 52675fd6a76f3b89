"""A Provider for Google's Gemini API (OpenArmature §8.3)."""

from __future__ import annotations

from urllib.parse import quote

from gateway.provider.chat import ChatProvider
from gateway.provider.mapping.gemini import GeminiCall


class GeminiProvider(ChatProvider):
    """See `ChatProvider`. The version in a base_url is `/v1beta`."""

    system = "gemini"
    version = "/v1beta"
    key_header = "x-goog-api-key"
    calls = GeminiCall

    async def ready(self) -> None:
        """Asks for the model by its name; see `Provider.ready`."""
        await self._server.get(f"/models/{quote(self.model, safe='')}")

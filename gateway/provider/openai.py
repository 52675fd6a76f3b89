"""A Provider for every server that speaks OpenAI's chat completions (OpenArmature §8.1)."""

from __future__ import annotations

from gateway.provider.chat import ChatProvider
from gateway.provider.mapping.openai import OpenAICall


class OpenAIProvider(ChatProvider):
    """See `ChatProvider`. The version in a base_url is `/v1`."""

    system = "openai"
    version = "/v1"
    key_prefix = "Bearer "
    calls = OpenAICall

    async def ready(self) -> None:
        """Looks the model up in `GET /models`; see `Provider.ready`.

        Asks the entry's `ready_path` too, if it has one: a server that starts engines on demand, as ours does,
        lists models that aren't loaded, and answers there once the model is.
        """
        await self._server.ready(self.model)

"""What a server says of its model, and whether it says the same after it may have been started anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway.errors import GatewayError
from gateway.upstream import Upstream

TELLING = (
    *("chat_template", "chat_template_caps", "modalities", "model_path", "total_slots"),
    *("template", "capabilities", "model_info"),
)
"""By what a model is told from another: fields of llama.cpp's /props, and of Ollama's /api/show."""


class Told:
    def __init__(self, upstream: Upstream, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """ask: {} if the server doesn't tell."""
        self._upstream = upstream
        self._ask = ask
        self._said: dict[str, Any] = {}
        self._partings = 0
        """Of `upstream`, when it was last asked."""

    async def said(self) -> dict[str, Any]:
        """Cached once the server says something. Raises what `ask` raises."""
        if not self._said:
            await self._ask_again()
        return self._said

    @property
    def is_old(self) -> bool:
        """Whether no connection stood since the server was asked: another one may have taken its address."""
        return self._partings != self._upstream.partings and bool(self._said)

    async def changed(self) -> bool:
        """Whether the server says that it has another model than before; not if it doesn't answer."""
        before = self._said
        try:
            await self._ask_again()
        except GatewayError:
            return False
        return any(before.get(name) != self._said.get(name) for name in TELLING)

    async def _ask_again(self) -> None:
        partings = self._upstream.partings
        self._said, self._partings = await self._ask(), partings

"""How much of the prompt an engine has read before its first token."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Raw

from gateway.wire.chat import ChatRequest, Serving
from gateway.wire.lenient import LenientReader

FROM_BYTES = 1024
"""Smallest size of `messages` that asks for progress; engines read shorter ones at once."""

_TRUE = Raw(b"true")
_KEY = b'"prompt_progress"'


class PromptProgress:
    """processed, total: tokens of the prompt; both 0 until the engine reports them. serving: is told what was read."""

    __slots__ = ("_serving", "processed", "total")

    def __init__(self, serving: Serving | None = None) -> None:
        self.processed = self.total = 0
        self._serving = serving

    def _reported(self, processed: Any, total: Any, cached: Any = 0) -> None:
        self.processed, self.total = processed, total
        if self._serving is not None and isinstance(total, int) and isinstance(cached, int):
            self._serving.reads(total, cached)

    def describe(self) -> str:
        """The text for `Serving.tell`."""
        return f"reading processed={self.processed} total={self.total}" if self.total else "waiting"

    # llama.cpp

    @classmethod
    def requested(cls, request: ChatRequest, fields: dict[str, Raw]) -> PromptProgress | None:
        """Asks llama.cpp to stream its progress, and makes it the request's own (`Serving.tell`).

        Returns None if the request is short, isn't streamed, or already asks for the progress itself.
        """
        if not request.stream or "return_progress" in fields or len(bytes(fields["messages"])) < FROM_BYTES:
            return None
        fields["return_progress"] = _TRUE
        progress = cls(request.serving)
        request.serving.tell(progress.describe)
        return progress

    def strip(self, payloads: list[bytes]) -> list[bytes]:
        """Reads and removes llama.cpp's progress payloads; returns the others."""
        rest = []
        for payload in payloads:
            progress = LenientReader().read(payload, last=True).get("prompt_progress") if _KEY in payload else None
            if isinstance(progress, dict):
                self._reported(*(progress.get(name, 0) for name in ("processed", "total", "cache")))
            else:
                rest.append(payload)
        return rest

    # mlx_lm.server

    def comment(self, line: bytes) -> None:
        """Reads a comment of mlx_lm.server's stream: `: keepalive 512/2048`."""
        if found := re.fullmatch(rb":\s*keepalive (\d{1,12})/(\d{1,12})\s*", line):
            self._reported(int(found[1]), int(found[2]))

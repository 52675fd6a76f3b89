"""How far an engine has read the prompt, before it writes the first token."""

from __future__ import annotations

import re

from msgspec import Raw

from gateway.wire.chat import ChatRequest, decode

FROM_BYTES = 1024
"""Shorter prompts are read before anybody could ask how far they are."""

_TRUE = Raw(b"true")
_MARK = b'"prompt_progress"'


class Prefill:
    """Tokens read and tokens in all; 0 of 0 until the engine told."""

    __slots__ = ("processed", "total")

    def __init__(self) -> None:
        self.processed = self.total = 0

    def progress(self) -> str:
        """As `ChatRequest.progress`."""
        return f"reading processed={self.processed} total={self.total}" if self.total else "waiting"

    # llama.cpp

    @classmethod
    def asked(cls, request: ChatRequest, fields: dict[str, Raw]) -> Prefill | None:
        """Has llama.cpp put its progress into the stream, and tells it where the request stands; None for a request
        that isn't streamed, is short, or whose client reads the progress itself."""
        if not request.stream or "return_progress" in fields or len(bytes(fields["messages"])) < FROM_BYTES:
            return None
        fields["return_progress"] = _TRUE
        prefill = cls()
        request.progress = prefill.progress
        return prefill

    def strip(self, payloads: list[bytes]) -> list[bytes]:
        """The payloads that are no progress of llama.cpp's."""
        rest = []
        for payload in payloads:
            told = decode(payload).get("prompt_progress") if _MARK in payload else None
            if isinstance(told, dict):
                self.processed, self.total = told.get("processed", 0), told.get("total", 0)
            else:
                rest.append(payload)
        return rest

    # mlx_lm.server

    def comment(self, line: bytes) -> None:
        """A comment in mlx_lm.server's stream: `: keepalive 512/2048`."""
        if found := re.fullmatch(rb":\s*keepalive (\d+)/(\d+)\s*", line):
            self.processed, self.total = int(found[1]), int(found[2])

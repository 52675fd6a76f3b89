"""Corrects mistakes that several engines share."""

from __future__ import annotations

from typing import Any

from gateway.wire.engine import Fixup


class RoleOnce(Fixup):
    """Keeps `role` on the first delta of each choice only.

    Clients that concatenate the strings of deltas, OpenAI's own among them, turn repeats into `assistantassistant…`.
    """

    every_chunk = True

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def chunk(self, chunk: dict[str, Any]) -> None:
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta")
            if not delta or "role" not in delta:
                continue
            index = choice.get("index", 0)
            if index in self._seen:
                del delta["role"]
            self._seen.add(index)

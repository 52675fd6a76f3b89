"""A double of an engine that saves and restores prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.errors import ProviderUnavailable
from gateway.prompts.protocols import Build, PromptReading

TOKENS = 1000
PROMPTS = [f"Prompt {number}. " + "word " * 800 for number in range(3)]


class Double:
    """Saves and restores as an engine does, but reads every prompt again if `in_vain`."""

    def __init__(self, folder: Path, slots: int = 1) -> None:
        self.folder = folder
        self.slots = slots
        self.restored: list[int] = []
        self.saved: list[int] = []
        self.trouble: Exception | None = None
        self.silent = False
        self.works: set[int] = set()
        self.looks: asyncio.Queue[None] = asyncio.Queue()

    async def build(self) -> Build | None:
        if self.silent:
            raise ProviderUnavailable("says nothing")
        return Build(self.slots, "double")

    async def save(self, slot: int, file: str) -> tuple[int, int]:
        if self.trouble is not None:
            raise self.trouble
        self.saved.append(slot)
        (self.folder / file).write_bytes(b"tokens")
        return TOKENS, 6

    async def restore(self, slot: int, file: str) -> int:
        if self.trouble is not None:
            raise self.trouble
        self.restored.append(slot)
        return TOKENS

    async def read(self, slot: int, prompt: str, *, reuse: bool) -> PromptReading:
        raise ProviderUnavailable("reads nothing by itself")

    async def held(self) -> list[tuple[int, int]] | None:
        self.looks.put_nowait(None)
        return [(slot, 0) for slot in range(self.slots) if slot not in self.works]

    async def recall(self, prompt: str) -> None:
        raise ProviderUnavailable("gone")


def rendering(prompt: str | None) -> Callable[[], Awaitable[str | None]]:
    async def render() -> str | None:
        return prompt

    return render

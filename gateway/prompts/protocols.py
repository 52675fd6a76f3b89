"""What saved prompts need of an engine's server, and what a backend gets from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from gateway.config import Prompts
from gateway.errors import GatewayError
from gateway.line import Tell, ignore
from gateway.prompts.blocks import Chain
from gateway.prompts.folder import Damaged

SAVE_SECONDS = RESTORE_SECONDS = 30.0
"""How long an engine may take for one file."""
LEAST_BYTES_PER_TOKEN = 2
"""The fewest bytes of a token: a request with fewer than this for each of `min_tokens` is too short to save."""
TROUBLE = (GatewayError, OSError, TimeoutError, Damaged, ValueError)
"""What a server or a file may raise; none of it costs a request."""


class Build(Struct, frozen=True):
    """What an engine reports about itself once it runs. facts: what affects its cache, for the key."""

    slots: int
    facts: object


class PromptReading(Struct, frozen=True):
    """tokens: of the whole text. read: those that weren't cached, in so many seconds."""

    tokens: int
    read: int
    seconds: float


class SlotServer(Protocol):
    """How to handle the slots of an engine's server. All methods raise GatewayError."""

    async def build(self) -> Build | None:
        """None if the engine's slots can't be saved."""
        ...

    async def save(self, slot: int, file: str) -> tuple[int, int]:
        """Writes a slot to a file in the engine's folder; returns its tokens and bytes."""
        ...

    async def restore(self, slot: int, file: str) -> int:
        """Reads a file into a slot; returns its tokens."""
        ...

    async def read(self, slot: int, prompt: str, *, reuse: bool) -> PromptReading:
        """Reads a prompt into a slot and writes nothing. reuse: of what the slot holds."""
        ...

    async def held(self) -> list[tuple[int, int]] | None:
        """The idle slots, each with its count of tokens, the last used first. None if the engine doesn't say."""
        ...

    async def recall(self, prompt: str) -> None:
        """Brings a prompt back into a slot from the engine's cache in memory."""
        ...


class PromptPlace(Protocol):
    """A request's place in an engine; see `gateway.prompts.turn.Turn`."""

    chain: Chain
    asked: tuple[bytes, bytes] | None
    apart: bool
    fresh: bool

    @property
    def slot(self) -> int | None: ...

    def leave(self) -> None: ...

    def answered(self, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]: ...

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class Placing(Protocol):
    """Assigns requests to an engine's slots: `gateway.prompts.live.LivePrompts`, or a proxy for one on another
    machine."""

    async def place(
        self,
        server: SlotServer,
        sent: Sequence[bytes],
        render: Callable[[], Awaitable[str | None]],
        *,
        private: bool,
        owner: str = "",
        other: Callable[[], Awaitable[str | None]] | None = None,
        tell: Tell = ignore,
    ) -> PromptPlace | None:
        """See `LivePrompts.place`."""
        ...

    def admit_owner(self, owner: str) -> bool:
        """See `LivePrompts.admit_owner`."""
        ...

    def anywhere(self, server: SlotServer, owner: str | None = None) -> PromptPlace | None:
        """See `LivePrompts.anywhere`."""
        ...


def is_short(sent: Sequence[bytes], settings: Prompts) -> bool:
    """Whether a request with these tools and messages, in JSON, has too few tokens to be worth a file."""
    return sum(map(len, sent)) < LEAST_BYTES_PER_TOKEN * settings.min_tokens

"""Reads the prefix that the conversations of one agent share, its system message and tools, once. Pure, but for
`PrefixReader`.

An engine can copy a slot only by a file, and only between two requests. So a long prefix that no file has is read as a
request of its own, and saved; all that begin with it wait for that, and start from the file.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Literal

from msgspec import Struct

from gateway.line import Tell
from gateway.prompts.background import Background
from gateway.prompts.blocks import Chain, chain, in_common, shared
from gateway.prompts.index import Match
from gateway.prompts.protocols import SlotServer
from gateway.prompts.slots import Slot
from gateway.prompts.speed import ReadingSpeed, Waits

LONG_SECONDS = 1.0
"""A prefix that takes less time to read isn't worth a request of its own."""
GAIN = 4
"""Nor is one that takes less than this many times as long to read as to copy."""
MAX_PREFIXES = 64

Render = Callable[[], Awaitable[str | None]]


class Costs(Struct, frozen=True):
    """Seconds for one block of a prompt: to read it, and to save and restore it."""

    read: float
    copy: float


class PrefixPlan(Struct, frozen=True):
    """What happens to a request's prefix before the request gets a slot.

    none: the request reads it. ready: a file has it. wait: until another request has read or saved it. save: the slot
    has it. read: nobody has it.
    """

    step: Literal["none", "ready", "wait", "save", "read"]
    slot: Slot | None = None


def plan(
    prefix: Chain,
    slots: Sequence[Slot],
    match: Match | None,
    going: Collection[bytes],
    costs: Costs,
    owner: str | None = None,
) -> PrefixPlan:
    """match: the best file for the prefix. going: the last hashes of prefixes that are being read or saved. owner: of
    the request, if several owners use the engine."""
    blocks = len(prefix)
    if not slots or blocks * costs.read < LONG_SECONDS or costs.copy * GAIN > costs.read:
        return PrefixPlan("none")
    if prefix[-1] in going:
        return PrefixPlan("wait")
    if match is not None and match.blocks == blocks:
        return PrefixPlan("ready")
    holding = [
        slot for slot in slots if slot.idle and owner in (None, slot.owner) and shared(slot.chain, prefix) == blocks
    ]
    if holding:
        return PrefixPlan("save", min(holding, key=lambda slot: len(slot.chain)))
    return PrefixPlan("read")


class PrefixReader:
    """For one engine process. No method raises an engine's error.

    decide: the plan for a prefix of this owner's, given the prefixes that are being read or saved. carry_out: saves a
    slot, or reads the text with this chain and saves it; returns once the file is there.
    """

    def __init__(
        self,
        decide: Callable[[Chain, str, Collection[bytes]], PrefixPlan],
        carry_out: Callable[[SlotServer, PrefixPlan, str, Chain, str], Coroutine[object, object, None]],
        background: Background,
        speed: ReadingSpeed,
    ) -> None:
        self._speed = speed
        self._decide = decide
        self._carry_out = carry_out
        self._background = background
        self._known: OrderedDict[bytes, int] = OrderedDict()
        """Prefixes that requests had: the last hash, and the length in characters."""
        self._reading: dict[bytes, asyncio.Task[None]] = {}
        self._began: dict[bytes, float] = {}
        self._waiting: dict[bytes, int] = {}

    async def ready(
        self, server: SlotServer, prompt: str, begins: Chain, other: Render, owner: str, tell: Tell
    ) -> None:
        """Returns once a file has the prefix of this prompt, or the request may as well read it.

        other: renders the same request with another first message of its user.
        """
        length = self._remembered(begins)
        if length is None:
            rendered = await other()
            length = in_common(prompt, rendered or "")
        prefix = chain(prompt[:length], owner)
        if not prefix:
            return
        self._known[prefix[-1]] = length
        self._known.move_to_end(prefix[-1])
        if len(self._known) > MAX_PREFIXES:
            self._known.popitem(last=False)
        found = self._decide(prefix, owner, self._reading.keys())
        if found.step in ("save", "read"):
            work = self._carry_out(server, found, prompt[:length], prefix, owner)
            self._began[prefix[-1]] = time.monotonic()
            self._reading[prefix[-1]] = self._background.start(self._run(prefix[-1], work))
        elif found.step != "wait":
            return
        tell(Waits("prefix", self._speed.seconds(len(prefix)), self._speed, self._began[prefix[-1]]).describe)
        await self._wait(prefix[-1])

    def give_up(self) -> None:
        """The engine ends: reads nothing more. Who waits goes on at once."""
        for task in self._reading.values():
            task.cancel()

    async def _run(self, last: bytes, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            del self._reading[last], self._began[last]

    async def _wait(self, last: bytes) -> None:
        """Waits for a prefix. It is given up if all who wait for it have gone."""
        task = self._reading[last]
        self._waiting[last] = self._waiting.get(last, 0) + 1
        try:
            await asyncio.wait({task})
        finally:
            self._waiting[last] -= 1
            if not self._waiting[last]:
                del self._waiting[last]
                task.cancel()

    def _remembered(self, begins: Chain) -> int | None:
        """The length of the longest known prefix that the prompt begins with."""
        return next((self._known[each] for each in reversed(begins) if each in self._known), None)

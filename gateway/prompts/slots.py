"""The contents of each slot of an engine, and which slot a request should use. No I/O.

Only the gateway uses its engines, so it knows. If it is wrong, the engine reads more of the prompt than necessary: it
compares the tokens itself, so no answer depends on the state here.

If several owners use an engine, none may learn from its counts or its speed what another one asked. So the gateway
chooses every slot, and has the engine reuse a slot's contents only for their owner. Of two owners' prompts, the chains
share nothing; see `gateway.prompts.blocks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from gateway.prompts.blocks import BLOCK_BYTES, Chain, shared
from gateway.prompts.index import Match, Saved

MANY = "\0"
"""The owner of contents that may be anybody's: nobody may reuse them."""
BYTES_PER_TOKEN = 4
"""Bytes of rendered text for a token, roughly."""
MAX_HOSTED = 64
"""So many prompts in the engine's cache are known; older ones are forgotten."""
SHORT_BLOCK_BYTES = 64
"""Of a request too short to save: its tools and messages are compared as they were sent."""
LEAST_WORTH, WORTH = 2, 32
"""At least 2 blocks and a 32nd of the prompt. A slow engine restores even one block faster than it reads it."""


@dataclass(eq=False)
class Slot:
    """chain: of the prompt that it holds; () if nothing is known, or nobody may save it. tokens: how many it holds;
    None if the answer was cut off. unsaved: how many of them no file holds. prompt: the text behind `chain`. sure: the
    gateway chose this slot for it; otherwise it was found by its length. short: of the last request that was too short
    to save, in its own blocks. busy: answers in progress in it. used: a counter of uses.
    seen: the engine was seen at work in it since it became busy. strange: the engine was seen to answer a request there
    whose slot it chose itself. owner: whose contents it holds, once several owners use the engine; None: nobody's."""

    number: int
    chain: Chain = ()
    tokens: int | None = 0
    unsaved: int = 0
    prompt: str = ""
    sure: bool = False
    short: Chain = ()
    busy: int = 0
    used: int = 0
    seen: bool = False
    strange: bool = False
    owner: str | None = None

    @property
    def idle(self) -> bool:
        return not self.busy and not self.strange

    def worth_saving(self, least: int) -> bool:
        """least: tokens of a prompt that is worth a file."""
        return bool(self.chain) and (self.tokens is None or self.tokens >= least)

    def enter(self, use: int) -> None:
        """A request gets it. use: see `used`."""
        self.busy += 1
        self.used, self.seen = use, False

    def begin(self) -> None:
        """The engine answers the request."""
        self.seen = True

    def leave(self) -> None:
        """The request has ended."""
        self.busy -= 1

    def hold(self, chain: Chain, prompt: str, tokens: int | None, *, unsaved: int, sure: bool) -> None:
        """It holds this prompt, and perhaps the answer to it. See the attributes."""
        self.chain, self.prompt, self.tokens, self.unsaved, self.sure = chain, prompt, tokens, unsaved, sure

    def answered(self, counts: tuple[int, int, int]) -> None:
        """A request in it is complete. counts: tokens of its prompt, of the cached part and of the answer."""
        prompt, cached, completion = counts
        self.tokens = prompt + completion
        self.unsaved += max(0, prompt - cached) + completion

    def saved(self, tokens: int, count: int) -> None:
        """A file has `count` of its unsaved tokens now, and with them all `tokens` that it holds."""
        self.unsaved, self.tokens = max(0, self.unsaved - count), tokens

    def begins_short(self, short: Chain) -> None:
        """It gets a request that is too short to save."""
        self.short = short

    def forget(self, *, sure: bool = False) -> None:
        self.sure = sure
        self.chain, self.tokens, self.unsaved, self.prompt = (), 0, 0, ""

    def own(self, owner: str, short: Chain | None = None) -> None:
        """What it holds is this owner's. short: of a new request."""
        self.owner = owner
        self.short = self.short if short is None else short

    def disown(self) -> None:
        """It may hold anybody's prompt."""
        self.forget()
        self.short, self.owner = (), MANY

    def loses(self, chain: Chain) -> int:
        """How many blocks of its own a request with another prompt overwrites."""
        return len(self.chain) - shared(self.chain, chain)


class Owners:
    """Those whose prompts an engine may hold. first: None before the first request. several: more than one; the engine
    keeps that until it ends."""

    def __init__(self) -> None:
        self.first: str | None = None
        self.several = False

    def enter(self, owner: str) -> bool:
        """A request of this owner comes; returns whether it is the first one of a second owner."""
        if self.first is None:
            self.first = owner
        begins = not self.several and owner != self.first
        self.several = self.several or begins
        return begins


class Hosted(Struct, frozen=True):
    """A prompt that the engine has moved from a slot to its cache in the machine's memory."""

    chain: Chain
    unsaved: int
    prompt: str


class SlotChoice(Struct, frozen=True):
    """slot: None leaves the choice to the engine. rescue: save what the slot holds first. restore: into the slot."""

    slot: Slot | None = None
    rescue: bool = False
    restore: Saved | None = None


def worth(blocks: int, *, slow: bool = False) -> int:
    """How many blocks justify saving or restoring a prompt, since the cost of both grows with its length. slow: the
    engine reads slowly."""
    return max(1 if slow else LEAST_WORTH, blocks // WORTH)


def tokens_of(blocks: int) -> int:
    return blocks * BLOCK_BYTES // BYTES_PER_TOKEN


def choose(
    slots: Sequence[Slot],
    hosted: Sequence[Hosted],
    chain: Chain,
    match: Match | None,
    least: int,
    owner: str | None = None,
) -> SlotChoice:
    """The slot in which a request with the prompt `chain` loses least and gains most.

    match: the best saved prompt. least: blocks that are worth a file. owner: whose prompt it is, if several owners use
    the engine; then `hosted` must be empty, since the engine doesn't look whose prompts it keeps in its cache.
    """
    idle = [slot for slot in slots if slot.idle]
    if not idle:
        return SlotChoice()
    live = max(idle, key=lambda slot: (shared(slot.chain, chain), -len(slot.chain), -slot.used))
    in_slot = shared(live.chain, chain) if owner in (None, live.owner) else 0
    in_cache = max((shared(each.chain, chain) for each in hosted), default=0)
    on_disk = match.blocks if match is not None else 0
    if match is not None and on_disk - max(in_slot, in_cache) >= least:
        # An earlier turn of the same conversation gives way to it.
        earlier = in_slot and not live.loses(chain)
        return _into(live if earlier else least_lost(idle, slots, owner), chain, least, match.saved)
    if owner is not None and not in_slot:
        return _into(least_lost(idle, slots, owner), chain, least)
    if in_cache > in_slot:
        return SlotChoice()
    if live.loses(chain) >= least:
        # The request shares a prefix with another conversation, such as its tools: leave that one alone if possible.
        other = least_lost(idle, slots, owner)
        if not other.chain and (on_disk >= in_slot or in_slot < least):
            return SlotChoice(other, restore=match.saved if match is not None and on_disk >= least else None)
        if in_slot < least:
            return _into(other, chain, least)
    return _into(live, chain, least)


def _into(slot: Slot, chain: Chain, least: int, restore: Saved | None = None) -> SlotChoice:
    # A restored file replaces the slot's whole contents.
    lost = len(slot.chain) if restore is not None else slot.loses(chain)
    return SlotChoice(slot, rescue=bool(slot.unsaved) and lost >= least, restore=restore)


def spare(slots: Sequence[Slot], short: Chain) -> Slot | None:
    """An idle slot in which a short prompt overwrites nothing of value; None leaves the choice to the engine.

    Prefers the slot whose last short prompt shares the longest prefix with this one, since the engine reads only the
    rest. If none does, takes the least recently used one, so that each kind of prompt keeps a slot of its own.
    """
    empty = [slot for slot in slots if slot.idle and not slot.chain]
    return max(empty, key=lambda slot: (shared(slot.short, short), -slot.used), default=None)


def spare_of(slots: Sequence[Slot], short: Chain, owner: str) -> SlotChoice:
    """Like `spare`, for an engine that several owners use: takes another's slot rather than leave the choice to it."""
    idle = [slot for slot in slots if slot.idle]
    if not idle:
        return SlotChoice()
    own = [slot for slot in idle if slot.owner == owner and not slot.chain and shared(slot.short, short)]
    if own:
        return SlotChoice(max(own, key=lambda slot: shared(slot.short, short)))
    other = least_lost(idle, slots, owner)
    return SlotChoice(other, rescue=bool(other.unsaved))


def least_lost(idle: Sequence[Slot], slots: Sequence[Slot], owner: str | None) -> Slot:
    """The slot whose loss costs least: an empty one, then a saved one, then the least recently used one.

    owner: who wants one of all `slots`; None: only one owner uses the engine. Otherwise it is one that serves nobody,
    else one of the owner who has most of them, so that each keeps a share.
    """
    if owner is None:
        return min(idle, key=lambda slot: (bool(slot.chain), bool(slot.unsaved), slot.used))
    held = Counter([owner, *(slot.owner for slot in slots)])

    def cost(slot: Slot) -> tuple[bool, int, bool, bool, int]:
        serves = slot.owner not in (None, MANY)
        return serves, -held[slot.owner] if serves else 0, bool(slot.chain), bool(slot.unsaved), slot.used

    return min(idle, key=cost)

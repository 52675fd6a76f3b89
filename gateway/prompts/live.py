"""The prompts of one running engine: assigns requests to slots, restores saved prompts, saves those about to be lost.

If anything goes wrong, the engine reads the prompt itself: nothing here makes a request fail.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from gateway.config import Prompts
from gateway.errors import GatewayError
from gateway.prompts import folder
from gateway.prompts import key as keys
from gateway.prompts.blocks import Chain, chain, chain_of, shared
from gateway.prompts.doctor import Doctor
from gateway.prompts.folder import Damaged
from gateway.prompts.index import Match, Saved
from gateway.prompts.saved import SavedPrompts
from gateway.prompts.slots import (
    MANY,
    MOST_HOSTED,
    SHORT_BLOCK_BYTES,
    Choice,
    Hosted,
    Owners,
    Slot,
    choose,
    least_lost,
    spare,
    spare_of,
    tokens_of,
    worth,
)

log = logging.getLogger("ctxgate")

SAVE_SECONDS = RESTORE_SECONDS = 30.0
"""How long an engine may take for one file."""
STOP_SECONDS = 60.0
"""For all files of an engine that ends."""
RECALL_SECONDS = 2.0
"""Time limit for bringing a prompt back from the engine's cache; reading it again takes longer."""
LEAST_BYTES_PER_TOKEN = 2
"""The fewest bytes of a token: a request with fewer than this for each of `min_tokens` is too short to save."""
LINE_SECONDS = 30.0
"""How long a request waits for a slot before it waits in the engine's own queue."""
LOOK_SECONDS, LOOK_AGAIN = 2.0, 0.005
"""How long a request waits until earlier ones are seen in their slots, and how long between two looks."""
TOLERANCE = 8
"""Tokens by which an engine's counts may differ: the last one, drafts."""
FAST_SECONDS_PER_TOKEN = 0.0002
"""Assumed for an engine until its reading speed is known."""
SLOW_SECONDS = 0.1
"""An engine that takes this long to read one block is slow."""
RATE_TOKENS = 64
"""How many tokens an engine must read for a measurement of its speed."""
WRITING = 8
"""Writing a token takes at least as long as reading this many: an estimate for whole answers, without a first token."""
IN_VAIN = 0.5
"""The share of a restored prefix that an engine must report as cached."""
MOST_IN_VAIN = 2
"""After this many restores in a row without effect, this engine can't restore this model's prompts."""
WORTH = 200
"""A prompt is saved again once it has grown by a 200th."""
TROUBLE = (GatewayError, OSError, TimeoutError, Damaged, ValueError)


class Build(Struct, frozen=True):
    """What an engine reports about itself once it runs. facts: what affects its cache, for the key."""

    slots: int
    facts: object


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

    async def held(self) -> list[tuple[int, int]] | None:
        """The idle slots, each with its count of tokens, the last used first. None if the engine doesn't say."""
        ...

    async def recall(self, prompt: str) -> None:
        """Brings a prompt back into a slot from the engine's cache in memory."""
        ...


class Place(Protocol):
    """A request's place in an engine; see `Turn`."""

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
    """Assigns requests to an engine's slots: `LivePrompts`, or a proxy for one on another machine."""

    async def place(
        self,
        server: SlotServer,
        sent: Sequence[bytes],
        render: Callable[[], Awaitable[str | None]],
        *,
        private: bool,
        owner: str = "",
    ) -> Place | None:
        """See `LivePrompts.place`."""
        ...

    def apart(self, owner: str) -> bool:
        """See `LivePrompts.apart`."""
        ...

    def anywhere(self, server: SlotServer, owner: str | None = None) -> Place | None:
        """See `LivePrompts.anywhere`."""
        ...


class Turn:
    """A request's place in an engine. Call `leave` once its answer has ended, then `answered` if it is complete.

    slot: its number for the engine; None leaves the choice to it. restored: tokens of the file that it got. apart:
    several owners use the engine, so the request must go to this slot. fresh: what the slot holds may be another
    owner's, so the engine must not reuse any of it.
    """

    __slots__ = (
        "_before",
        "_live",
        "_slot",
        "apart",
        "asked",
        "chain",
        "fresh",
        "left",
        "owner",
        "prompt",
        "restored",
        "server",
        "shared",
        "since",
    )

    def __init__(
        self, live: LivePrompts, server: SlotServer, slot: Slot | None, prompt: str, chain: Chain, owner: str
    ) -> None:
        self._live = live
        self._slot = slot
        self.owner = owner
        self.apart = live.owners.several
        self.fresh = self.apart and (slot is None or slot.owner not in (None, owner) or live.unsettled)
        self._before = (slot.chain, slot.tokens, slot.unsaved, slot.prompt) if slot is not None else None
        self.server = server
        self.prompt = prompt
        self.chain = chain
        self.restored: Saved | None = None
        self.shared = 0
        self.asked: tuple[bytes, bytes] | None = None
        """The request's tools and messages, if the doctor should see them."""
        self.left = False
        self.since = 0.0

    @property
    def slot(self) -> int | None:
        return self._slot.number if self._slot is not None else None

    def holds(self, tokens: int, *, saved: bool = False) -> None:
        """Its slot holds the prompt and what was written so far. saved: in a file."""
        if (slot := self._slot) is not None:
            slot.chain, slot.prompt, slot.tokens = self.chain, self.prompt, tokens
            slot.unsaved, slot.sure = 0 if saved else tokens, True
            self.owns()

    def takes_slot(self, short: Chain = ()) -> None:
        """Its slot is about to lose what it holds, unless that is its owner's. short: of a request that isn't saved."""
        slot = self._slot
        if slot is not None and self.apart:
            if self.fresh or not self.chain:
                slot.forget()
            slot.own(MANY if self.fresh else self.owner, short)

    def owns(self) -> None:
        """Its slot holds nothing but its owner's prompt."""
        if self.apart and self._slot is not None:
            self._slot.own(self.owner)
            self.fresh = self._live.unsettled

    def leave(self) -> None:
        """The engine has finished with the request. Idempotent."""
        if not self.left:
            self.left = True
            self._live.left(self._slot)

    def __enter__(self) -> None:
        """Enter this around sending the request: if that raises, the engine didn't accept it; its slot is unchanged."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.refused()
        else:
            self._live.began(self._slot)

    def refused(self) -> None:
        """The engine didn't accept the request."""
        self.leave()
        slot = self._slot
        if slot is not None and slot.owner == MANY:
            slot.disown()  # the engine may have begun
        elif slot is not None and self._before is not None and self.restored is None:
            slot.chain, slot.tokens, slot.unsaved, slot.prompt = self._before

    def answered(self, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]:
        """The answer is complete; returns its usage for the request log. began, first: of the run, by time.monotonic.

        Adds `restored_tokens` and `seconds_saved` if a file helped, and `prefix`: where the request differs from the
        turn before, if it doesn't just go on.
        """
        told = self._live.answered(self, self._slot, usage, began, first)
        found = self._live.doctor.look(*self.asked, self.owner) if self.asked is not None else []
        return {**told, "prefix": [str(each) for each in found]} if found else told


class LivePrompts:
    """For one engine process. prints: what its key depends on, taken before it started and again now. anywhere: the
    same in a form that holds on other machines; None: nothing is shared."""

    def __init__(
        self,
        saved: SavedPrompts,
        model: str,
        prints: Callable[[], list[str]],
        began_with: list[str],
        anywhere: Callable[[], list[str]] | None = None,
    ) -> None:
        self.saved = saved
        self.owners = Owners()
        self.doctor = Doctor()
        self._model = model
        self._prints = prints
        self._began_with = began_with
        self._anywhere = anywhere
        self._key: str | None = None
        self._sharing: asyncio.Task[None] | None = None
        """The task that computes the key of the share."""
        self._asked = asyncio.Lock()
        self._known = False
        self._slots: list[Slot] = []
        self._hosted: list[Hosted] = []
        self._uses = 0
        self._unplaced = self._unseen = 0
        """Requests for which the engine chose the slot, and how many of them haven't been seen in one yet."""
        self._seconds_per_token = 0.0
        self.assumed_seconds_per_token = FAST_SECONDS_PER_TOKEN
        """Reading speed to assume until this engine's own is known."""
        self._in_vain = 0
        self._line: deque[asyncio.Future[None]] = deque()
        """Requests that wait for a slot, the oldest first."""
        self.saving = asyncio.Lock()
        """One save at a time: asked to save several busy slots, an engine forgets some until the next answer ends."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def seconds_per_token(self) -> float:
        """How long the engine takes to read one; 0 if it has read too few."""
        return self._seconds_per_token

    @property
    def _rate(self) -> float:
        """Seconds to read a token, as far as anybody knows."""
        return self._seconds_per_token or self.assumed_seconds_per_token

    def _worth(self, begins: Chain) -> int:
        """How many blocks of a prompt are worth a file."""
        return worth(len(begins), slow=tokens_of(1) * self._rate >= SLOW_SECONDS)

    # A request

    async def place(
        self,
        server: SlotServer,
        sent: Sequence[bytes],
        render: Callable[[], Awaitable[str | None]],
        *,
        private: bool,
        owner: str = "",
    ) -> Turn | None:
        """A place for a request; None if saved prompts don't apply to it, and it may reuse whatever the engine holds.

        sent: its tools and messages, in JSON. render: its prompt as the model's template makes it. private: save
        nothing of it. owner: see `gateway.wire.chat.Caller`.
        """
        apart = self.apart(owner)
        if not apart and (self.saved.settings.save == "off" or (self._known and self._key is None)):
            return None
        try:
            if private or is_short(sent, self.saved.settings):
                return await self.place_beside(server, b"".join(sent), private=private, owner=owner)
            prompt = await render() if await self.know(server) or apart else None
            if prompt is None:
                return await self.place_beside(server, b"", private=True, owner=owner)
            return await self.place_long(server, prompt, owner)
        except TROUBLE as error:
            log.debug("model %s: no slot for a prompt: %s", self._model, error)
            return self.anywhere(server, owner) if apart else None

    def apart(self, owner: str) -> bool:
        """Whether the engine may hold others' prompts, which a request of this owner must not reuse."""
        if self.owners.enter(owner):
            self._part()
        return self.owners.several

    def _part(self) -> None:
        """Several owners use the engine. The slots that the gateway has chosen are the first one's."""
        for slot in self._slots:
            slot.own(self.owners.first or "" if slot.chain else MANY)

    def anywhere(self, server: SlotServer, owner: str | None = None) -> Turn | None:
        """A request that may take any slot; None if it may reuse what the engine holds. owner: None if unknown."""
        if owner is not None:
            self.apart(owner)
        if not self.owners.several:
            self.disturb()
            return None
        return self._turn(server, None, "", (), owner or "")

    @property
    def unsettled(self) -> bool:
        """Whether the engine may yet put a request into a slot that the gateway has chosen for another one."""
        return self._unplaced > 0

    async def place_beside(self, server: SlotServer, sent: bytes, *, private: bool, owner: str = "") -> Turn | None:
        """A place for a request that won't be saved. sent: its text, whose prefix other short requests may share."""
        apart = self.apart(owner)
        if apart:
            await self.know(server)
        await self._any_idle()
        try:
            short = chain_of(b"" if private else sent, SHORT_BLOCK_BYTES, owner)
            if apart:
                return await self._spare_of(server, short, owner)
            return await self._spare(server, short, private=private, owner=owner)
        except BaseException:
            self.freed()
            raise

    async def place_long(self, server: SlotServer, prompt: str, owner: str = "") -> Turn | None:
        """A place for a rendered prompt. Raises one of TROUBLE."""
        apart = self.apart(owner)
        if not await self.know(server) and not apart:
            return None
        begins = chain(prompt, owner)
        if self._key is not None:
            await self._fetch(self._key, begins)
        await self._any_idle()
        try:
            return await self._place(server, prompt, begins, owner)
        except BaseException:
            self.freed()
            raise

    async def _fetch(self, key: str, begins: Chain) -> None:
        """Fetches a prompt from the share if neither the engine nor this disk has it, unless reading it is faster."""
        least = self._worth(begins)
        held = [*(slot.chain for slot in self._slots), *(hosted.chain for hosted in self._hosted)]
        match = self.saved.best(key, begins)
        known = max([match.blocks if match is not None else 0, *(shared(each, begins) for each in held)])
        if len(begins) - known >= least:
            seconds = tokens_of(len(begins) - known) * self._rate
            end = time.monotonic() + seconds
            if self._sharing is not None:
                await asyncio.wait({self._sharing}, timeout=seconds)
            await self.saved.fetch(key, begins, known + least - 1, max(0.0, end - time.monotonic()))

    async def know(self, server: SlotServer) -> bool:
        """Identifies the engine; returns whether its slots can be saved and restored."""
        if not self._known and (self.saved.settings.save != "off" or self.owners.several):
            await self._find_key(server)
        return self._key is not None

    @property
    def key(self) -> str | None:
        """The key of its files; None until `know`, and if nothing is saved."""
        return self._key

    async def control_tokens(
        self, server: SlotServer, read: Callable[[], Awaitable[dict[str, list[int]]]]
    ) -> Mapping[str, list[int]]:
        """The control tokens of the vocabulary: remembered from an engine with the same key, else from `read`."""
        if not await self.know(server) or self._key is None:
            return await read()
        return await self.saved.control_tokens(self._key, read)

    async def take(self, server: SlotServer, begun: Turn | None = None, owner: str = "") -> Turn:
        """A slot for an answer that resumes from its own file. begun: its turn until it was put aside.

        Saves the slot's contents first. The turn has no slot if all stay busy for too long.
        """
        apart = self.apart(owner)
        await self.know(server)
        await self._any_idle()
        try:
            await self._see_unplaced(server)
            idle = [slot for slot in self._slots if slot.idle]
            if not idle:
                await self._see_placed(server)
        except BaseException:
            self.freed()
            raise
        prompt, begins = (begun.prompt, begun.chain) if begun is not None else ("", ())
        slot = least_lost(idle, self._slots, owner if apart else None) if idle else None
        turn = self._turn(server, slot, prompt, begins, owner)
        if begun is not None:
            turn.since = begun.since
        try:
            if turn._slot is not None and turn._slot.chain:
                if turn._slot.unsaved:
                    await self._save(server, turn._slot)
                turn._slot.forget()
            turn.takes_slot()
        except BaseException:
            turn.leave()
            raise
        return turn

    async def _any_idle(self) -> None:
        """Waits for a slot here instead of in the engine's queue, which wouldn't say which slot the request got.

        After this returns, the caller must take a place, or call `freed`. After LINE_SECONDS, the request goes to the
        engine's queue after all.
        """
        if not self._slots or (self._has_idle() and not self._line):
            return
        end = time.monotonic() + LINE_SECONDS
        line, ahead = self._line, False
        while True:
            turn = asyncio.get_running_loop().create_future()
            line.appendleft(turn) if ahead else line.append(turn)
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    await turn
            except TimeoutError:
                return
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.freed()
                raise
            finally:
                if turn in line:
                    line.remove(turn)
            if self._has_idle():
                return
            # Another request came between.
            ahead = True

    def _has_idle(self) -> bool:
        return any(not slot.busy for slot in self._slots)

    def freed(self) -> None:
        """A slot became or stayed idle: the next request in line may have it."""
        while self._line and self._has_idle():
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def began(self, slot: Slot | None) -> None:
        """The engine answers a request in this slot; None: in one that it chose."""
        if slot is not None:
            slot.seen = True
        elif self._unseen:
            self._unseen -= 1

    def left(self, slot: Slot | None) -> None:
        """A request left its slot; None: the one that the engine chose."""
        if slot is not None:
            slot.busy -= 1
            self.freed()
            return
        self._unplaced -= 1
        self._unseen = min(self._unseen, self._unplaced)
        if self.owners.several:
            for each in self._slots:
                each.disown()
        if not self._unplaced:
            for each in self._slots:
                each.strange = False

    # An engine that chooses a slot may take the one that the gateway has chosen for a request on its way there, which
    # then waits for a whole answer. So neither kind of request follows the other before that one is seen in its slot.

    async def _see_unplaced(self, server: SlotServer) -> None:
        """Before the gateway chooses a slot: finds the slots that the engine chose for other requests, also those of
        other programs at a server of somebody else, which has no prints."""
        if self._unplaced or not self._began_with:
            await self._look_until(server, lambda: not self._unseen)

    async def _see_placed(self, server: SlotServer) -> None:
        """Before the engine chooses a slot: waits until it works in the slots that the gateway chose."""
        if any(slot.busy and not slot.seen for slot in self._slots):
            await self._look_until(server, lambda: not any(slot.busy and not slot.seen for slot in self._slots))

    async def _look_until(self, server: SlotServer, seen: Callable[[], bool]) -> None:
        """Looks at least once; gives up after LOOK_SECONDS."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                while await self._look(server):
                    if seen():
                        return
                    await asyncio.sleep(LOOK_AGAIN)
        except TROUBLE as error:
            log.debug("model %s: its slots can't be read: %s", self._model, error)

    async def _look(self, server: SlotServer) -> bool:
        """Notes in which slots the engine works; False if it doesn't say."""
        found = await server.held()
        if found is None:
            return False
        idle = {number for number, _ in found}
        for slot in self._slots:
            works = slot.number not in idle
            slot.seen = bool(slot.busy) and (slot.seen or works)
            slot.strange = works and not slot.busy
            if slot.strange and self.owners.several:
                slot.disown()
        if sum(slot.strange for slot in self._slots) >= self._unplaced:
            self._unseen = 0
        return True

    def _at_stake(self) -> bool:
        """Whether a request might overwrite a prompt that is worth saving."""
        least = self.saved.settings.min_tokens
        return any(slot.idle and slot.worth_saving(least) for slot in self._slots)

    async def _spare_of(self, server: SlotServer, short: Chain, owner: str) -> Turn:
        """Like `_spare`, for an engine that several owners use."""
        await self._see_unplaced(server)
        choice = spare_of(self._slots, short, owner)
        if choice.slot is None:
            await self._see_placed(server)
        turn = self._turn(server, choice.slot, "", (), owner)
        if choice.slot is None:
            return turn
        try:
            if choice.rescue:
                await self._save(server, choice.slot)
            turn.takes_slot(short)
        except BaseException:
            turn.leave()
            raise
        return turn

    async def _spare(self, server: SlotServer, short: Chain, *, private: bool, owner: str) -> Turn | None:
        """A slot for a request that isn't saved itself, and must not overwrite a prompt that may be saved.

        If nothing can be lost, the engine chooses: it also finds prefixes in its cache in memory.
        """
        if self._known and self._key is None:
            return None
        slot = None
        if self._at_stake():
            await self._see_unplaced(server)
            slot = spare(self._slots, short)
        if slot is None:
            await self._see_placed(server)
        else:
            slot.short = short
        if slot is None and private:
            # It may get any slot, so don't rely on any of them.
            for each in self._slots:
                self._move(each)
        return self._turn(server, slot, "", (), owner)

    def _turn(self, server: SlotServer, slot: Slot | None, prompt: str, chain: Chain, owner: str) -> Turn:
        turn = Turn(self, server, slot, prompt, chain, owner)
        turn.since = time.monotonic()
        if slot is not None:
            self._uses += 1
            slot.busy += 1
            slot.used = self._uses
            slot.seen = False
        else:
            self._unplaced += 1
            self._unseen += 1
        # Another slot may be idle, too.
        self.freed()
        return turn

    async def _place(self, server: SlotServer, prompt: str, begins: Chain, owner: str) -> Turn:
        key, match, least, apart = self._key, None, self._worth(begins), self.owners.several
        if key is not None:
            await self.saved.kept(key)
            match = self.saved.best(key, begins)
        choice = Choice()
        long = tokens_of(len(begins)) >= self.saved.settings.min_tokens
        if long or match is not None or apart or self._at_stake():
            await self._see_unplaced(server)
            hosted = () if apart else self._hosted
            choice = choose(self._slots, hosted, begins, match, least, owner if apart else None)
        if choice.slot is None:
            await self._see_placed(server)
        turn = self._turn(server, choice.slot, prompt, begins, owner)
        try:
            if choice.slot is not None:
                await self._prepare(turn, choice.slot, choice, match)
                turn.takes_slot()
                choice.slot.chain, choice.slot.prompt, choice.slot.tokens = begins, prompt, None
                choice.slot.sure = True
        except BaseException:
            turn.leave()
            if choice.slot is not None:
                choice.slot.disown() if turn.apart else choice.slot.forget()
            raise
        return turn

    async def _prepare(self, turn: Turn, slot: Slot, choice: Choice, match: Match | None) -> None:
        """Saves the slot's contents, then fills it from a file."""
        if choice.rescue:
            await self._save(turn.server, slot)
        if choice.restore is None or match is None:
            return
        file = await self.saved.file(choice.restore)
        if file is None:
            return
        slot.forget()
        try:
            async with asyncio.timeout(RESTORE_SECONDS):
                tokens = await turn.server.restore(slot.number, file)
        except TimeoutError:
            raise  # the engine reads a long prompt of another request; the file is good
        except TROUBLE:
            # Never retry a file that an engine couldn't read: it may have crashed the engine.
            await self.saved.drop(choice.restore)
            raise
        if tokens != choice.restore.tokens:
            await self.saved.drop(choice.restore)
            return
        self.saved.restores += 1
        turn.owns()
        turn.restored, turn.shared = choice.restore, match.blocks
        slot.chain = choice.restore.chain

    def disturb(self) -> None:
        """A request went to the engine that may have taken any slot."""
        for slot in self._slots:
            self._move(slot)

    def answered(
        self, turn: Turn, slot: Slot | None, usage: Mapping[str, Any], began: float, first: float
    ) -> Mapping[str, Any]:
        found = counts(usage)
        if found is not None or first:
            turn.owns()  # the engine has written something, so it has read the prompt
        if found is None:
            return usage
        prompt, cached, completion = found
        if slot is None:
            if not turn.apart:
                self._find_slot(turn, prompt + completion)
            return usage
        if not turn.chain:
            return usage
        slot.tokens = prompt + completion
        slot.unsaved += max(0, prompt - cached) + completion
        if reading := reading_seconds(found, max(began, turn.since), first):
            self._seconds_per_token = reading / (prompt - cached)
        if self.saved.settings.save == "each_turn":
            self._later(self._save_turn(turn.server, slot))
        return self._check(turn, usage, prompt, cached)

    def _check(self, turn: Turn, usage: Mapping[str, Any], prompt: int, cached: int) -> Mapping[str, Any]:
        """Compares the tokens that the engine read with those that it should have found in the file."""
        restored = turn.restored
        if restored is None or not turn.chain:
            return usage
        expected = min(int(prompt * turn.shared / len(turn.chain)), restored.tokens)
        if cached < expected * IN_VAIN:
            self._in_vain += 1
            if not restored.sure:
                self._in_vain = 0
            if self._in_vain >= MOST_IN_VAIN and self._key is not None:
                self._later(self.saved.unsupported(self._key, self._model))
                self._key = None
            else:
                self._later(self.saved.drop(restored))
            return usage
        self._in_vain = 0
        helped = min(cached, restored.tokens)
        return {**usage, "restored_tokens": helped, "seconds_saved": round(helped * self._seconds_per_token, 3)}

    def _find_slot(self, turn: Turn, tokens: int) -> None:
        """Finds out which slot the engine chose for this request."""
        if not turn.chain and not any(slot.chain for slot in self._slots):
            return
        if len(self._slots) == 1:
            self._took(self._slots[0], turn, tokens)
        else:
            self._later(self._look_for(turn, tokens))

    async def _look_for(self, turn: Turn, tokens: int) -> None:
        found = [number for number, held in await turn.server.held() or () if abs(held - tokens) <= 1]
        if found and not self._slots[found[0]].busy:
            self._took(self._slots[found[0]], turn, tokens)
            return
        for slot in self._slots:
            if not slot.busy:
                self._move(slot)

    def _took(self, slot: Slot, turn: Turn, tokens: int) -> None:
        if shared(slot.chain, turn.chain) < len(slot.chain) - 1 or not turn.chain:
            self._move(slot)
        self._hosted = [each for each in self._hosted if shared(each.chain, turn.chain) < len(each.chain) - 1]
        slot.sure = len(self._slots) == 1
        if turn.chain:
            slot.chain, slot.prompt, slot.tokens, slot.unsaved = turn.chain, turn.prompt, tokens, tokens

    def _move(self, slot: Slot) -> None:
        """Another prompt took the slot, so the engine moved the slot's contents to its cache."""
        if slot.chain:
            self._hosted = [*self._hosted, Hosted(slot.chain, slot.unsaved, slot.prompt)][-MOST_HOSTED:]
        slot.forget()

    # Saving

    async def settled(self) -> None:
        """Returns once all work left over from answers is done."""
        await self._engine_is_done()
        await self.saved.kept()
        await self.saved.shared()

    async def _engine_is_done(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def save_all(self, server: SlotServer) -> None:
        """Has the engine write all prompts that no file has yet, before it ends.

        Raises nothing, takes STOP_SECONDS at most. `SavedPrompts.kept` waits for the files.
        """
        if self.saved.settings.save == "off" or self._key is None:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._engine_is_done()
                for slot in self._slots:
                    # Saving waits for the answer in a slot; an answer that is cut off now isn't worth the wait.
                    if not slot.busy:
                        await self._save(server, slot)
                for hosted in self._hosted:
                    if hosted.unsaved:
                        await self._save_hosted(server, hosted)
        except TROUBLE as error:
            log.debug("model %s: its prompts were not all saved: %s", self._model, error)

    async def _save_hosted(self, server: SlotServer, hosted: Hosted) -> None:
        """Brings a prompt back from the engine's cache, if it is still there, and saves it."""
        try:
            async with asyncio.timeout(RECALL_SECONDS):
                await server.recall(hosted.prompt)
        except TimeoutError:
            return
        number, tokens = next(iter(await server.held() or ()), (0, 0))
        slot = self._slots[number]
        slot.sure = len(self._slots) == 1
        slot.chain, slot.prompt, slot.tokens, slot.unsaved = hosted.chain, hosted.prompt, tokens, tokens
        await self._save(server, slot)
        slot.forget()

    async def _save_turn(self, server: SlotServer, slot: Slot) -> None:
        if not slot.busy:
            await self._save(server, slot, only_idle=True)

    async def _save(self, server: SlotServer, slot: Slot, *, only_idle: bool = False) -> None:
        """Saves one slot if it is worth a file. Raises nothing. only_idle: unless it is busy once it is its turn: the
        engine would save it after the answer alone, and all other saves would wait for that.

        Returns once the engine has written the file; checking it and flushing it to disk go on.
        """
        key, tokens, begins, unsaved = self._key, slot.tokens, slot.chain, slot.unsaved
        if key is None or not begins or slot.owner == MANY or (tokens is not None and unsaved <= tokens // WORTH):
            return
        saved = self.saved
        if saved.refuses(key, tokens if tokens is not None else tokens_of(len(begins))):
            return
        fresh = saved.fresh()
        try:
            async with self.saving, asyncio.timeout(SAVE_SECONDS):
                if only_idle and slot.busy:
                    return
                count, size = await server.save(slot.number, fresh)
            expected = tokens if tokens is not None else max(count, saved.settings.min_tokens)
            exact = abs(count - expected) <= TOLERANCE and slot.chain == begins
            if count < expected - TOLERANCE or shared(slot.chain, begins) < len(begins):
                # Another prompt has taken the slot, or the answer was cut off early.
                await saved.discard(fresh)
                return
            now = time.time()
            description = Saved(
                name=folder.name(), key=key, model=self._model, size=size, sha256="", tokens=count, chain=begins,
                # Its next turn may have come before the engine wrote the file: the same beginning, and more.
                sure=slot.sure and exact, saved=now, used=now,
            )  # fmt: skip
            saved.keep_later(fresh, description)
            if exact:
                slot.unsaved, slot.tokens = max(0, slot.unsaved - unsaved), count
        except TROUBLE as error:
            saved.failed(error)
            await saved.discard(fresh)

    # The engine

    async def _find_key(self, server: SlotServer) -> None:
        """Identifies the engine; without a key, nothing is saved or restored."""
        async with self._asked:
            if self._known:
                return
            try:
                if (build := await server.build()) is not None and self.saved.settings.save != "off":
                    await self.saved.open()
                    self._use_key(build, await asyncio.to_thread(self._prints))
            except TROUBLE as error:
                if self.saved.settings.save == "off":
                    return
                self.saved.failed(error)
            else:
                self._slots = [Slot(number) for number in range(build.slots if build is not None else 0)]
                if self.owners.several:
                    self._part()
            self._known = True

    def _use_key(self, build: Build, prints: list[str]) -> None:
        """prints: what the key depends on, as it is now."""
        key = keys.key(self._began_with, build.slots, build.facts)
        if prints != self._began_with or not self.saved.supports(key):
            return
        self._key = key
        if self._anywhere is not None and self.saved.settings.share is not None:
            self._sharing = self._later(self._share(key, self._anywhere, build))

    async def _share(self, key: str, anywhere: Callable[[], list[str]], build: Build) -> None:
        """Computes the key of the share; the first time, this reads all weights."""
        facts = await asyncio.to_thread(anywhere)
        self.saved.shares(key, keys.key("shared", facts, build.slots, build.facts))

    def _later(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(self._quietly(work), name=f"prompts of {self._model}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except TROUBLE as error:
            log.debug("model %s: its prompts: %s", self._model, error)


def unsaved(model: str) -> LivePrompts:
    """For a server that saves no prompts, and that the owner of this machine may have used already."""
    prompts = LivePrompts(SavedPrompts(Prompts(save="off"), Path()), model, list, [])
    prompts.apart("")
    return prompts


def is_short(sent: Sequence[bytes], settings: Prompts) -> bool:
    """Whether a request with these tools and messages, in JSON, has too few tokens to be worth a file."""
    return sum(map(len, sent)) < LEAST_BYTES_PER_TOKEN * settings.min_tokens


def counts(usage: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Tokens of the prompt, of its cached part and of the answer; None if the engine did not count."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    counts = usage.get("prompt_tokens"), cached, usage.get("completion_tokens")
    prompt, cached, completion = (count if isinstance(count, int) else None for count in counts)
    return None if prompt is None or cached is None or completion is None else (prompt, cached, completion)


def reading_seconds(found: tuple[int, int, int], since: float, first: float) -> float:
    """How long an engine took to read a prompt; 0 if that can't be said. found: see `counts`. since, first: when it
    got the prompt, and when its first token came, by time.monotonic; 0 for a whole answer, which ends now."""
    prompt, cached, completion = found
    read = prompt - cached
    if read < RATE_TOKENS:
        return 0.0
    if first:
        return max(0.0, first - since)
    written = WRITING * completion
    return max(0.0, time.monotonic() - since) * read / (read + written) if written <= read else 0.0

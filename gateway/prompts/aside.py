"""Saves the slot of an answer that is put aside (prompt and answer so far), and restores it into another slot.

As with saved prompts, a failure costs time but no answer: without the file, the engine reads the tokens again.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Sequence

from msgspec import Struct

from gateway.prompts.folder import Damaged
from gateway.prompts.key import FileVersion
from gateway.prompts.live import LivePrompts
from gateway.prompts.protocols import RESTORE_SECONDS, SAVE_SECONDS, TROUBLE, SlotServer
from gateway.prompts.turn import Turn

log = logging.getLogger("ctxgate")

HEADS = (6, 3)
"""32-bit words before the token ids in llama.cpp's files: in current builds, and in older ones."""


class Aside(Struct):
    """A slot in a file that only this process uses. turn: of the answer. count: its tokens. head: the first bytes,
    with their ids."""

    turn: Turn
    live: LivePrompts
    key: str
    file: str
    version: FileVersion
    count: int
    head: bytes

    def tokens(self, begin: Sequence[int]) -> list[int] | None:
        """The ids that follow `begin`, the prompt's; None if the file has another prompt, or an unknown format."""
        for words in HEADS:
            ids = array("i", self.head[: len(self.head) // 4 * 4])[words : words + self.count].tolist()
            if ids[: len(begin)] == list(begin):
                return ids[len(begin) :]
        return None

    async def discard(self) -> None:
        try:
            await self.live.saved.discard(self.file)
        except OSError as error:
            log.warning("can't remove %s: %s", self.file, error)


async def put_aside(live: LivePrompts, turn: Turn) -> Aside | None:
    """Saves the slot of an answer that was cut off, and leaves it; None if that fails. Returns within SAVE_SECONDS.

    Call it with `live.saver.lock`, taken before the answer was cut off.
    """
    saved, key, slot = live.saved, live.key, turn.slot
    fresh = saved.folder.fresh("aside")
    try:
        if key is None or slot is None or saved.refuses(key, 0, least=0):
            return None
        async with asyncio.timeout(SAVE_SECONDS):
            count, size = await turn.server.save(slot, fresh)
            version, head = await asyncio.to_thread(saved.folder.read, fresh, size)
        turn.holds(count, saved=True)
        return Aside(turn, live, key, fresh, version, count, head)
    except TROUBLE as error:
        log.debug("an answer is put aside without its state: %s", error)
        await saved.discard(fresh)
        return None
    finally:
        turn.leave()


async def take_back(live: LivePrompts, server: SlotServer, aside: Aside | None, owner: str = "") -> Turn:
    """A slot with the file's contents, or an empty one if restoring fails. owner: whose answer it is."""
    begun = aside.turn if aside is not None and aside.key == live.key else None
    turn = await live.take(server, begun, owner)
    if turn.slot is None or aside is None or begun is None:
        return turn
    try:
        if not await asyncio.to_thread(live.saved.folder.unchanged, aside.file, aside.version):
            raise Damaged("somebody touched the file")
        async with asyncio.timeout(RESTORE_SECONDS):
            await server.restore(turn.slot, aside.file)
        turn.holds(aside.count)
    except TROUBLE as error:
        log.debug("an answer resumes without its state: %s", error)
    except BaseException:
        turn.leave()
        raise
    return turn

"""All rooms of this process: the verbs of the protocol, without HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from gateway.config import Config
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderRateLimit
from gateway.rooms import transaction
from gateway.rooms.feed import Frame, frame
from gateway.rooms.room import LiveRoom, finish
from gateway.rooms.schemas import (
    Actor,
    History,
    Message,
    Release,
    Rent,
    Room,
    Say,
    Update,
    check_metadata,
)
from gateway.rooms.states import DETACHED, OPEN, State, check, conflict
from gateway.rooms.transaction import Ledger
from gateway.rooms.turns import Agent, check_actors
from gateway.rooms.vault import Vault, key_of_file, key_of_keychain
from gateway.services import Services
from gateway.store import Claimed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.store import Store

T = TypeVar("T")

MARKER = "rooms.open"
"""In the state folder while rooms may have to be taken up after a restart."""

REPLAY = 200
"""Events that are read from the store at a time."""

CLOSE_SECONDS = 10

log = logging.getLogger("ctxgate")


class Rooms:
    """Opens with the first verb. Make one for a process, by `services.shared(Rooms)`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._live: WeakValueDictionary[str, LiveRoom] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._leaving: list[asyncio.Task[Any]] = []
        """What the rooms did when they were lost, while it ends."""
        self._closed = False
        self.store: Store
        self.vault: Vault
        self.agent: Agent

    @property
    def _config(self) -> Config:
        """As it is now: it may be read anew."""
        return self._services.gateway.config

    @property
    def idle_seconds(self) -> float:
        return self._config.rooms.idle_seconds

    # Life

    async def open(self) -> None:
        """Takes up what an earlier process left, once, and again where the rooms were lost meanwhile.

        Raises ProviderUnavailable where the store can't be opened, Claimed where another gateway has them.
        """
        if (done := self._opening) is not None and done.done() and not done.cancelled() and done.exception() is None:
            await self._kept()
        if self._opening is None:
            self._opening = self.spawn(self._open(), "open the rooms")
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None  # the next one tries again
            raise

    async def _open(self) -> None:
        self.store = await self._services.store()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CLOSE_SECONDS)
        # Another gateway's rooms look as if they had been left.
        await self.store.claim("rooms")
        file = self._config.rooms.secret_key_file
        self.vault = Vault(self.store, key_of_keychain if file is None else lambda: key_of_file(file))
        self.agent = Agent(self._services.gateway, self.store, self.vault)
        if self._ending is None:
            self._ending = self.spawn(self._end_streams(), "end the streams")
        await asyncio.to_thread(self._mark)
        left = await self.store.read(
            lambda connection: transaction.in_state(connection, ("active", "releasing", "idle"))
        )
        for room_id in left:
            room = self._room(room_id)
            if await room.commit(_left_behind) in ("active", "releasing"):
                room.attach()

    async def keep(self) -> None:
        """Raises Claimed where the rooms aren't this process's any more; `open` claims them again."""
        if not await self._kept():
            raise Claimed(
                "the store has ended what kept its rooms here: ask again", code="store_claimed", retry_after=1
            )

    async def _kept(self) -> bool:
        """Whether the rooms are this process's still. What they do ends where they aren't."""
        opening = self._opening
        if await self.store.holds("rooms"):
            return True
        if opening is not None and opening is self._opening:
            self._opening = None
            writes = [task for task in self._tasks if task.get_name().startswith("write")]
            self._leaving = [*writes, *(task for room in list(self._live.values()) for task in room.leave())]
            log.warning("rooms: the store has ended what kept them here; the next request takes them up again")
        return False

    async def _end_streams(self) -> None:
        await self._services.ending.wait()
        for room in list(self._live.values()):
            room.feed.wake()

    def _mark(self) -> None:
        self._config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._config.state_dir / MARKER).touch(mode=0o600)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, GatewayError):
            log.error("%s failed", task.get_name(), exc_info=error)

    async def aclose(self) -> None:
        """Leaves the rooms as they are: turns that run are taken up at the next start. Idempotent."""
        if self._closed:
            return
        self._closed = True
        tasks = [task for task in self._tasks if not task.get_name().startswith("write")]
        for task in tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        if self._opening is not None and self._opening.done() and not self._opening.cancelled():
            left = await self.store.read(
                lambda connection: transaction.in_state(connection, ("active", "releasing", "idle"))
            )
            if not left:
                (self._config.state_dir / MARKER).unlink(missing_ok=True)

    def _room(self, room_id: str) -> LiveRoom:
        room = self._live.get(room_id)
        if room is None:
            room = self._live[room_id] = LiveRoom(self, room_id)
        return room

    # Verbs. All raise ProviderInvalidRequest (404) for a room that the tenant doesn't have.

    async def rent(self, tenant: str, user: str, rent: Rent) -> Room:
        """Raises ProviderInvalidRequest and ProviderInvalidModel; ProviderRateLimit above `rooms.max_rooms`."""
        await self.open()
        actors = _actors(rent.agents, rent.actors) or [Actor()]
        check_actors(self._config, actors)
        check_metadata(rent.metadata)
        self.agent.check_policy(rent.tool_policy)
        most = self._config.rooms.max_rooms

        def work(connection: Connection) -> Room:
            if transaction.count(connection, tenant, OPEN) >= most:
                raise ProviderRateLimit(f"the tenant has {most} rooms: release one first", code="too_many_rooms")
            ledger = Ledger.rent(connection, tenant, user, rent, actors)
            ledger.save()
            return ledger.room()

        return await self.store.write(work)

    async def visible(self, tenant: str, status: State | None, limit: int, offset: int) -> list[Room]:
        await self.open()
        return await self.store.read(lambda connection: transaction.rooms(connection, tenant, status, limit, offset))

    async def get(self, tenant: str, room_id: str) -> Room:
        await self.open()
        return await self.store.read(lambda connection: transaction.find(connection, room_id, tenant))

    async def update(self, tenant: str, room_id: str, update: Update) -> Room:
        """What changes holds from the next turn on."""
        await self.open()
        changes = {
            name: value
            for name in update.__struct_fields__
            if (value := getattr(update, name)) is not msgspec.UNSET and name not in ("agents", "actors")
        }
        actors = _actors(_given(update.agents), _given(update.actors))
        if actors is not None:
            check_actors(self._config, actors)
            changes["actors"] = actors
        if "metadata" in changes:
            check_metadata(changes["metadata"])
        self.agent.check_policy(_given(update.tool_policy))

        def work(ledger: Ledger) -> Room:
            check("update", ledger.status)
            for name, value in changes.items():
                setattr(ledger.data, name, value)
            if changes:
                ledger.event("room:updated", {"fields": sorted(changes)})
            return ledger.room()

        return await self._room(room_id).commit(work, tenant)

    async def say(self, tenant: str, user: str, room_id: str, say: Say) -> Message:
        """Raises ProviderInvalidRequest (409) where the state refuses it, or a message waits already."""
        await self.open()
        say.text()
        check_metadata(say.metadata)
        room = self._room(room_id)

        def work(ledger: Ledger) -> tuple[Message, State]:
            check("message", ledger.status)
            if ledger.queued is not None:
                raise conflict("message_queued", "a message waits already: a room queues one at a time")
            known = [actor.agent_id for actor in ledger.data.actors]
            actor = say.agent_id or known[0]
            if actor not in known:
                names = ", ".join(known)
                raise ProviderInvalidRequest(
                    f"agent_id: there is no {actor!r}; the room has: {names}", param="agent_id"
                )
            message = ledger.say(
                say.content,
                user=user,
                author_kind="user",
                kind=say.kind,
                status="queued",
                actor_key=actor,
                metadata=say.metadata,
            )
            ledger.queued = message.id
            told = {"message_id": message.id, "message_seq": message.seq, "agent_id": actor}
            ledger.event("room:message", told, message=message.id)
            wakes = ledger.status != "sleeping" or ledger.data.wake_policy.on_message
            if ledger.status != "active" and wakes:
                ledger.to("begin", trigger_message_id=message.id)
            return message, ledger.status

        message, status = await room.commit(work, tenant)
        if status == "active":
            room.attach()
        return message

    async def wake(self, tenant: str, room_id: str) -> Room:
        """An active or idle room is awake: nothing happens. A failed one begins anew, with the message that waits."""
        await self.open()
        room = self._room(room_id)

        def work(ledger: Ledger) -> Room:
            check("wake", ledger.status)
            if ledger.status not in ("active", "idle"):
                ledger.data.last_error = None
                ledger.to("wake", trigger_message_id=ledger.queued)
            return ledger.room()

        shown = await room.commit(work, tenant)
        if shown.status == "active":
            room.attach()
        return shown

    async def interrupt(self, tenant: str, room_id: str, reason: str | None) -> Room:
        await self.open()
        return await self._room(room_id).interrupt(tenant, reason)

    async def release(self, tenant: str, room_id: str, release: Release) -> Room:
        """A room that is being released may be so again, more urgently."""
        await self.open()
        room = self._room(room_id)

        def work(ledger: Ledger) -> Room:
            check("release", ledger.status)
            if ledger.status != "releasing":
                ledger.to("release", mode=release.mode, reason=release.reason, by="user")
            if ledger.running is None:
                finish(ledger)
            return ledger.room()

        shown = await room.commit(work, tenant)
        if release.mode == "immediate":
            room.release_at_once()
        if room.attached or shown.status == "releasing":
            room.attach()
        return shown

    async def history(self, tenant: str, room_id: str, after_event: int, after_message: int, limit: int) -> History:
        await self.open()

        def work(connection: Connection) -> History:
            room = transaction.find(connection, room_id, tenant)
            events = transaction.events(connection, room_id, after_event, limit + 1)
            messages = transaction.messages(connection, room_id, after_message, limit + 1)
            more = len(events) > limit or len(messages) > limit
            return History(room=room, messages=messages[:limit], events=events[:limit], more=more)

        return await self.store.read(work)

    async def follow(self, tenant: str, room_id: str, after: int, *, tail: bool) -> AsyncIterator[bytes]:
        """The room's events behind number `after` as server-sent events, each once and in order; with `tail` also those
        to come, until no worker is attached any more, and comments that keep the stream alive.

        Nothing is kept for a follower: who is slow reads from the store.
        """
        await self.open()
        opening = self._opening
        room = self._room(room_id)
        news = room.feed.news
        frames: list[Frame] | None
        frames, status = await self._replay(tenant, room_id, after)
        while True:
            for made in frames:
                yield made.data
                after = made.seq
                status = _STATUS_AFTER.get(made.event_type, status)
            if not frames:
                if not tail or status in DETACHED or self._services.ending.is_set():
                    return
                try:
                    async with asyncio.timeout(self._config.server.keep_alive_seconds):
                        await news.wait()
                except TimeoutError:
                    yield b": keep-alive\n\n"
                    await self._kept()
            if self._opening is not opening:  # another process may write to the room now: the client asks again
                return
            news = room.feed.news
            frames = room.feed.since(after)
            if frames is None:
                frames, status = await self._replay(tenant, room_id, after)

    async def _replay(self, tenant: str, room_id: str, after: int) -> tuple[list[Frame], State]:
        def work(connection: Connection) -> tuple[list[Frame], State]:
            found = transaction.find(connection, room_id, tenant)
            events = transaction.events(connection, room_id, after, REPLAY)
            return [frame(event) for event in events], found.status

        return await self.store.read(work)


_STATUS_AFTER: dict[str, State] = {
    "room:active": "active",
    "room:idle": "idle",
    "room:sleeping": "sleeping",
    "room:releasing": "releasing",
    "room:released": "released",
    "room:failed": "failed",
}


def _actors(agents: list[Actor] | None, actors: list[Actor] | None) -> list[Actor] | None:
    if agents is not None and actors is not None and agents != actors:
        raise ProviderInvalidRequest("agents and actors are two names of one list: give one", param="actors")
    return agents if agents is not None else actors


def _given(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value


def _left_behind(ledger: Ledger) -> State:
    """An idle room had a worker that waited; that one is gone."""
    if ledger.status == "idle":
        ledger.to("sleep", reason="restart")
    return ledger.status

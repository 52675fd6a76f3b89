"""All rooms of this process: the protocol's verbs, without HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from gateway.config import Config
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderRateLimit
from gateway.features.agents.settings import Rooms as Settings
from gateway.features.agents.tools.mcp.servers import Servers
from gateway.features.rooms import transaction
from gateway.features.rooms.feed import Frame, frame
from gateway.features.rooms.room import LiveRoom, finish
from gateway.features.rooms.schemas import (
    Actor,
    Event,
    History,
    Message,
    Release,
    Rent,
    Room,
    Say,
    Update,
    check_metadata,
)
from gateway.features.rooms.states import DETACHED, OPEN, State, check, conflict
from gateway.features.rooms.transaction import Transaction
from gateway.features.rooms.turns import Agent, check_actors
from gateway.features.rooms.vault import Vault, key_of_file, key_of_keychain
from gateway.features.rooms.workspace import check_mounts, files
from gateway.services import Services
from gateway.store import Claimed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.features.agents.tools.records import Records
    from gateway.features.agents.tools.vfs import JailedFileSystem
    from gateway.store import Store

T = TypeVar("T")

MARKER = "rooms.open"
"""A file in the state folder while a restart may have rooms to resume."""

REPLAY = 200
"""Events read from the store at a time."""

CLOSE_SECONDS = 10

log = logging.getLogger("ctxgate")


class Rooms:
    """Opens on the first verb. Create one per process with `services.shared(Rooms)`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        # Before the rooms, so that they end first: a call that the end cut off is resumed, not answered.
        self._servers = services.shared(Servers)
        self._live: WeakValueDictionary[str, LiveRoom] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._leaving: list[asyncio.Task[Any]] = []
        """Cancelled tasks of rooms that this process lost. `open` waits for them before it claims the rooms again."""
        self._closed = False
        self.store: Store
        self.vault: Vault
        self.agent: Agent

    @property
    def _config(self) -> Config:
        """The present configuration: a reload replaces it."""
        return self._services.gateway.config

    @property
    def idle_seconds(self) -> float:
        return self._config.section(Settings).idle_seconds

    # Life

    async def open(self) -> None:
        """Claims the rooms and resumes what an earlier process left: once, and again after this process lost them.

        Raises ProviderUnavailable if the store can't be opened, Claimed if another gateway has the rooms.
        """
        if self._opened:
            await self._holds()
        if self._opening is None:
            self._opening = self.spawn(self._open(), "open the rooms")
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None  # the next caller tries again
            raise

    @property
    def _opened(self) -> bool:
        """Whether `_open` has succeeded, so that `store`, `vault` and `agent` exist."""
        done = self._opening
        return done is not None and done.done() and not done.cancelled() and done.exception() is None

    async def _open(self) -> None:
        self.store = await self._services.store()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CLOSE_SECONDS)
        # Without a claim, rooms at work in another gateway would look abandoned.
        await self.store.claim("rooms")
        file = self._config.section(Settings).secret_key_file
        self.vault = Vault(self.store, key_of_keychain if file is None else lambda: key_of_file(file))
        self.agent = Agent(self._services.gateway, self.store, self.vault, self._servers.present)
        if self._ending is None:
            self._ending = self.spawn(self._end_streams(), "end the streams")
        await asyncio.to_thread(self._mark)
        for room_id in await self._unfinished():
            room = self.live(room_id)
            if await room.commit(_without_worker) in ("active", "releasing"):
                room.attach()

    async def _unfinished(self) -> list[str]:
        """The ids of the rooms that have, or had, a worker."""
        return await self.store.read(
            lambda connection: transaction.in_state(connection, ("active", "releasing", "idle"))
        )

    async def keep(self) -> None:
        """Raises Claimed if the rooms no longer belong to this process; `open` claims them again."""
        if not await self._holds():
            raise Claimed(
                "the store has ended this gateway's claim on its rooms: retry", code="store_claimed", retry_after=1
            )

    async def _holds(self) -> bool:
        """Whether the rooms still belong to this process. If not, cancels their work."""
        opening = self._opening
        if await self.store.holds("rooms"):
            return True
        if opening is not None and opening is self._opening:
            self._opening = None
            writes = [task for task in self._tasks if task.get_name().startswith("write")]
            self._leaving = [*writes, *(task for room in list(self._live.values()) for task in room.leave())]
            log.warning("rooms: the store has ended this gateway's claim on them; the next request claims them again")
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
        """Leaves the rooms as they are: the next start resumes running turns. Idempotent."""
        if self._closed:
            return
        self._closed = True
        tasks = [task for task in self._tasks if not task.get_name().startswith("write")]
        for task in tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        if self._opened and not await self._unfinished():
            (self._config.state_dir / MARKER).unlink(missing_ok=True)

    def live(self, room_id: str) -> LiveRoom:
        """The room in memory, where it stays as long as somebody has it."""
        room = self._live.get(room_id)
        if room is None:
            room = self._live[room_id] = LiveRoom(self, room_id)
        return room

    # Verbs. All raise ProviderInvalidRequest (404) for a missing room and for another tenant's.

    async def rent(
        self, tenant: str, user: str, rent: Rent, *, room_id: str | None = None, folder: str | None = None
    ) -> Room:
        """Raises ProviderInvalidRequest and ProviderInvalidModel; ProviderRateLimit above `rooms.max_rooms`.

        room_id: None for a new one; the room that has it, if there is one. folder: of this machine, in which the room's
        tools work.
        """
        await self.open()
        actors = self._checked(tenant, rent, hosted=folder is not None)
        maximum = self._config.section(Settings).max_rooms

        def work(connection: Connection) -> Room:
            if room_id is not None and (there := transaction.among(connection, tenant, (room_id,))):
                return there[0]
            if transaction.count(connection, tenant, OPEN) >= maximum:
                raise ProviderRateLimit(f"the tenant has {maximum} rooms: release one first", code="too_many_rooms")
            tx = Transaction.rent(connection, tenant, user, rent, actors, room_id, folder)
            tx.save()
            return tx.room()

        return await self.store.write(work)

    def _checked(self, tenant: str, rent: Rent, *, hosted: bool) -> list[Actor]:
        """The actors. Raises ProviderInvalidRequest and ProviderInvalidModel."""
        actors = _actors(rent.agents, rent.actors) or [Actor()]
        check_actors(self._config, actors)
        check_metadata(rent.metadata)
        check_mounts(self._config, tenant, rent.mounts)
        self.agent.check_policy(rent.tool_policy, hosted=hosted)
        return actors

    async def place(self, tenant: str, user: str, room_id: str, rent: Rent, folder: str | None) -> Room:
        """The room of that id with these settings: rents it, or changes those that differ.

        folder: see `Data`; None: as it is, and at first the room's own. Raises what `rent` raises, and
        ProviderInvalidRequest (409) for a released room.
        """
        try:
            await self.get(tenant, room_id)
        except ProviderInvalidRequest:  # another caller may be faster
            await self.rent(tenant, user, rent, room_id=room_id, folder=folder or "")
        actors = self._checked(tenant, rent, hosted=True)
        wanted: dict[str, Any] = {"actors": actors, "tool_policy": rent.tool_policy, "bounds": rent.bounds}
        if folder is not None:
            wanted["folder"] = folder

        def work(tx: Transaction) -> Room:
            check("update", tx.status)
            changed = [name for name, value in wanted.items() if getattr(tx.data, name) != value]
            for name in changed:
                setattr(tx.data, name, wanted[name])
            if changed:
                tx.event("room:updated", {"fields": sorted(changed)})
            return tx.room()

        return await self.live(room_id).commit(work, tenant)

    async def visible(
        self, tenant: str, states: Sequence[State] | None, limit: int, offset: int
    ) -> tuple[list[Room], bool]:
        """A page of them, and whether there are more."""
        await self.open()
        return await self.store.read(lambda connection: transaction.rooms(connection, tenant, states, limit, offset))

    async def get(self, tenant: str, room_id: str) -> Room:
        await self.open()
        return await self.store.read(lambda connection: transaction.find(connection, room_id, tenant))

    async def update(self, tenant: str, room_id: str, update: Update) -> Room:
        """Changes take effect with the next turn."""
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
        check_mounts(self._config, tenant, _given(update.mounts) or [])
        if (policy := _given(update.tool_policy)) is not None:
            # Not within the write, whose thread may not ask for the tools.
            hosted = await self.store.read(lambda connection: transaction.is_hosted(connection, room_id, tenant))
            self.agent.check_policy(policy, hosted=hosted)

        def work(tx: Transaction) -> Room:
            check("update", tx.status)
            for name, value in changes.items():
                if name == "summary_text":
                    tx.data.summarise(value)
                else:
                    setattr(tx.data, name, value)
            if changes:
                tx.event("room:updated", {"fields": sorted(changes)})
            return tx.room()

        return await self.live(room_id).commit(work, tenant)

    async def say(self, tenant: str, user: str, room_id: str, say: Say) -> Message:
        """Queues a message. Raises ProviderInvalidRequest (409) if the state refuses it or a message is queued."""
        return (await self.say_once(tenant, user, room_id, say, None))[0]

    async def say_once(
        self, tenant: str, user: str, room_id: str, say: Say, message_id: str | None, *, alone: bool = False
    ) -> tuple[Message, bool]:
        """Queues a message unless the room has it; returns it, and whether the room had it.

        alone: not behind one that is being answered. Raises as `say` does, for such a one, too, and
        ProviderInvalidRequest if another message has its id.
        """
        await self.open()
        say.text()
        check_metadata(say.metadata)
        room = self.live(room_id)

        def work(tx: Transaction) -> tuple[Message, State, bool]:
            known = message_id and transaction.message_in(tx.connection, room_id, message_id)
            if known:
                if known.content != say.content:
                    raise ProviderInvalidRequest("id: it was sent before, with another input", param="id")
                return known, tx.status, True
            check("message", tx.status)
            if tx.queued is not None:
                raise conflict("message_queued", "a message is already queued: a room queues one at a time")
            if alone and tx.running is not None:
                raise conflict("message_queued", "a message is being answered")
            message = self._queue(tx, user, say, message_id)
            return message, tx.status, False

        message, status, known = await room.commit(work, tenant)
        if status == "active":
            room.attach()
        return message, known

    def _queue(self, tx: Transaction, user: str, say: Say, message_id: str | None) -> Message:
        known = [actor.agent_id for actor in tx.data.actors]
        actor = say.agent_id or known[0]
        if actor not in known:
            names = ", ".join(known)
            raise ProviderInvalidRequest(f"agent_id: no actor {actor!r}; the room has: {names}", param="agent_id")
        message = tx.say(
            say.content,
            user=user,
            author_kind="user",
            kind=say.kind,
            status="queued",
            actor_key=actor,
            metadata=say.metadata,
            message_id=message_id,
        )
        tx.queued = message.id
        payload = {"message_id": message.id, "message_seq": message.seq, "agent_id": actor}
        tx.event("room:message", payload, message=message.id)
        wakes = tx.status != "sleeping" or tx.data.wake_policy.on_message
        if tx.status != "active" and wakes:
            tx.to("begin", trigger_message_id=message.id)
        return message

    async def room_of(self, tenant: str, message_id: str) -> Room | None:
        """The room that has a message; None if none of the tenant's has it."""
        await self.open()
        return await self.store.read(lambda connection: transaction.room_of(connection, message_id, tenant))

    async def last_event(self, tenant: str, room_id: str) -> int:
        """The number of the room's last event."""
        await self.open()
        return await self.store.read(lambda connection: transaction.last_event(connection, room_id, tenant))

    async def turn_events(self, tenant: str, room_id: str, message_id: str) -> list[Event]:
        """The events of the turn that answers a message, in order."""
        await self.get(tenant, room_id)
        return await self.store.read(lambda connection: transaction.events_of(connection, room_id, message_id))

    async def wake(self, tenant: str, room_id: str, *, retry: bool = True) -> Room:
        """Wakes a room; an active or idle one stays as it is. A failed room resumes its failed turn.

        retry: if False, a failed room continues with the queued message.
        """
        await self.open()
        room = self.live(room_id)

        def work(tx: Transaction) -> Room:
            check("wake", tx.status)
            if tx.status not in ("active", "idle"):
                failed = tx.data.failed if retry else None
                tx.data.last_error = tx.data.failed = None
                if failed is not None:
                    tx.running = failed
                    tx.mark(failed, "running")
                tx.to("wake", trigger_message_id=failed or tx.queued)
            return tx.room()

        shown = await room.commit(work, tenant)
        if shown.status == "active":
            room.attach()
        return shown

    async def interrupt(self, tenant: str, room_id: str, reason: str | None) -> Room:
        await self.open()
        return await self.live(room_id).interrupt(tenant, reason)

    async def release(self, tenant: str, room_id: str, release: Release) -> Room:
        """Releases a room. A graceful release may be followed by an immediate one."""
        await self.open()
        room = self.live(room_id)

        def work(tx: Transaction) -> Room:
            check("release", tx.status)
            if tx.status != "releasing":
                tx.to("release", mode=release.mode, reason=release.reason, by="user")
            if tx.running is None:
                finish(tx)
            return tx.room()

        shown = await room.commit(work, tenant)
        if release.mode == "immediate":
            room.release_at_once()
        if room.attached or shown.status == "releasing":
            room.attach()
        return shown

    async def files(self, tenant: str, room_id: str, *, change: bool = False) -> Callable[[], JailedFileSystem]:
        """A function that opens the room's files; it blocks.

        change: raises ProviderInvalidRequest (409) if the room's state refuses a change.
        """
        room = await self.get(tenant, room_id)
        if change:
            check("update", room.status)
        return lambda: files(self._config, tenant, room_id, room.mounts)

    async def records(self, tenant: str) -> Records:
        """The tenant's models and records."""
        from gateway.features.agents.tools.data import records

        await self.open()
        return records(self._config.section(Settings).tools, self.store, tenant)

    async def history(self, tenant: str, room_id: str, after_event: int, after_message: int, limit: int) -> History:
        await self.open()

        def work(connection: Connection) -> History:
            room = transaction.find(connection, room_id, tenant)
            events, more_events = transaction.events(connection, room_id, after_event, limit)
            messages, more_messages = transaction.messages(connection, room_id, after_message, limit)
            return History(room=room, messages=messages, events=events, more=more_events or more_messages)

        return await self.store.read(work)

    async def follow(self, tenant: str, room_id: str, after: int, *, tail: bool) -> AsyncIterator[bytes]:
        """The room's events after number `after` as server-sent events, each once and in order.

        tail: continues with new events and keep-alive comments until the room has no worker.
        A follower takes no memory: a slow one reads from the store.
        """
        await self.open()
        opening = self._opening
        room = self.live(room_id)
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
                    await self._holds()
            if self._opening is not opening:  # another process may write to the room now: the client reconnects
                return
            news = room.feed.news
            frames = room.feed.since(after)
            if frames is None:
                frames, status = await self._replay(tenant, room_id, after)

    async def _replay(self, tenant: str, room_id: str, after: int) -> tuple[list[Frame], State]:
        def work(connection: Connection) -> tuple[list[Frame], State]:
            found = transaction.find(connection, room_id, tenant)
            events, _ = transaction.events(connection, room_id, after, REPLAY)
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
        raise ProviderInvalidRequest("agents and actors are two names for the same list: give only one", param="actors")
    return agents if agents is not None else actors


def _given(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value


def _without_worker(tx: Transaction) -> State:
    """Puts an idle room to sleep: the worker that waited in it ended with its process."""
    if tx.status == "idle":
        tx.to("sleep", reason="restart")
    return tx.status

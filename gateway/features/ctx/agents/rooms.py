"""The rooms of agents: an agent's session is a room, which anyone who may use rooms can follow and continue."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.agents.settings import AgentSettings, read_settings
from gateway.features.ctx.agents.translate import Translation, run_id
from gateway.features.ctx.control import BadControlFile, Mistake
from gateway.features.ctx.errors import Busy
from gateway.features.ctx.events import Done, Event, Status
from gateway.features.ctx.objects import Triple
from gateway.features.rooms import transaction
from gateway.features.rooms.schemas import Actor, DonePolicy, Message, Release, Rent, Room, Say, ToolPolicy, TurnBounds
from gateway.features.rooms.schemas import Event as RoomEvent
from gateway.features.rooms.service import Rooms
from gateway.services import Services

if TYPE_CHECKING:
    from sqlalchemy import Connection

TENANT = USER = "local"
"""The owner of this machine, as a caller of the rooms' API without a key."""

ROUTE = "ctx:"
"""Begins the `adapter` of an actor that is asked through the route `agent` of a model's object."""

MAX_RELEASED = 1000
"""The most released rooms of one session: after a release, the next message begins another room."""

T = TypeVar("T")

GENERATIONS = 50
"""Rooms of a session that are looked for at once."""

_SPACE = uuid.UUID("6d1c6d5a-6a7b-5d1c-8a52-0b4a6d0b2a55")

_decode_event = msgspec.json.Decoder(RoomEvent).decode


def session_room(object: str, owner: int, session: str, generation: int) -> str:
    """The id of a session's room."""
    return str(uuid.uuid5(_SPACE, f"{object}\0{owner}\0{session}\0{generation}"))


def message_id(room: str, client: str) -> str:
    """The id of a client's message, so that a retry is one."""
    return str(uuid.uuid5(uuid.UUID(room), client))


@dataclass(frozen=True, slots=True)
class Sent:
    """A message in a room. retried: it was there before. first: the number of the last event before it."""

    room: str
    message: Message
    retried: bool
    first: int


class AgentRooms:
    """The rooms of one agent."""

    def __init__(self, services: Services, triple: Triple, root: Path) -> None:
        self._services = services
        self._triple = triple
        self._root = root
        self._rooms = services.shared(Rooms)

    async def find(self, owner: int, session: str) -> Room | None:
        """The session's present room, which may be released."""
        found = await self._latest(owner, session)
        return None if found is None else found[1]

    async def _latest(self, owner: int, session: str) -> tuple[int, Room] | None:
        """The last generation of a session that has a room. Earlier ones may have been pruned."""
        object = str(self._triple.name)

        def work(connection: Connection) -> tuple[int, Room] | None:
            latest = None
            for first in range(0, MAX_RELEASED, GENERATIONS):
                ids = {session_room(object, owner, session, first + at): first + at for at in range(GENERATIONS)}
                there = transaction.among(connection, TENANT, ids)
                if there:
                    latest = max(((ids[room.id], room) for room in there), key=lambda found: found[0])
                if latest is not None and latest[0] < first + GENERATIONS - 1:
                    break
            return latest

        await self._rooms.open()
        return await self._rooms.store.read(work)

    async def send(
        self, id: str, session: str, client: str, text: str, folder: str | None, *, release: bool = False
    ) -> Sent:
        """Sends a message to a room, which this makes if there is none.

        folder: where its tools work from now on; None: as before, at first in the room's own folder. release: the room
        ends with the answer.

        Raises what `read_settings` raises, ProviderInvalidRequest for another message with the client's id, Busy while
        one is answered or queued.
        """
        settings = await asyncio.to_thread(read_settings, self._triple, self._root, self._services.gateway.config)
        name = f"{self._triple.name.name}-{session}"
        message = message_id(id, client)
        if await self._is_busy_with_another(id, message):
            raise _busy(session)
        room = await self._rooms.place(TENANT, USER, id, self._rent(settings, name, release=release), folder)
        say = Say(content=text, metadata={"client": client})
        if room.status == "failed":
            room = await self._rooms.wake(TENANT, id, retry=False)
        last = await self._rooms.last_event(TENANT, id)
        try:
            found, retried = await self._rooms.say_once(TENANT, USER, id, say, message, alone=True)
        except ProviderInvalidRequest as error:
            if error.code == "message_queued":
                raise _busy(session) from None
            raise
        return Sent(id, found, retried, last)

    async def _is_busy_with_another(self, room: str, message: str) -> bool:
        """Whether the room, which may not exist yet, answers another message; then nothing in it must change."""
        try:
            found = await self._rooms.get(TENANT, room)
        except ProviderInvalidRequest:
            return False
        if found.status == "failed":  # until it is woken, below
            return False
        working = found.running_message_id or found.queued_message_id
        return working not in (None, message) and not await self._rooms.turn_events(TENANT, room, message)

    async def new_session(self, owner: int, session: str) -> str:
        """The id of the room for the session's next message, which may not exist yet."""
        generation, room = await self._latest(owner, session) or (-1, None)
        if room is not None and room.status not in ("releasing", "released"):
            return room.id
        if generation + 1 >= MAX_RELEASED:
            raise Busy(f"session {session} was released {MAX_RELEASED} times: use another name")
        return session_room(str(self._triple.name), owner, session, generation + 1)

    async def events(
        self, room: str, after: tuple[int, int], clients: dict[str, str] | None = None, *, follow: bool, since: int = 0
    ) -> AsyncGenerator[list[tuple[tuple[int, int], Event]], None]:
        """Yields the canonical events after a place. follow: goes on while the room may have more.

        since: events up to this number needn't be looked at, since they are of earlier messages.
        """
        translation = Translation(self._triple.name.name, clients)
        frames = self._rooms.follow(TENANT, room, since, tail=follow)
        async with aclosing(frames) as found:  # type: ignore[type-var]
            async for frame in found:
                _, data, rest = frame.partition(b"data: ")
                if data:
                    made = translation.feed(_decode_event(rest.partition(b"\n")[0]))
                    if new := [(place, event) for place, event in made if place > after]:
                        yield new

    async def answer(self, sent: Sent, clients: dict[str, str]) -> AsyncGenerator[list[Event], None]:
        """Yields the events of the run that answers a message, up to its `done`."""
        run = run_id(sent.message.id)
        batches = self.events(sent.room, (sent.first, 0), clients, follow=True, since=sent.first)
        async with aclosing(batches) as found:
            async for batch in found:
                own = [event for _, event in batch if event.run == run]
                if own:
                    yield own
                    if isinstance(own[-1], Done):
                        return

    def when_done(self, sent: Sent, then: Callable[[Status], None]) -> None:
        """Calls `then` when the run that answers a message is done, unless the gateway ends before."""

        async def wait() -> None:
            async with aclosing(self.answer(sent, {})) as batches:
                async for events in batches:
                    if isinstance(last := events[-1], Done):
                        then(last.status)

        self._rooms.spawn(wait(), f"wait for the end of {run_id(sent.message.id)}")

    async def interrupt(self, room: str) -> None:
        """Ends the running turn, if there is one."""
        try:
            await self._rooms.interrupt(TENANT, room, "cancelled")
        except ProviderInvalidRequest as error:
            if error.code not in ("no_turn_running", "room_released"):
                raise

    async def release(self, room: str) -> None:
        try:
            await self._rooms.release(TENANT, room, Release(mode="immediate"))
        except ProviderInvalidRequest as error:
            if error.code not in ("room_released", "room_not_found"):
                raise

    async def last(self, room: str) -> int:
        """The number of a room's last event."""
        return await self._rooms.last_event(TENANT, room)

    async def turn(self, room: str, message: str) -> list[RoomEvent]:
        return await self._rooms.turn_events(TENANT, room, message)

    async def room_of(self, message: str) -> str | None:
        """The room of a message, if it is this agent's."""
        room = await self._rooms.room_of(TENANT, message)
        return room.id if room is not None and room.metadata.get("object") == str(self._triple.name) else None

    async def busy(self, room: str) -> bool:
        """Whether a message is being answered, or waits."""
        found = await self._rooms.get(TENANT, room)
        return found.running_message_id is not None or found.queued_message_id is not None

    async def running(self, room: str) -> str | None:
        """The id of the message that is being answered."""
        return (await self._rooms.get(TENANT, room)).running_message_id

    def _rent(self, settings: AgentSettings, name: str, *, release: bool) -> Rent:
        """Raises BadControlFile for what the rooms' API wouldn't take."""
        actor = Actor(
            agent_id=settings.name,
            role="assistant",
            adapter=f"{ROUTE}{settings.object}",
            model=settings.model,
            instructions=settings.instructions or None,
        )
        policy = ToolPolicy(settings.policy.access, list(settings.policy.allow), list(settings.policy.deny))
        limits = settings.limits
        bounds = TurnBounds(
            wall_seconds=limits.get("wall_seconds"),
            model_calls=_whole(limits.get("model_calls")),
            tool_calls=_whole(limits.get("tool_calls")),
            output_tokens=_whole(limits.get("output_tokens")),
        )
        return Rent(
            metadata={"name": name, "object": str(self._triple.name)},
            agents=[_checked("system.md", actor)],
            tool_policy=_checked("policy", policy),
            done_policy=DonePolicy(after_turn="release" if release else "idle"),
            bounds=_checked("limits", bounds),
        )


def _busy(session: str) -> Busy:
    return Busy(f"session {session} is busy; send again when it is done, or cancel it", retry_after=1)


def _checked(file: str, value: T) -> T:
    """The value, from this file of the agent: a constructor checks nothing, and a room with it couldn't be read."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except msgspec.ValidationError as error:
        raise BadControlFile(file, [Mistake("Refused", 0, str(error))]) from None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)

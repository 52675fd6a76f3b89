"""A client of an agent's socket. Its sessions are rooms, which others may follow and continue meanwhile."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

from msgspec import UNSET

from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.features.ctx.agents.execution import task_of
from gateway.features.ctx.agents.rooms import AgentRooms, Sent
from gateway.features.ctx.agents.translate import LAST, Translation, cursor, run_id
from gateway.features.ctx.connection import BaseConnection, Wire
from gateway.features.ctx.errors import NotFound, TooLong
from gateway.features.ctx.events import Done, line
from gateway.features.ctx.execution import Ended
from gateway.features.ctx.frames import Cancel, Resume, Send
from gateway.features.ctx.journal import EVERYONE
from gateway.features.ctx.objects import Triple
from gateway.features.ctx.temporary import MAX_SESSIONS
from gateway.services import Services

log = logging.getLogger("ctxgate")


class AgentConnection(BaseConnection):
    """It follows the runs that it started, and each session that it resumed until it says no more."""

    def __init__(self, wire: Wire, triple: Triple, root: Path, services: Services, ended: Ended) -> None:
        super().__init__(wire, triple)
        self._rooms = AgentRooms(services, triple, root)
        self._ended = ended
        self._temporary: dict[str, str] = {}
        """Name of a temporary session → its room."""
        self._runs: dict[str, tuple[str, str]] = {}
        """Run or client id → room and message, until the run is done."""

    async def serve(self) -> None:
        try:
            await super().serve()
        finally:
            for room in self._temporary.values():
                with suppress(GatewayError):
                    await self._rooms.release(room)
                    await self._rooms.interrupt(room)

    async def send(self, request: Send) -> None:
        if request.tool_results is not UNSET or request.tools is not UNSET:
            raise ProviderInvalidRequest("an agent runs its own tools: tools and tool_results are for models")
        self.check_following()
        if request.scope == "temp":
            if request.session not in self._temporary and len(self._temporary) >= MAX_SESSIONS:
                raise TooLong(f"a connection has at most {MAX_SESSIONS} temporary sessions")
            room = self._temporary.setdefault(request.session, str(uuid.uuid4()))
        else:
            owner = EVERYONE if request.scope == "shared" else self.user
            room = await self._rooms.new_session(owner, request.session)
        folder = None if request.cwd is UNSET else request.cwd
        sent = await self._rooms.send(room, request.session, request.id, task_of(request.input or ""), folder)
        self._runs[request.id] = self._runs[run_id(sent.message.id)] = room, sent.message.id
        if sent.retried:
            await self._again(sent, request.id)
        else:
            # The run goes on without its client, and is logged all the same.
            self._rooms.when_done(sent, partial(self._ended, self.triple, request.session, run_id(sent.message.id)))
            self.follow(room, self._answer(sent, request))

    async def _again(self, sent: Sent, client: str) -> None:
        """Answers a retry with one frame: the run's `done`, or its `start` if it isn't done."""
        translation = Translation(self.triple.name.name, {sent.message.id: client})
        events = [
            event
            for recorded in await self._rooms.turn(sent.room, sent.message.id)
            for _, event in translation.feed(recorded)
        ]
        if events:
            last = events[-1]
            if isinstance(last, Done):
                self._forget(sent, client)
            await self.wire.write([line(last if isinstance(last, Done) else events[0])])

    async def _answer(self, sent: Sent, request: Send) -> AsyncGenerator[list[bytes], None]:
        async with aclosing(self._rooms.answer(sent, {sent.message.id: request.id})) as batches:
            async for events in batches:
                yield [line(event) for event in events]
                if isinstance(events[-1], Done):
                    self._forget(sent, request.id)

    def _forget(self, sent: Sent, client: str) -> None:
        """Its run is done."""
        for id in (client, run_id(sent.message.id)):
            self._runs.pop(id, None)

    async def resume(self, request: Resume) -> None:
        self.check_following()
        room = None
        for scope, owner in (("private", self.user), ("shared", EVERYONE)):
            if room is None and request.scope in (UNSET, scope):
                room = await self._rooms.find(owner, request.session)
        if room is None:
            raise NotFound(f"no session {request.session}")
        last = await self._rooms.last(room.id)
        place = cursor(None if request.after is UNSET else request.after)
        if place[0] > last:
            raise NotFound(f"session {request.session} has no event {request.after}")
        self.unfollow(room.id)
        # Copied before the next frame is read: a ping's answer then marks the end of the recorded events.
        await self.copy(self._recorded(room.id, place, last))
        self.follow(room.id, self._coming(room.id, (last, LAST)))

    async def _recorded(self, room: str, place: tuple[int, int], last: int) -> AsyncGenerator[list[bytes], None]:
        async with aclosing(self._rooms.events(room, place, follow=False)) as batches:
            async for batch in batches:
                if batch[0][0][0] > last:
                    return
                yield [line(event) for _, event in batch]

    async def _coming(self, room: str, place: tuple[int, int]) -> AsyncGenerator[list[bytes], None]:
        """The events after a place, of any message, until the room sleeps or the client says no more."""
        leaving = asyncio.create_task(self._leave_when_said_all(room), name="leave a session")
        try:
            async with aclosing(self._rooms.events(room, place, follow=True)) as batches:
                async for batch in batches:
                    yield [line(event) for _, event in batch]
                    if self.said_all.is_set() and isinstance(batch[-1][1], Done) and not await self._rooms.busy(room):
                        return
        finally:
            leaving.cancel()

    async def _leave_when_said_all(self, room: str) -> None:
        await self.said_all.wait()
        with suppress(GatewayError):
            if not await self._rooms.busy(room):
                self.unfollow(room)

    async def cancel(self, request: Cancel) -> None:
        room, message = await self._active(request.id)
        follows = self.follows(room)
        await self._rooms.interrupt(room)
        if not follows:
            await self.wire.write([line(Done(run=run_id(message), status="cancelled"))])

    async def _active(self, id: str) -> tuple[str, str]:
        """Room and message of an active run. Raises NotFound."""
        found = self._runs.get(id)
        if found is None and id.startswith("run-") and len(id) == 36:
            with suppress(ValueError):
                message = str(uuid.UUID(id.removeprefix("run-")))
                room = await self._rooms.room_of(message)
                found = (room, message) if room is not None else None
        if found is None or await self._rooms.running(found[0]) != found[1]:
            raise NotFound(f"no run {id} is active")
        return found

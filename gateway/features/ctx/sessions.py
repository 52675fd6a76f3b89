"""Conversations with an object: start, record, follow and cancel runs.

An event is in the store before any client gets it, so a client can always resume where it was. A follower is only a
position in that record: a slow one takes no memory and delays nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET

from gateway.errors import GatewayError
from gateway.features.ctx import journal
from gateway.features.ctx.errors import Busy, NotFound, code
from gateway.features.ctx.events import Delta, Done, Error, Event, Message, ReasoningDelta, Status, ToolCall, line
from gateway.features.ctx.execution import Ended, Execution, until
from gateway.features.ctx.frames import Cancel, Resume, Send, event_id
from gateway.features.ctx.journal import Begun, Found, Retried, Whose
from gateway.features.ctx.objects import Triple
from gateway.services import Services
from gateway.store import Store

MAX_ACTIVE = 1024
"""Runs at a time."""
RECENT = 64 * 1024
"""Bytes of the newest events that an active run holds in memory. Followers further behind read from the store."""
BATCH = 64 * 1024
"""Bytes of text that may wait to be written."""
PAGE = 64
"""Events that a follower reads from the store at a time, about BATCH bytes together."""

log = logging.getLogger("ctxgate")


class LiveRun:
    """A run in progress. last: the number of the last event in the store."""

    def __init__(self, begun: Begun, client: str, whose: Whose) -> None:
        self.session = begun.session
        self.run = begun.run
        self.client = client
        self.whose = whose
        self.first = self.last = begun.start[0]
        self.ended = False
        self.done = b""
        self.stop = asyncio.Event()
        self.cancelled = False
        self.answering: asyncio.Task[None] | None = None
        self._recent: deque[journal.Event] = deque([begun.start])
        self._size = len(begun.start[1])
        self._changed = asyncio.get_running_loop().create_future()

    def last_words(self) -> list[Event]:
        """The events that end a run that was cancelled or stopped."""
        if self.cancelled:
            return [Done(run=self.run, status="cancelled")]
        message = "the gateway was stopped before the answer was done"
        return [Error(run=self.run, code="EINTR", message=message), Done(run=self.run, status="error")]

    def publish(self, events: list[journal.Event], *, ended: bool = False) -> None:
        for event in events:
            self._recent.append(event)
            self._size += len(event[1])
            self.last = event[0]
        while self._size > RECENT and len(self._recent) > 1:
            self._size -= len(self._recent.popleft()[1])
        if ended:
            self.ended = True
            self.done = events[-1][1]
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def recent(self, after: int) -> list[journal.Event]:
        """The events after that number; [] if some of them are no longer in memory."""
        if not self._recent or self._recent[0][0] > after + 1:
            return []
        return [event for event in self._recent if event[0] > after]

    async def changed(self) -> None:
        await asyncio.shield(self._changed)


class Sessions:
    """All sessions of one tree. keeper: names the gateway; at its start, its unfinished runs are ended."""

    def __init__(self, services: Services, keeper: str, ended: Ended) -> None:
        self._services = services
        self._keeper = keeper
        self._ended = ended
        self._active: dict[str, LiveRun] = {}
        self._opening: asyncio.Task[Store] | None = None
        self._closing = False

    async def store(self) -> Store:
        """The store, after ending the runs that an earlier process left unfinished."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="open the sessions")
        try:
            return await asyncio.shield(self._opening)
        except GatewayError:
            self._opening = None
            raise

    async def _open(self) -> Store:
        store = await self._services.store()
        await store.write(partial(journal.recover, keeper=self._keeper, living={*self._active}))
        return store

    async def send(self, triple: Triple, user: int, request: Send) -> LiveRun | bytes:
        """Starts a run; returns it, or for a retry the one frame that answers it.

        Raises ProviderInvalidRequest, Busy, and what the store raises.
        """
        if self._closing or len(self._active) >= MAX_ACTIVE:
            raise Busy("too many runs are active", retry_after=1)
        store = await self.store()
        whose = Whose(str(triple.name), user)
        run = f"run-{uuid4().hex}"
        work = partial(journal.begin, whose=whose, send=request, run=run, keeper=self._keeper, model=triple.name.name)
        # A recorded message must be answered, even if its client leaves.
        return await asyncio.shield(self._begin(store, triple, request, whose, work))

    async def _begin(
        self, store: Store, triple: Triple, request: Send, whose: Whose, work: Callable[..., Begun | Retried]
    ) -> LiveRun | bytes:
        begun = await store.write(work)
        if isinstance(begun, Retried):
            return begun.frame
        live = LiveRun(begun, request.id, whose)
        self._active[live.run] = live
        execution = Execution(self._services, triple, "socket", live.run)
        live.answering = asyncio.create_task(
            self._answer(store, execution, live, begun.fields, request.session), name=f"answer {live.run}"
        )
        return live

    async def find(self, triple: Triple, user: int, request: Resume) -> tuple[int, int, int, LiveRun | None]:
        """The arguments of `follow`: session, number of the event to resume after, number of the last one, active run.

        Raises NotFound for a missing session or event.
        """
        found = await self._found(triple, user, request)
        # If a run ends in between, its last events may be missing from the first look.
        while (live := self._live(found.session)) is None:
            again = await self._found(triple, user, request)
            if again.last == found.last:
                break
            found = again
        number = 0
        if request.after is not UNSET:
            digits = request.after.removeprefix("event-")
            if not digits.isdecimal() or request.after != event_id(int(digits)) or not 0 < int(digits) <= found.last:
                raise NotFound(f"session {request.session} has no event {request.after}")
            number = int(digits)
        return found.session, number, found.last, live

    async def _found(self, triple: Triple, user: int, request: Resume) -> Found:
        whose = Whose(str(triple.name), user)
        scope = None if request.scope is UNSET else request.scope
        store = await self.store()
        found = None
        if scope != "temp":
            found = await store.read(partial(journal.find, whose=whose, name=request.session, scope=scope))
        if found is None:
            raise NotFound(f"no session {request.session}")
        return found

    def _live(self, session: int) -> LiveRun | None:
        return next((live for live in self._active.values() if live.session == session), None)

    async def follow(
        self, session: int, after: int, last: int, live: LiveRun | None
    ) -> AsyncGenerator[list[bytes], None]:
        """Yields frames after number `after`: up to `last`, or to the end of the live run."""
        store = await self.store()
        while True:
            if live is not None:
                last = max(last, live.last)
            if after < last:
                events = live.recent(after) if live is not None else []
                if not events:
                    events = await store.read(
                        partial(journal.after, session=session, number=after, last=last, count=PAGE, size=BATCH)
                    )
                if not events:
                    return  # the session was deleted
                after = events[-1][0]
                yield [frame for _, frame in events]
            elif live is None or live.ended:
                return
            else:
                await live.changed()

    def active(self, triple: Triple, user: int, request: Cancel) -> LiveRun:
        """The active run with that id. Raises NotFound."""
        whose = Whose(str(triple.name), user)
        for live in self._active.values():
            if request.id in (live.run, live.client) and live.whose == whose:
                return live
        raise NotFound(f"no run {request.id} is active")

    async def cancel(self, live: LiveRun) -> None:
        """Cancels a run; returns when its `done` is recorded."""
        live.cancelled = True
        live.stop.set()
        assert live.answering is not None
        await asyncio.wait({live.answering})

    async def aclose(self) -> None:
        """Ends the active runs, each with an error event."""
        self._closing = True
        answering = [live.answering for live in self._active.values() if live.answering is not None]
        for live in self._active.values():
            live.stop.set()
        if answering:
            await asyncio.wait(answering)
        if self._opening is not None:
            await asyncio.wait({self._opening})

    async def _answer(
        self, store: Store, execution: Execution, live: LiveRun, fields: dict[str, Any], session: str
    ) -> None:
        status: Status = "error"
        record = _Record(store, live)
        ending = until(live.stop, execution.events(fields, started=True), live.last_words)
        try:
            async with contextlib.aclosing(ending) as batches:
                async for batch in batches:
                    await record.add(batch)
            status = await record.close()
        except GatewayError as error:
            log.error("run %s can't be recorded: %s", live.run, error)
            failed = [line(Error(run=live.run, code=code(error), message=error.message))]
            failed.append(line(Done(run=live.run, status="error")))
            live.publish([(live.last + 1, failed[0]), (live.last + 2, failed[1])], ended=True)
            # The unfinished run is ended in the store when the store opens again.
            self._opening = None
        finally:
            del self._active[live.run]
            self._ended(execution.triple, session, live.run, status)


class _Record:
    """Records a run's events, then publishes them. Events that come during a write go into the next one."""

    def __init__(self, store: Store, live: LiveRun) -> None:
        self._store = store
        self._live = live
        self._next = live.last + 1
        self._waiting: list[Event] = []
        self._size = 0
        self._writing: asyncio.Task[None] | None = None
        self._answer: dict[str, Any] = {"role": "assistant", "run": live.run, "content": []}
        self._done = Done(run=live.run, status="error")

    async def add(self, events: list[Event]) -> None:
        """Adds events; waits while too much is unwritten. Raises what the store raises."""
        for event in events:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(event, Done):
                self._done = event
                break  # `close` writes it with the end of the run
            if isinstance(event, Delta | ReasoningDelta):
                self._size += len(event.text)
                if isinstance(last, type(event)):
                    last.text += event.text
                    continue
            self._waiting.append(event)
        if self._writing is not None and (self._writing.done() or self._size >= BATCH):
            await self._written()
        if self._writing is None and self._waiting:
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> Status:
        """Writes the rest and the end of the run. Raises what the store raises."""
        live = self._live
        await self._written()
        status = self._done.status
        self._waiting.append(self._done)
        events = self._numbered()
        answer = msgspec.json.encode(self._answer).decode() if status == "ok" else None
        await self._store.write(
            partial(journal.finish, session=live.session, run=live.run, events=events, status=status, answer=answer)
        )
        live.publish(events, ended=True)
        return status

    async def _written(self) -> None:
        if self._writing is not None:
            # Shielded: a cancelled run still writes this, and waits for it in `close`.
            await asyncio.shield(self._writing)
            self._writing = None

    async def _write(self) -> None:
        live = self._live
        while self._waiting:
            events = self._numbered()
            await self._store.write(partial(journal.append, session=live.session, run=live.run, events=events))
            live.publish(events)

    def _numbered(self) -> list[journal.Event]:
        numbered: list[journal.Event] = []
        for event in self._waiting:
            event.id = event_id(self._next)
            if isinstance(event, Message):
                self._answer["content"] = event.content
            elif isinstance(event, ToolCall):
                call = {"id": event.id, "name": event.name, "arguments": event.arguments}
                self._answer.setdefault("tool_calls", []).append(call)
            numbered.append((self._next, line(event)))
            self._next += 1
        self._waiting = []
        self._size = 0
        return numbered

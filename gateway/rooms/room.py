"""A room at work: its writes one after another, its events to those who follow it, and its worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gateway.agent.turn import Outcome, Result, Used
from gateway.errors import GatewayError, InternalError
from gateway.rooms import transaction
from gateway.rooms.feed import Feed
from gateway.rooms.schemas import Event, LastError, MessageStatus, Room
from gateway.rooms.states import State, check, conflict
from gateway.rooms.transaction import Ledger
from gateway.rooms.turns import PAST_MESSAGES, Agent, Record, Task

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.store import Store

T = TypeVar("T")

MAX_ATTEMPTS = 3
"""How often a turn that was cut off is taken up, before its room fails."""

log = logging.getLogger("ctxgate")


class Host(Protocol):
    """What a room needs of the whole."""

    @property
    def store(self) -> Store: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def idle_seconds(self) -> float: ...

    async def keep(self) -> None:
        """Raises Claimed where the rooms aren't this process's any more."""
        ...

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task that is held until it has ended, and waited for when all ends."""
        ...


class LiveRoom:
    """Exists while somebody uses the room, in one process at a time; everything that must last is in the store.

    What is written is written under `_lock`, so events are followed in the order of their numbers.
    """

    def __init__(self, host: Host, room_id: str) -> None:
        self.id = room_id
        self.feed = Feed()
        self._host = host
        self._lock = asyncio.Lock()
        self._called = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._turn: asyncio.Task[tuple[Result, Used]] | None = None
        self._interrupted = False
        self._release_at_once = False
        self._wishes = Wishes(())

    # Writing

    async def commit(self, work: Callable[[Ledger], T], tenant: str | None = None) -> T:
        """What `work` makes of the room, durable and told to its followers; whoever gives up waiting doesn't undo it.

        Raises what `work` raises, and then nothing has changed; ProviderInvalidRequest (404) for another tenant's room.
        """
        writing = self._host.spawn(self._commit(work, tenant), f"write room {self.id}")
        return await asyncio.shield(writing)

    async def _commit(self, work: Callable[[Ledger], T], tenant: str | None) -> T:
        def write(connection: Connection) -> tuple[T, list[Event]]:
            ledger = Ledger.open(connection, self.id, tenant)
            result = work(ledger)
            if ledger.events:  # nothing changes without one
                ledger.save()
            return result, ledger.events

        async with self._lock:
            await self._host.keep()
            result, events = await self._host.store.write(write)
            self.feed.publish(events)
        return result

    # Verbs that need what is in memory

    async def interrupt(self, tenant: str, reason: str | None) -> Room:
        """Cancels the turn that runs. Raises ProviderInvalidRequest (409) where none does."""

        def work(ledger: Ledger) -> Room:
            check("interrupt", ledger.status)
            if ledger.running is None or self._worker is None or self._interrupted:
                raise conflict("no_turn_running", "no turn is running that could be interrupted")
            ledger.event("agent:interrupted", {"reason": reason}, message=ledger.running)
            self._interrupted = True
            return ledger.room()

        room = await self.commit(work, tenant)
        if self._turn is not None:
            self._turn.cancel()
        return room

    def release_at_once(self) -> None:
        """The turn that runs ends at its next safe point."""
        self._release_at_once = True

    # The worker

    def attach(self) -> None:
        """There is work, or there may be: a worker looks for it."""
        self._called.set()
        if self._worker is None:
            self._worker = self._host.spawn(self._work(), f"work in room {self.id}")

    @property
    def attached(self) -> bool:
        return self._worker is not None

    def leave(self) -> list[asyncio.Task[Any]]:
        """Ends the worker and its turn, since the room may be another process's now; those that have to end yet."""
        self.feed.forget()
        leaving = [task for task in (self._turn, self._worker) if task is not None]
        for task in leaving:
            task.cancel()
        return leaving

    async def _work(self) -> None:
        try:
            while True:
                self._called.clear()
                next_ = await self.commit(self._take)
                if isinstance(next_, Task):
                    await self._carry_out(next_)
                elif not await self._rest(next_) and not self._called.is_set():
                    return
        except GatewayError as error:
            # The room stays as it is in the store: the next verb, or the next start, takes it up.
            log.error("room %s: its worker ends: %s", self.id, error)
        finally:
            self._worker = None

    def _take(self, ledger: Ledger) -> Task | Rest:
        """The turn to carry out now. Without one, the room has settled, or is released."""
        self._interrupted = self._release_at_once = False
        if ledger.status == "releasing":
            if ledger.running is not None:  # the gateway was stopped meanwhile
                _drop(ledger, ledger.running, "interrupted")
            finish(ledger)
        elif ledger.status == "active" and ledger.running is not None:
            return self._take_up(ledger, ledger.running) or Rest(ledger)
        elif ledger.status == "active" and ledger.queued is not None:
            ledger.running, ledger.queued = ledger.queued, None
            ledger.mark(ledger.running, "running")
            task = _task(ledger, ledger.running)
            told = {"agent_id": task.actor.agent_id, "message_id": task.message.id, "status": "running"}
            ledger.event("agent:turn_start", told, agent=task.actor.agent_id, message=task.message.id)
            return task
        elif ledger.status == "active":
            ledger.to("settle", reason="no_message")
        return Rest(ledger)

    def _take_up(self, ledger: Ledger, message_id: str) -> Task | None:
        """A turn that was cut off, unless that has happened too often."""
        task = _task(ledger, message_id)
        attempt = 2 + sum(event.event_type == "agent:turn_resumed" for event in task.recorded)
        if attempt <= MAX_ATTEMPTS:
            told = {"message_id": message_id, "attempt": attempt}
            ledger.event("agent:turn_resumed", told, agent=task.actor.agent_id, message=message_id)
            return task
        _drop(ledger, message_id, "failed")
        error = LastError(f"the turn was cut off {MAX_ATTEMPTS} times", "turn_cut_off")
        ledger.data.last_error = error
        ledger.event("error", {"message": error.message, "code": error.code}, message=message_id)
        ledger.to("fail", code=error.code)
        return None

    async def _rest(self, rest: Rest) -> bool:
        """Whether there is work again; otherwise the room is asleep, released or failed, and needs no worker."""
        if rest.status != "idle":
            return False
        try:
            async with asyncio.timeout(rest.idle_seconds or self._host.idle_seconds):
                await self._called.wait()
        except TimeoutError:
            return await self.commit(_fall_asleep) != "sleeping"
        return True

    async def _carry_out(self, task: Task) -> None:
        wishes = self._wishes = Wishes(task.recorded)
        work = self._host.agent.run(
            task, self._record_of(task), wishes, lambda: self._release_at_once or wishes.release_mode == "immediate"
        )
        self._turn = turn = self._host.spawn(work, f"turn in room {self.id}")
        if self._interrupted:
            turn.cancel()
        failure: GatewayError | None = None
        result, used = Result("stopped", ""), Used()
        try:
            result, used = await turn
        except asyncio.CancelledError:
            if not (self._interrupted and turn.cancelled()):
                raise
        except GatewayError as error:
            failure = error
        except Exception:
            log.exception("room %s: a turn failed", self.id)
            failure = InternalError("the turn failed inside the gateway; its log tells why")
        finally:
            self._turn = None
        await self.commit(lambda ledger: self._end(ledger, task, result, used, failure))

    def _record_of(self, task: Task) -> Record:
        agent, message = task.actor.agent_id, task.message.id

        async def record(event_type: str, payload: Mapping[str, Any]) -> None:
            await self.commit(lambda ledger: ledger.event(event_type, payload, agent=agent, message=message))

        return record

    def _end(self, ledger: Ledger, task: Task, result: Result, used: Used, failure: GatewayError | None) -> None:
        """The turn's outcome, its output, and what the room does next: one transaction, so that all of it happens."""
        agent, message = task.actor.agent_id, task.message
        tags = {"agent": agent, "message": message.id}
        status: MessageStatus
        if self._interrupted:
            status, failure = "interrupted", None
        elif failure is not None:
            status = "failed"
        else:
            status = _STATUS[result.outcome]
        if result.text and not self._interrupted and failure is None:
            output = ledger.say(
                result.text,
                user=task.user,
                author_kind="agent",
                kind="output",
                status="done",
                actor_key=agent,
                in_reply_to=message.id,
            )
            told = {"text": result.text, "output_id": output.id, "output_seq": output.seq, "in_reply_to": message.id}
            ledger.event("agent:output", told, **tags)
        ledger.mark(message.id, status)
        ledger.running = None
        told = {"agent_id": agent, "message_id": message.id, "status": status, "limit": result.limit}
        spent = {"model_calls": used.model_calls, "tool_calls": used.tool_calls, "usage": used.usage}
        ledger.event("agent:turn_end", {**told, **spent}, **tags)
        if failure is not None:
            ledger.data.last_error = LastError(failure.message, failure.code, failure.category)
            ledger.event("error", {"message": failure.message, "code": failure.code}, **tags)
            if ledger.status == "active":
                ledger.to("fail", code=failure.code)
        elif status in ("done", "limited"):
            ledger.data.last_error = None
        mode, policy = self._wishes.release_mode, ledger.data.done_policy.after_turn
        if ledger.status == "active" and (mode is not None or (policy == "release" and ledger.queued is None)):
            ledger.to("release", mode=mode or "graceful", by="done_policy" if mode is None else "agent")
        if ledger.status == "releasing":
            finish(ledger)
        elif ledger.status == "active" and ledger.queued is None:
            ledger.to("settle", reason=status)
            if self._wishes.idle_reason is not None:
                ledger.to("sleep", reason=self._wishes.idle_reason or "asked for by the agent")
            elif policy == "sleep":
                ledger.to("sleep", reason="done_policy")


_STATUS: Mapping[Outcome, MessageStatus] = {"completed": "done", "limited": "limited", "stopped": "interrupted"}


class Rest:
    """How a room stands that has no turn to carry out."""

    def __init__(self, ledger: Ledger) -> None:
        self.status = ledger.status
        self.idle_seconds = ledger.data.done_policy.idle_seconds


class Wishes:
    """What the model asked for with room.idle and room.release, also before its turn was cut off."""

    def __init__(self, recorded: Sequence[Event]) -> None:
        self.idle_reason: str | None = None
        self.release_mode: str | None = None
        for event in recorded:
            if event.event_type == "tool:result" and event.payload["ok"]:
                result = event.payload["result"]
                if event.payload["name"] == "room.idle":
                    self.idle(result["reason"])
                elif event.payload["name"] == "room.release":
                    self.release(result["mode"])

    def idle(self, reason: str) -> None:
        self.idle_reason = reason

    def release(self, mode: str) -> None:
        self.release_mode = mode


def finish(ledger: Ledger) -> None:
    """Nothing runs any more, and nothing will: the room is released."""
    if ledger.queued is not None:
        ledger.mark(ledger.queued, "cancelled")
        ledger.event("message:cancelled", {"message_id": ledger.queued}, message=ledger.queued)
        ledger.queued = None
    ledger.to("finish")


def _drop(ledger: Ledger, message_id: str, status: MessageStatus) -> None:
    """A turn that nobody carries out any more."""
    ledger.mark(message_id, status)
    ledger.running = None
    ledger.event("agent:turn_end", {"message_id": message_id, "status": status}, message=message_id)


def _fall_asleep(ledger: Ledger) -> State:
    if ledger.status == "idle":
        ledger.to("sleep", reason="idle_seconds")
    return ledger.status


def _task(ledger: Ledger, message_id: str) -> Task:
    message, user = transaction.message(ledger.connection, message_id)
    actors = {actor.agent_id: actor for actor in ledger.data.actors}
    return Task(
        room_id=ledger.id,
        tenant=ledger.tenant,
        user=user,
        message=message,
        actor=actors.get(message.actor_key or "", ledger.data.actors[0]),
        data=ledger.data,
        past=transaction.messages_before(ledger.connection, ledger.id, message.seq, PAST_MESSAGES),
        recorded=transaction.events_of(ledger.connection, ledger.id, message_id),
    )

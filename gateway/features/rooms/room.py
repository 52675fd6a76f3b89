"""A room in use: its serialised writes, its event feed, and the worker that runs its turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gateway.errors import Backoff, GatewayError, InternalError, ProviderRateLimit, ProviderUnavailable
from gateway.features.agents.turn import Outcome, Result, Used
from gateway.features.rooms import transaction
from gateway.features.rooms.feed import Feed
from gateway.features.rooms.lifecycle import Requested
from gateway.features.rooms.schemas import Compacted, Event, LastError, MessageStatus, Room
from gateway.features.rooms.states import State, check, conflict
from gateway.features.rooms.transaction import Transaction
from gateway.features.rooms.turns import Agent, Record, Task
from gateway.store import Claimed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.store import Store

T = TypeVar("T")

MAX_ATTEMPTS = 3
"""How often a turn that was cut off is tried before its room fails."""

AGAIN = Backoff(0.25, 10.0)
"""Between the attempts of a worker whose store fails."""

log = logging.getLogger("ctxgate")


class Host(Protocol):
    """What a room needs from the service that holds all rooms."""

    @property
    def store(self) -> Store: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def idle_seconds(self) -> float: ...

    async def keep(self) -> None:
        """Raises Claimed if the rooms no longer belong to this process."""
        ...

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Starts a task, holds a reference to it, and waits for it at shutdown."""
        ...


class LiveRoom:
    """A room while it is in use, in one process at a time. All durable state is in the store.

    All writes happen under `_lock`, so followers see events in the order of their numbers.
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
        self._requested = Requested()

    # Writing

    async def commit(
        self, work: Callable[[Transaction], T], tenant: str | None = None, *, then: Callable[[T], None] | None = None
    ) -> T:
        """Runs `work` in a transaction, commits, and publishes its events. A caller that gives up doesn't undo it.

        then: called with the result after the commit and before any other write of this room.
        Raises what `work` raises, and then nothing has changed; ProviderInvalidRequest (404) for another tenant's room.
        """
        writing = self._host.spawn(self._commit(work, tenant, then), f"write room {self.id}")
        return await asyncio.shield(writing)

    async def _commit(
        self, work: Callable[[Transaction], T], tenant: str | None, then: Callable[[T], None] | None
    ) -> T:
        def write(connection: Connection) -> tuple[T, list[Event]]:
            tx = Transaction.open(connection, self.id, tenant)
            result = work(tx)
            if tx.events:  # every change has an event
                tx.save()
            return result, tx.events

        async with self._lock:
            await self._host.keep()
            result, events = await self._host.store.write(write)
            if then is not None:
                then(result)
            self.feed.publish(events)
        return result

    # Verbs that need what is in memory

    async def interrupt(self, tenant: str, reason: str | None) -> Room:
        """Cancels the running turn. Raises ProviderInvalidRequest (409) if no turn is running."""

        def work(tx: Transaction) -> Room:
            check("interrupt", tx.status)
            if tx.running is None or self._worker is None or self._interrupted:
                raise conflict("no_turn_running", "no turn is running that could be interrupted")
            tx.event("agent:interrupted", {"reason": reason}, message=tx.running)
            return tx.room()

        def committed(_: Room) -> None:
            self._interrupted = True

        room = await self.commit(work, tenant, then=committed)
        if self._turn is not None:
            self._turn.cancel()
        return room

    def release_at_once(self) -> None:
        """Makes the running turn end at its next safe point."""
        self._release_at_once = True

    # The worker

    def attach(self) -> None:
        """Calls the worker, and starts one if there is none: there may be work."""
        self._called.set()
        if self._worker is None:
            self._worker = self._host.spawn(self._work(), f"work in room {self.id}")

    @property
    def attached(self) -> bool:
        return self._worker is not None

    def leave(self) -> list[asyncio.Task[Any]]:
        """Cancels the worker and its turn, since another process may own the room now. Returns the cancelled tasks."""
        self.feed.forget()
        leaving = [task for task in (self._turn, self._worker) if task is not None]
        for task in leaving:
            task.cancel()
        return leaving

    async def _work(self) -> None:
        failures = 0
        try:
            while True:
                self._called.clear()
                try:
                    found = await self.commit(self._take, then=self._taken)
                    if isinstance(found, Task):
                        await self._run_turn(found)
                    elif not await self._rest(found) and not self._called.is_set():
                        return
                    failures = 0
                except (ProviderUnavailable, ProviderRateLimit) as error:
                    if isinstance(error, Claimed):
                        raise
                    failures += 1
                    await self._wait_for_the_store(error, failures)
        except GatewayError as error:
            # The room stays in the store as it is; the next verb or the next start resumes it.
            log.error("room %s: its worker ends: %s", self.id, error)
        finally:
            self._worker = None

    async def _wait_for_the_store(self, error: GatewayError, failures: int) -> None:
        """Until the next attempt, or the next verb."""
        if failures == 1:
            log.warning("room %s: its worker tries again until the store works: %s", self.id, error)
        with suppress(TimeoutError):
            async with asyncio.timeout(AGAIN.delay(failures)):
                await self._called.wait()

    def _take(self, tx: Transaction) -> Task | Rest:
        """The turn to run now. If there is none, settles or releases the room."""
        if tx.status == "releasing":
            if tx.running is not None:  # the gateway was stopped meanwhile
                _drop(tx, tx.running, "interrupted")
            finish(tx)
        elif tx.status == "active" and tx.running is not None:
            return self._resume(tx, tx.running) or Rest(tx)
        elif tx.status == "active" and tx.queued is not None:
            tx.running, tx.queued = tx.queued, None
            tx.mark(tx.running, "running")
            task = _task(tx, tx.running)
            payload = {"agent_id": task.actor.agent_id, "message_id": task.message.id, "status": "running"}
            tx.event("agent:turn_start", payload, agent=task.actor.agent_id, message=task.message.id)
            return task
        elif tx.status == "active":
            tx.to("settle", reason="no_message")
        return Rest(tx)

    def _taken(self, found: Task | Rest) -> None:
        """Clears requests to the previous turn. A resumed turn keeps an interrupt that is already recorded."""
        if not (isinstance(found, Task) and found.resumed):
            self._interrupted = self._release_at_once = False

    def _resume(self, tx: Transaction, message_id: str) -> Task | None:
        """The turn that was cut off; fails the room after MAX_ATTEMPTS."""
        task = _task(tx, message_id)
        types = [event.event_type for event in task.recorded]
        attempt = 2 + types.count("agent:turn_resumed")
        ended = max((at for at, kind in enumerate(types) if kind == "agent:turn_end"), default=0)  # before a wake
        if 1 + types[ended:].count("agent:turn_resumed") < MAX_ATTEMPTS:
            payload = {"message_id": message_id, "attempt": attempt}
            tx.event("agent:turn_resumed", payload, agent=task.actor.agent_id, message=message_id)
            return task
        _drop(tx, message_id, "failed")
        tx.data.failed = message_id
        error = LastError(f"the turn was cut off {MAX_ATTEMPTS} times", "turn_cut_off")
        tx.data.last_error = error
        tx.event("error", {"message": error.message, "code": error.code}, message=message_id)
        tx.to("fail", code=error.code)
        return None

    async def _rest(self, rest: Rest) -> bool:
        """Waits for work; puts an idle room to sleep. False if the room sleeps, is released, or has failed."""
        if rest.status != "idle":
            return False
        try:
            async with asyncio.timeout(rest.idle_seconds or self._host.idle_seconds):
                await self._called.wait()
        except TimeoutError:
            return await self.commit(_fall_asleep) != "sleeping"
        return True

    async def _run_turn(self, task: Task) -> None:
        requested = self._requested = Requested(task.recorded)
        work = self._host.agent.run(
            task, self._record_of(task), lambda: self._release_at_once or requested.release_mode == "immediate"
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
            failure = InternalError("the turn failed inside the gateway; see its log")
        finally:
            self._turn = None
        await self.commit(lambda tx: self._end(tx, task, result, used, failure))

    def _record_of(self, task: Task) -> Record:
        agent, message, requested = task.actor.agent_id, task.message.id, self._requested

        def write(tx: Transaction, event_type: str, payload: Mapping[str, Any]) -> None:
            tx.event(event_type, payload, agent=agent, message=message)
            if event_type == "history:compacted":
                _compact(tx, payload)

        async def record(event_type: str, payload: Mapping[str, Any]) -> None:
            await self.commit(lambda tx: write(tx, event_type, payload))
            requested.add(event_type, payload)

        return record

    def _end(self, tx: Transaction, task: Task, result: Result, used: Used, failure: GatewayError | None) -> None:
        """Writes the turn's outcome, its output and the room's next state in one transaction."""
        tags = {"agent": task.actor.agent_id, "message": task.message.id}
        status: MessageStatus
        if self._interrupted:
            status, failure = "interrupted", None
        else:
            status = "failed" if failure is not None else _STATUS[result.outcome]
        if result.text and not self._interrupted and failure is None:
            _write_output(tx, task, result.text)
        tx.mark(task.message.id, status)
        tx.running = None
        ended = {"agent_id": tags["agent"], "message_id": tags["message"], "status": status, "limit": result.limit}
        spent = {"model_calls": used.model_calls, "tool_calls": used.tool_calls, "usage": used.usage}
        tx.event("agent:turn_end", {**ended, **spent}, **tags)
        if failure is not None:
            tx.data.last_error = LastError(failure.message, failure.code, failure.category)
            told = {"message": failure.message, "code": failure.code, "category": failure.category}
            tx.event("error", told, **tags)
            if tx.status == "active":
                tx.data.failed = task.message.id
                tx.to("fail", code=failure.code)
        elif status in ("done", "limited"):
            tx.data.last_error = None
        self._move_on(tx, status)

    def _move_on(self, tx: Transaction, status: MessageStatus) -> None:
        """Releases, settles or puts the room to sleep, as the model or the done policy asks."""
        mode, policy = self._requested.release_mode, tx.data.done_policy.after_turn
        if tx.status == "active" and (mode is not None or (policy == "release" and tx.queued is None)):
            tx.to("release", mode=mode or "graceful", by="done_policy" if mode is None else "agent")
        if tx.status == "releasing":
            finish(tx)
        elif tx.status == "active" and tx.queued is None:
            tx.to("settle", reason=status)
            if self._requested.idle_reason is not None:
                tx.to("sleep", reason=self._requested.idle_reason or "asked for by the agent")
            elif policy == "sleep":
                tx.to("sleep", reason="done_policy")


_STATUS: Mapping[Outcome, MessageStatus] = {"completed": "done", "limited": "limited", "stopped": "interrupted"}


class Rest:
    """The state of a room that has no turn to run."""

    def __init__(self, tx: Transaction) -> None:
        self.status = tx.status
        self.idle_seconds = tx.data.done_policy.idle_seconds


def finish(tx: Transaction) -> None:
    """Releases the room for good, once no turn runs. Cancels the queued message."""
    if tx.queued is not None:
        tx.mark(tx.queued, "cancelled")
        tx.event("message:cancelled", {"message_id": tx.queued}, message=tx.queued)
        tx.queued = None
    tx.to("finish")


def _write_output(tx: Transaction, task: Task, text: str) -> None:
    agent, message = task.actor.agent_id, task.message.id
    output = tx.say(
        text,
        user=task.user,
        author_kind="agent",
        kind="output",
        status="done",
        actor_key=agent,
        in_reply_to=message,
    )
    payload = {"text": text, "output_id": output.id, "output_seq": output.seq, "in_reply_to": message}
    tx.event("agent:output", payload, agent=agent, message=message)


def _compact(tx: Transaction, payload: Mapping[str, Any]) -> None:
    agent, text = payload["agent_id"], payload["summary"]
    if (now := tx.data.compacted(agent).text) != payload["before"]:
        text = f"{now}\n{text}"  # a person has changed it meanwhile
    tx.data.summary_text = text
    tx.data.summaries = {**tx.data.summaries, agent: Compacted(payload["through_seq"], text)}


def _drop(tx: Transaction, message_id: str, status: MessageStatus) -> None:
    """Ends a turn that will not be resumed."""
    tx.mark(message_id, status)
    tx.running = None
    tx.event("agent:turn_end", {"message_id": message_id, "status": status}, message=message_id)


def _fall_asleep(tx: Transaction) -> State:
    if tx.status == "idle":
        tx.to("sleep", reason="idle_seconds")
    return tx.status


def _task(tx: Transaction, message_id: str) -> Task:
    message, user = transaction.message(tx.connection, message_id)
    actors = {actor.agent_id: actor for actor in tx.data.actors}
    return Task(
        room_id=tx.id,
        tenant=tx.tenant,
        user=user,
        message=message,
        actor=actors.get(message.actor_key or "", tx.data.actors[0]),
        data=tx.data,
        recorded=transaction.events_of(tx.connection, tx.id, message_id),
    )

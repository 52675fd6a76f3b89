"""Sessions in the store. Each function is work for `Store.write` or `Store.read`: one transaction."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    and_,
    delete,
    func,
    insert,
    select,
    update,
)

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.errors import Busy, NotFound
from gateway.features.ctx.events import Done, Error, Start, Status, line
from gateway.features.ctx.frames import Scope, Send, ToolResult, event_id
from gateway.features.ctx.history import answered, asked, question
from gateway.features.ctx.objects import ObjectName
from gateway.features.ctx.settings import Ctx

if TYPE_CHECKING:
    from gateway.store import Store

State = Literal["active", "idle", "error", "cancelled"]
"""The state of a session: idle after a successful answer."""

EVERYONE = -1
"""The owner of shared sessions. A private session's owner is the user's id."""

_meta = MetaData()
_key = BigInteger().with_variant(Integer, "sqlite")
session_table = Table(
    "ctx_session",
    _meta,
    Column("id", _key, primary_key=True),
    Column("object", Text),
    Column("owner", BigInteger),
    Column("name", Text),
    Column("scope", Text),
    Column("state", Text),
    Column("cwd", Text),
    Column("created_at", Float),
    Column("updated_at", Float),
    Column("last_event", BigInteger),
)
run_table = Table(
    "ctx_run",
    _meta,
    Column("id", Text, primary_key=True),
    Column("session", _key),
    Column("client", Text),
    Column("fingerprint", Text),
    Column("keeper", Text),
    Column("state", Text),
    Column("input", Text),
    Column("answer", Text),
    Column("first_event", BigInteger),
    Column("last_event", BigInteger),
    Column("results", Text),
)
event_table = Table(
    "ctx_event",
    _meta,
    Column("session", _key, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("run", Text),
    Column("frame", Text),
)

PRUNE_BATCH = 20
"""Sessions that `prune` deletes in one transaction."""

Event: TypeAlias = tuple[int, bytes]
"""A number and its frame; the event's id is `event-NUMBER`."""


@dataclass(frozen=True, slots=True)
class Whose:
    """The user and the object of a request. object: `model/openai/gpt-4o`. user: the user's id."""

    object: str
    user: int

    def owner(self, scope: Scope) -> int:
        return EVERYONE if scope == "shared" else self.user


@dataclass(frozen=True, slots=True)
class Begun:
    """A recorded run with its start event. fields: of the chat request."""

    session: int
    run: str
    start: Event
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Retried:
    """The client has sent this before. frame: the run's `done`, or its `start` if it isn't done."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Found:
    session: int
    last: int


def begin(connection: Connection, whose: Whose, send: Send, run: str, keeper: str, model: str) -> Begun | Retried:
    """Records the message and the start of its run, once per client id.

    Raises ProviderInvalidRequest if the id was used for another message, or for results of unknown calls; Busy while
    the session has an active run.
    """
    now = time.time()
    cwd = None if send.cwd is UNSET else send.cwd
    said: list[Any] = [send.input, send.scope, cwd]
    results = None if send.tool_results is UNSET else msgspec.json.encode(send.tool_results).decode()
    if results is not None or send.tools is not UNSET:
        said += [results, None if send.tools is UNSET else send.tools]
    fingerprint = hashlib.sha256(msgspec.json.encode(said)).hexdigest()
    owner = whose.owner(send.scope)
    found = _session(connection, whose.object, owner, send.session)
    if found is None:
        values = {"object": whose.object, "owner": owner, "name": send.session, "scope": send.scope, "cwd": cwd}
        values |= {"state": "active", "created_at": now, "updated_at": now, "last_event": 0}
        inserted = insert(session_table).values(values).returning(session_table.c.id)
        session, last = int(connection.execute(inserted).scalar_one()), 0
    else:
        session, last = int(found.id), int(found.last_event)
        if (frame := _earlier(connection, session, send, fingerprint)) is not None:
            return Retried(frame)
    number = last + 1
    frame = line(Start(id=event_id(number), run=run, model=model, client_id=send.id))
    fields = asked(_messages(connection, session), send)
    connection.execute(
        insert(run_table).values(
            id=run, session=session, client=send.id, fingerprint=fingerprint, keeper=keeper, state="active",
            input=send.input or "", first_event=number, results=results,
        )
    )  # fmt: skip
    append(connection, session, run, [(number, frame)])
    values = {"state": "active", "updated_at": now}
    if cwd is not None:
        values["cwd"] = cwd
    connection.execute(update(session_table).where(session_table.c.id == session).values(values))
    return Begun(session, run, (number, frame), fields)


def _earlier(connection: Connection, session: int, send: Send, fingerprint: str) -> bytes | None:
    """The frame that answers a retry, or None for a new message. Raises as `begin`."""
    runs = select(run_table).where(run_table.c.session == session)
    known = connection.execute(runs.where(run_table.c.client == send.id)).first()
    if known is not None:
        if known.fingerprint != fingerprint:
            raise ProviderInvalidRequest(f"id: {send.id} was sent before, with another input, scope or cwd")
        number = known.first_event if known.last_event is None else known.last_event
        return _frame(connection, session, int(number))
    active = connection.execute(runs.where(run_table.c.state == "active")).first()
    if active is not None:
        raise Busy(f"session {send.session} is busy with {active.id}; send again when it is done, or cancel it")
    return None


def append(connection: Connection, session: int, run: str, events: Sequence[Event]) -> None:
    """Records further events of a run."""
    if events:
        rows = [{"session": session, "number": number, "run": run, "frame": frame.decode()} for number, frame in events]
        connection.execute(insert(event_table), rows)
        last = {"last_event": events[-1][0], "updated_at": time.time()}
        connection.execute(update(session_table).where(session_table.c.id == session).values(last))


def finish(
    connection: Connection, session: int, run: str, events: Sequence[Event], status: Status, answer: str | None
) -> None:
    """Records the end of a run. events: its last ones, up to `done`. answer: a successful run's message, as JSON."""
    append(connection, session, run, events)
    last = events[-1][0]
    connection.execute(
        update(run_table).where(run_table.c.id == run).values(state=status, last_event=last, answer=answer)
    )
    state: State = "idle" if status == "ok" else status
    connection.execute(update(session_table).where(session_table.c.id == session).values(state=state))


def find(connection: Connection, whose: Whose, name: str, scope: Scope | None) -> Found | None:
    """Finds a session. scope: None for the private session or, without one, the shared one."""
    for one in (scope,) if scope is not None else ("private", "shared"):
        row = _session(connection, whose.object, whose.owner(one), name)
        if row is not None:
            return Found(int(row.id), int(row.last_event))
    return None


def stored(connection: Connection, name: ObjectName, session: str, scope: Scope) -> Row[Any]:
    """The row of one's own session, or of a shared one. Raises NotFound."""
    row = _session(connection, str(name), Whose(str(name), os.geteuid()).owner(scope), session)
    if row is None:
        raise NotFound(f"{name} has no {scope} session {session}")
    return row


def after(connection: Connection, session: int, number: int, last: int, count: int, size: int) -> list[Event]:
    """The events with numbers above `number`, up to `last`: at most `count`, and about `size` bytes."""
    table = event_table
    there = table.c.session == session
    window = and_(there, table.c.number > number, table.c.number <= min(last, number + count))
    # Sizes first: a driver may fetch every row of a query, and frames can be long.
    sizes = connection.execute(
        select(table.c.number, func.length(table.c.frame)).where(window).order_by(table.c.number)
    ).all()
    end, taken = number, 0
    for at, length in sizes:
        if taken and taken + length > size:
            break
        end, taken = int(at), taken + int(length)
    frames = select(table.c.number, table.c.frame).where(there, table.c.number > number, table.c.number <= end)
    return [(int(row.number), row.frame.encode()) for row in connection.execute(frames.order_by(table.c.number))]


def recover(connection: Connection, keeper: str, living: Collection[str]) -> int:
    """Ends the runs that their gateway left active; returns how many. living: runs that are still being answered."""
    found = connection.execute(
        select(run_table.c.id, run_table.c.session, session_table.c.last_event)
        .join(session_table, session_table.c.id == run_table.c.session)
        .where(run_table.c.keeper == keeper, run_table.c.state == "active")
    ).all()
    active = [row for row in found if row.id not in living]
    for row in active:
        interrupt(connection, int(row.session), row.id, int(row.last_event), "the gateway ended before the answer did")
    return len(active)


def interrupt(connection: Connection, session: int, run: str, last: int, message: str) -> list[Event]:
    """Ends a run with an error event; returns its last events."""
    events = [
        (last + 1, line(Error(id=event_id(last + 1), run=run, code="EINTR", message=message))),
        (last + 2, line(Done(id=event_id(last + 2), run=run, status="error"))),
    ]
    finish(connection, session, run, events, "error", None)
    return events


def _session(connection: Connection, object: str, owner: int, name: str) -> Row[Any] | None:
    table = session_table
    return connection.execute(
        select(table).where(table.c.object == object, table.c.owner == owner, table.c.name == name)
    ).first()


def _frame(connection: Connection, session: int, number: int) -> bytes:
    table = event_table
    frame = connection.execute(
        select(table.c.frame).where(table.c.session == session, table.c.number == number)
    ).scalar_one()
    return str(frame).encode()


def _messages(connection: Connection, session: int) -> list[dict[str, Any]]:
    """The answered turns, as chat messages. Failed turns are not part of the conversation."""
    rows = connection.execute(
        select(run_table.c.input, run_table.c.answer, run_table.c.results)
        .where(run_table.c.session == session, run_table.c.state == "ok")
        .order_by(run_table.c.first_event)
    )
    messages: list[dict[str, Any]] = []
    for row in rows:
        messages += [*question(row.input, results_of(row.results)), chat_message(msgspec.json.decode(row.answer))]
    return messages


def results_of(stored: str | None) -> list[ToolResult]:
    return msgspec.json.decode(stored, type=list[ToolResult]) if stored else []


def chat_message(answer: dict[str, Any]) -> dict[str, Any]:
    """Converts an assistant's canonical message to a chat message."""
    return answered("".join(part["text"] for part in answer["content"]), answer.get("tool_calls") or ())


async def prune(store: Store, config: Config, now: float) -> int:
    """Deletes sessions without a message for `ctx.session_days`, with their runs and events. Returns how many."""
    days = config.section(Ctx).session_days
    if days is None:
        return 0
    until = now - days * 86400
    deleted = 0
    while count := await store.write(lambda connection: _delete_idle(connection, until)):
        deleted += count
    return deleted


def _delete_idle(connection: Connection, until: float) -> int:
    table = session_table
    old = select(table.c.id).where(table.c.state != "active", table.c.updated_at < until).limit(PRUNE_BATCH)
    # ON DELETE CASCADE deletes their runs and events.
    return int(connection.execute(delete(table).where(table.c.id.in_(old))).rowcount)

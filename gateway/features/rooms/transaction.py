"""One room in one transaction: its row, messages and events. All I/O goes through the given connection."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Row, Select, func, insert, select, update

from gateway.errors import ProviderInvalidRequest
from gateway.features.rooms.history import ENDS, KINDS, Recorded
from gateway.features.rooms.schemas import (
    Actor,
    Compacted,
    DonePolicy,
    Event,
    LastError,
    Message,
    MessageStatus,
    Metadata,
    Rent,
    Room,
    TextPart,
    ToolPolicy,
    TurnBounds,
    WakePolicy,
    encode,
)
from gateway.features.rooms.states import EVENTS as EVENT_OF
from gateway.features.rooms.states import State, Trigger, after
from gateway.features.rooms.tables import EVENTS, MESSAGES, ROOMS

T = TypeVar("T")

PAGE_BYTES = 4 * 1024 * 1024
"""Of the rooms, messages or events of a page, as JSON, unless the first one is larger alone."""
FETCHED = 8
"""How many of them come from the database at a time: long ones aren't all in memory."""


def now() -> str:
    return timestamp(datetime.now(UTC))


def timestamp(moment: datetime) -> str:
    """A moment in UTC as ISO 8601 text, which sorts in the order of time."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sound(value: T) -> T:
    """JSON that can be encoded: replaces lone surrogates, which models and fetched pages may contain."""
    try:
        encode(value)
    except UnicodeEncodeError:
        return _without_surrogates(value)  # type: ignore[no-any-return]
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_without_surrogates(name): _without_surrogates(inner) for name, inner in value.items()}
    return [_without_surrogates(inner) for inner in value] if isinstance(value, list | tuple) else value


def not_found(room_id: str) -> ProviderInvalidRequest:
    """Raised for missing rooms and for other tenants' rooms."""
    return ProviderInvalidRequest(f"no room {room_id!r}", code="room_not_found", status=404)


class Data(msgspec.Struct, kw_only=True):
    """The part of a room that is stored as one JSON value."""

    actors: list[Actor]
    purpose: str | None = None
    metadata: Metadata = {}
    tool_policy: ToolPolicy | None = None
    wake_policy: WakePolicy = msgspec.field(default_factory=WakePolicy)
    done_policy: DonePolicy = msgspec.field(default_factory=DonePolicy)
    bounds: TurnBounds = msgspec.field(default_factory=TurnBounds)
    mounts: list[str] = []
    summary_text: str | None = None
    """The newest summary, of whichever actor, or what a person wrote in its place."""
    summaries: dict[str, Compacted] = {}
    """By actor, since each compacts for its own window."""
    failed: str | None = None
    """Id of the message whose turn failed, until the room is woken."""
    last_error: LastError | None = None
    folder: str | None = None
    """A folder of this machine in which the tools `fs.*` work; "": the room's own. None: it has the tools of rooms.
    Only the gateway sets it."""

    def compacted(self, agent: str) -> Compacted:
        if (found := self.summaries.get(agent)) is not None:
            return found
        return Compacted(0, (self.summary_text or "") if not self.summaries else "")

    def summarise(self, text: str | None) -> None:
        """Puts a person's text in the place of every actor's summary."""
        self.summary_text = text
        self.summaries = {
            actor.agent_id: Compacted(self.compacted(actor.agent_id).through_seq, text or "") for actor in self.actors
        }


def _data(stored: dict[str, Any]) -> Data:
    """What is stored, without the parts that are no longer valid: one such room must not hide all others."""
    try:
        return msgspec.convert(stored, Data)
    except msgspec.ValidationError:
        data = Data(actors=[Actor()])
        for field in msgspec.structs.fields(Data):
            with suppress(msgspec.ValidationError, KeyError):
                setattr(data, field.name, msgspec.convert(stored[field.name], field.type))
        return data


class Transaction:
    """A room within a transaction. Change its attributes, add each change's `event`, then `save`."""

    def __init__(self, connection: Connection, row: Row[Any]) -> None:
        self.connection = connection
        self.id: str = row.id
        self.tenant: str = row.tenant
        self.status: State = row.status
        self.rented_at: str = row.rented_at
        self.updated_at: str = row.updated_at
        self.last_active_at: str | None = row.last_active_at
        self.queued: str | None = row.queued_message_id
        self.running: str | None = row.running_message_id
        self.data = _data(row.data)
        self.events: list[Event] = []
        """Added in this transaction."""
        self._event_seq: int = row.event_seq
        self._message_seq: int = row.message_seq

    @classmethod
    def open(cls, connection: Connection, room_id: str, tenant: str | None) -> Transaction:
        """Locks the room until the transaction ends. tenant: None for the gateway itself.

        Raises ProviderInvalidRequest (404).
        """
        query = select(ROOMS).where(ROOMS.c.id == room_id).with_for_update()
        if tenant is not None:
            query = query.where(ROOMS.c.tenant == tenant)
        row = connection.execute(query).one_or_none()
        if row is None:
            raise not_found(room_id)
        return cls(connection, row)

    @classmethod
    def rent(
        cls,
        connection: Connection,
        tenant: str,
        user: str,
        rent: Rent,
        actors: list[Actor],
        room_id: str | None = None,
        folder: str | None = None,
    ) -> Transaction:
        """Inserts a new room, with its `room:rented` event. room_id: None for a new one. folder: see `Data`."""
        at = now()
        data = Data(
            actors=actors,
            purpose=rent.purpose,
            metadata=rent.metadata,
            tool_policy=rent.tool_policy,
            wake_policy=rent.wake_policy,
            done_policy=rent.done_policy,
            bounds=rent.bounds,
            mounts=rent.mounts,
            folder=folder,
        )
        values = {
            "id": room_id or str(uuid.uuid4()),
            "tenant": tenant,
            "user": user,
            "status": "rented",
            "rented_at": at,
            "updated_at": at,
            "event_seq": 0,
            "message_seq": 0,
            "data": msgspec.to_builtins(data),
        }
        connection.execute(insert(ROOMS), values)
        tx = cls.open(connection, str(values["id"]), None)
        tx.event("room:rented", {"agent_id": actors[0].agent_id}, agent=actors[0].agent_id)
        return tx

    def event(
        self, event_type: str, payload: Mapping[str, Any], *, agent: str | None = None, message: str | None = None
    ) -> None:
        self._event_seq += 1
        self.updated_at = now()
        self.events.append(
            Event(
                id=f"{self.id}:{self._event_seq}",
                seq=self._event_seq,
                event_type=event_type,
                agent_key=agent,
                message_id=message,
                payload=sound(dict(payload)),
                created_at=self.updated_at,
            )
        )

    def to(self, trigger: Trigger, **payload: Any) -> None:
        """Moves the room to its next state and adds the event of that transition."""
        self.status = after(self.status, trigger)
        if self.status == "active":
            self.last_active_at = now()
        self.event(EVENT_OF[trigger], payload)

    def say(
        self,
        content: str | list[TextPart],
        *,
        user: str,
        author_kind: str,
        kind: str,
        status: MessageStatus,
        actor_key: str | None,
        in_reply_to: str | None = None,
        metadata: Metadata | None = None,
        message_id: str | None = None,
    ) -> Message:
        """message_id: None for a new one."""
        self._message_seq += 1
        values = {
            "id": message_id or str(uuid.uuid4()),
            "seq": self._message_seq,
            "author_kind": author_kind,
            "kind": kind,
            "actor_key": actor_key,
            "in_reply_to": in_reply_to,
            "status": status,
            "content": sound(msgspec.to_builtins(content)),
            "metadata": metadata or {},
            "created_at": now(),
        }
        self.connection.execute(insert(MESSAGES), {**values, "room_id": self.id, "user": user})
        return msgspec.convert(values, Message)

    def mark(self, message_id: str, status: MessageStatus) -> None:
        self.connection.execute(update(MESSAGES).where(MESSAGES.c.id == message_id).values(status=status))

    def save(self) -> None:
        if self.events:
            rows = [{**msgspec.structs.asdict(event), "room_id": self.id} for event in self.events]
            for row in rows:
                del row["id"]
            self.connection.execute(insert(EVENTS), rows)
        values = {
            "status": self.status,
            "updated_at": self.updated_at,
            "last_active_at": self.last_active_at,
            "event_seq": self._event_seq,
            "message_seq": self._message_seq,
            "queued_message_id": self.queued,
            "running_message_id": self.running,
            "data": msgspec.to_builtins(self.data),
        }
        self.connection.execute(update(ROOMS).where(ROOMS.c.id == self.id).values(values))

    def room(self) -> Room:
        data = self.data
        return Room(
            id=self.id,
            status=self.status,
            purpose=data.purpose,
            metadata=data.metadata,
            agents=data.actors,
            actors=data.actors,
            tool_policy=data.tool_policy,
            wake_policy=data.wake_policy,
            done_policy=data.done_policy,
            bounds=data.bounds,
            mounts=data.mounts,
            summary_text=data.summary_text,
            last_error=data.last_error,
            rented_at=self.rented_at,
            updated_at=self.updated_at,
            last_active_at=self.last_active_at,
            queued_message_id=self.queued,
            running_message_id=self.running,
            failed_message_id=data.failed,
        )


def find(connection: Connection, room_id: str, tenant: str) -> Room:
    """Raises ProviderInvalidRequest (404)."""
    return _found(connection, room_id, tenant).room()


def is_hosted(connection: Connection, room_id: str, tenant: str) -> bool:
    """Whether the room works in a folder of this machine. Raises ProviderInvalidRequest (404)."""
    return _found(connection, room_id, tenant).data.folder is not None


def _found(connection: Connection, room_id: str, tenant: str) -> Transaction:
    row = connection.execute(select(ROOMS).where(ROOMS.c.id == room_id, ROOMS.c.tenant == tenant)).one_or_none()
    if row is None:
        raise not_found(room_id)
    return Transaction(connection, row)


def among(connection: Connection, tenant: str, ids: Collection[str]) -> list[Room]:
    """The rooms that have these ids."""
    query = select(ROOMS).where(ROOMS.c.id.in_(ids), ROOMS.c.tenant == tenant)
    return [Transaction(connection, row).room() for row in connection.execute(query)]


def rooms(
    connection: Connection, tenant: str, states: Sequence[State] | None, limit: int, offset: int
) -> tuple[list[Room], bool]:
    """Newest first; see `_page`. states: None for all."""
    query = select(ROOMS).where(ROOMS.c.tenant == tenant)
    if states is not None:
        query = query.where(ROOMS.c.status.in_(states))
    query = query.order_by(ROOMS.c.rented_at.desc(), ROOMS.c.id).offset(offset)
    return _page(connection, query, lambda row: Transaction(connection, row).room(), limit)


def count(connection: Connection, tenant: str, states: Sequence[State]) -> int:
    query = select(func.count()).select_from(ROOMS).where(ROOMS.c.tenant == tenant, ROOMS.c.status.in_(states))
    return connection.execute(query).scalar_one()


def in_state(connection: Connection, states: Sequence[State]) -> list[str]:
    """Ids of the rooms in these states, of all tenants."""
    return list(connection.execute(select(ROOMS.c.id).where(ROOMS.c.status.in_(states))).scalars())


def events(connection: Connection, room_id: str, after: int, limit: int) -> tuple[list[Event], bool]:
    """See `_page`."""
    query = select(EVENTS).where(EVENTS.c.room_id == room_id, EVENTS.c.seq > after).order_by(EVENTS.c.seq)
    return _page(connection, query, _event, limit)


def events_of(connection: Connection, room_id: str, message_id: str) -> list[Event]:
    """The events of one turn, in order."""
    query = select(EVENTS).where(EVENTS.c.room_id == room_id, EVENTS.c.message_id == message_id)
    return [_event(row) for row in connection.execute(query.order_by(EVENTS.c.seq))]


def messages(connection: Connection, room_id: str, after: int, limit: int) -> tuple[list[Message], bool]:
    """See `_page`."""
    query = select(MESSAGES).where(MESSAGES.c.room_id == room_id, MESSAGES.c.seq > after).order_by(MESSAGES.c.seq)
    return _page(connection, query, _message, limit)


def _page(
    connection: Connection, query: Select[Any], made: Callable[[Row[Any]], T], limit: int
) -> tuple[list[T], bool]:
    """What `limit` and PAGE_BYTES leave, but one at least; and whether there is more."""
    found: list[T] = []
    size = 0
    with connection.execute(query.limit(limit + 1), execution_options={"yield_per": FETCHED}) as rows:
        for row in rows:
            one = made(row)
            size += len(encode(one))
            if found and (size > PAGE_BYTES or len(found) == limit):
                return found, True
            found.append(one)
    return found, False


def tasks(connection: Connection, room_id: str) -> int:
    """How many messages were sent to the room."""
    query = select(func.count()).where(MESSAGES.c.room_id == room_id, MESSAGES.c.kind == "task")
    return connection.execute(query).scalar_one()


def earlier(connection: Connection, room_id: str, after: int, before: int, limit: int) -> list[Recorded]:
    """The first `limit` tasks with a number between these two, with their outputs and what their turns did."""
    within = select(MESSAGES).where(MESSAGES.c.room_id == room_id, MESSAGES.c.seq > after)
    tasks = within.where(
        MESSAGES.c.seq < before, MESSAGES.c.kind == "task", MESSAGES.c.status.not_in(("queued", "cancelled"))
    )
    found = {row.id: Recorded(_message(row)) for row in connection.execute(tasks.order_by(MESSAGES.c.seq).limit(limit))}
    for row in connection.execute(within.where(MESSAGES.c.in_reply_to.in_(found)).order_by(MESSAGES.c.seq)):
        found[row.in_reply_to].outputs.append(_message(row))
    broken = [id for id, recorded in found.items() if recorded.message.status in ENDS]
    of_turns = select(EVENTS).where(EVENTS.c.room_id == room_id).order_by(EVENTS.c.seq)
    for ids, kinds in ((list(found), KINDS), (broken, ("agent:model_call", "agent:update"))):
        for row in connection.execute(of_turns.where(EVENTS.c.message_id.in_(ids), EVENTS.c.event_type.in_(kinds))):
            found[row.message_id].events.append(_event(row))
    for id in broken:
        found[id].events.sort(key=lambda event: event.seq)
    return list(found.values())


def message_in(connection: Connection, room_id: str, message_id: str) -> Message | None:
    row = connection.execute(
        select(MESSAGES).where(MESSAGES.c.id == message_id, MESSAGES.c.room_id == room_id)
    ).one_or_none()
    return _message(row) if row is not None else None


def room_of(connection: Connection, message_id: str, tenant: str) -> Room | None:
    query = select(ROOMS).join(MESSAGES, MESSAGES.c.room_id == ROOMS.c.id)
    row = connection.execute(query.where(MESSAGES.c.id == message_id, ROOMS.c.tenant == tenant)).one_or_none()
    return Transaction(connection, row).room() if row is not None else None


def last_event(connection: Connection, room_id: str, tenant: str) -> int:
    """Raises ProviderInvalidRequest (404)."""
    query = select(ROOMS.c.event_seq).where(ROOMS.c.id == room_id, ROOMS.c.tenant == tenant)
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        raise not_found(room_id)
    return int(found)


def message(connection: Connection, message_id: str) -> tuple[Message, str]:
    """The message, and the user who sent it."""
    row = connection.execute(select(MESSAGES).where(MESSAGES.c.id == message_id)).one()
    return _message(row), row.user


def _event(row: Row[Any]) -> Event:
    return Event(
        id=f"{row.room_id}:{row.seq}",
        seq=row.seq,
        event_type=row.event_type,
        agent_key=row.agent_key,
        message_id=row.message_id,
        payload=row.payload,
        created_at=row.created_at,
    )


def _message(row: Row[Any]) -> Message:
    return msgspec.convert({name: row._mapping[name] for name in Message.__struct_fields__}, Message)

"""The rows of stored items: one for each item, with its id, so that what is read is bounded by what is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, text

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses.wire.conversations import Written
from gateway.features.responses.wire.request import Item
from gateway.wire.chat import decode

OUTPUTS = 1_000_000
"""The place of the first item that the model wrote. They are in the response, too."""
MAX_BYTES, MAX_ITEMS = 32 * 1024 * 1024, 20_000
"""Of the earlier items, as JSON, that a model may be shown."""
AT_ONCE = 1000
"""Ids in one query."""
PAGE_BYTES = 4 * 1024 * 1024
"""Of the items of a page, unless its first one is larger alone."""

Whose = Literal["conversation", "response"]


@dataclass(frozen=True, slots=True)
class Paging:
    """after: the id of the item before the page; None for the first page."""

    limit: int
    after: str | None = None
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Item]
    more: bool


def add(connection: Connection, response: str, items: Iterable[Written], first: int = 0) -> None:
    """first: the place of the first one."""
    rows = [
        {"response": response, "place": place, "id": id, "size": len(item), "item": item}
        for place, (id, item) in enumerate(items, first)
    ]
    if rows:
        connection.execute(_ADD, rows)


def append(connection: Connection, response: str, items: Iterable[Written]) -> None:
    add(connection, response, items, connection.execute(_NEXT, {"response": response}).scalar_one())


def replace_outputs(connection: Connection, response: str, items: Iterable[Written]) -> None:
    connection.execute(_DELETE_OUTPUTS, {"response": response, "outputs": OUTPUTS})
    add(connection, response, items, OUTPUTS)


def given_to(connection: Connection, response: str) -> list[Item]:
    """The items that the response was given."""
    found = connection.execute(_GIVEN, {"response": response, "outputs": OUTPUTS}).scalars()
    return [decode(item) for item in found]


def measure_given(connection: Connection, response: str) -> tuple[int, int]:
    """The number of the items that the response was given, and their size."""
    count, size = connection.execute(_MEASURE_GIVEN, {"response": response, "outputs": OUTPUTS}).one()
    return count, int(size)


def newest(connection: Connection, conversation: str, *, cut: bool) -> list[Item]:
    """A conversation's items, oldest first: all, or those that MAX_BYTES and MAX_ITEMS leave.

    cut: the oldest may be left out. Raises ProviderInvalidRequest if they would be and may not.
    """
    count, size = connection.execute(_TOTAL, {"id": conversation}).one()
    if not cut:
        check_size(conversation, count, size, "conversation")
    bounds = {"id": conversation, "most_bytes": MAX_BYTES, "most_items": MAX_ITEMS}
    return [decode(item) for item in connection.execute(_NEWEST, bounds).scalars()]


def check_size(id: str, count: int, size: int, param: str) -> None:
    """Raises ProviderInvalidRequest."""
    if size > MAX_BYTES or count > MAX_ITEMS:
        message = (
            f"{param}: {id} has {count} items of {size} bytes; a model is shown {MAX_ITEMS} of {MAX_BYTES} bytes at "
            "most: send truncation: auto, which leaves out the oldest"
        )
        raise ProviderInvalidRequest(message, code="conversation_too_large", param=param)


def page(connection: Connection, whose: Whose, id: str, asked: Paging) -> Page:
    """Raises ProviderInvalidRequest if there is no item `after`."""
    after = None
    if asked.after is not None and (after := find(connection, whose, id, asked.after)) is None:
        raise ProviderInvalidRequest(f"after: there is no item {asked.after!r}", param="after")
    start = {} if after is None else {**after._mapping}
    query = _page(whose, begins=after is None, ascending=asked.ascending)
    values = {**start, "of": id, "outputs": OUTPUTS, "most": asked.limit + 1}
    keys = connection.execute(query, values).all()
    items: list[Item] = []
    size = 0
    for key in keys[: asked.limit]:
        size += key.size
        if items and size > PAGE_BYTES:
            break
        items.append(item(connection, key))
    return Page(items, len(keys) > len(items))


def find(connection: Connection, whose: Whose, of: str, id: str) -> Row[Any] | None:
    """Where the item is; the newest, if several have the id."""
    values = {"of": of, "id": id, "outputs": OUTPUTS}
    return connection.execute(_FIND[whose], values).first()


def item(connection: Connection, key: Row[Any]) -> Item:
    """key: of `find`."""
    values = {"response": key.response, "place": key.place}
    found: Item = decode(connection.execute(_ITEM, values).scalar_one())
    return found


def named(connection: Connection, ids: Collection[str], owner: Mapping[str, str]) -> dict[str, Item]:
    """An owner's items that have these ids; the newest, if several have the same.

    Raises ProviderInvalidRequest if they are more than a model may be shown.
    """
    keys: list[Row[Any]] = []
    if len(ids) <= MAX_ITEMS:
        wanted = [*ids]
        for begin in range(0, len(wanted), AT_ONCE):
            keys += connection.execute(_NAMED, {**owner, "ids": wanted[begin : begin + AT_ONCE]}).all()
    size = sum(key.size for key in keys)
    if len(ids) > MAX_ITEMS or size > MAX_BYTES:
        message = f"input: a model is shown {MAX_ITEMS} stored items of {MAX_BYTES} bytes at most: refer to fewer"
        raise ProviderInvalidRequest(message, code="conversation_too_large", param="input")
    return {key.id: item(connection, key) for key in keys}


def known(connection: Connection, conversation: str, ids: Collection[str]) -> set[str]:
    """Those of the ids that items of the conversation have."""
    return {*connection.execute(_KNOWN, {"of": conversation, "ids": [*ids]}).scalars()} if ids else set()


def remove(connection: Connection, key: Row[Any]) -> None:
    connection.execute(_REMOVE, {"response": key.response, "place": key.place})


_ADD = text(
    "INSERT INTO response_items (response, place, id, size, item) VALUES (:response, :place, :id, :size, :item)"
)
_NEXT = text("SELECT coalesce(max(place), -1) + 1 FROM response_items WHERE response = :response")
_DELETE_OUTPUTS = text("DELETE FROM response_items WHERE response = :response AND place >= :outputs")
_GIVEN = text("SELECT item FROM response_items WHERE response = :response AND place < :outputs ORDER BY place")
_MEASURE_GIVEN = text(
    "SELECT count(*), coalesce(sum(size), 0) FROM response_items WHERE response = :response AND place < :outputs"
)
_ITEM = text("SELECT item FROM response_items WHERE response = :response AND place = :place")
_REMOVE = text("DELETE FROM response_items WHERE response = :response AND place = :place")
_TOTAL = text(
    "SELECT count(*), coalesce(sum(i.size), 0) FROM responses r JOIN response_items i ON i.response = r.id "
    "WHERE r.conversation = :id"
)

_WHOSE: dict[Whose, str] = {
    "conversation": "r.conversation = :of",
    "response": "i.response = :of AND i.place < :outputs",
}
_FROM = "FROM responses r JOIN response_items i ON i.response = r.id"
_PLACE = ("r.turn", "r.created_at", "i.response", "i.place")
"""The order of items."""


def _ordered(direction: str) -> str:
    return ", ".join(f"{column} {direction}" for column in _PLACE)


_NEWEST = text(
    "SELECT i.item FROM (SELECT i.response, i.place, r.turn, r.created_at, "  # noqa: S608 - made of the texts above
    f"sum(i.size) OVER (ORDER BY {_ordered('DESC')} ROWS UNBOUNDED PRECEDING) AS so_far, "
    f"row_number() OVER (ORDER BY {_ordered('DESC')}) AS number "
    f"{_FROM} WHERE r.conversation = :id) r JOIN response_items i ON i.response = r.response AND i.place = r.place "
    f"WHERE r.so_far <= :most_bytes AND r.number <= :most_items ORDER BY {_ordered('ASC')}"
)
_FIND = {
    whose: text(
        f"SELECT r.turn, r.created_at, i.response, i.place {_FROM} WHERE {which} AND i.id = :id "
        f"ORDER BY {_ordered('DESC')} LIMIT 1"
    )
    for whose, which in _WHOSE.items()
}
_KNOWN = text(f"SELECT DISTINCT i.id {_FROM} WHERE r.conversation = :of AND i.id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)

_NAMED = text(
    "SELECT id, response, place, size FROM (SELECT i.id, i.response, i.place, i.size, "  # noqa: S608 - made of the texts above
    f"row_number() OVER (PARTITION BY i.id ORDER BY {_ordered('DESC')}) AS number "
    f"{_FROM} WHERE r.tenant = :tenant AND r.owner = :owner AND i.id IN :ids) found WHERE number = 1"
).bindparams(bindparam("ids", expanding=True))


def _page(whose: Whose, *, begins: bool, ascending: bool) -> Any:
    direction, comes = ("ASC", ">") if ascending else ("DESC", "<")
    behind = f" AND ({', '.join(_PLACE)}) {comes} (:turn, :created_at, :response, :place)" if not begins else ""
    return text(
        f"SELECT i.response, i.place, i.size {_FROM} WHERE {_WHOSE[whose]}{behind} "
        f"ORDER BY {_ordered(direction)} LIMIT :most"
    )

"""A tenant's models and records: JSON objects in the store, checked against the JSON Schema of their model.

A record is a flat object: `{"id", "created_at", "updated_at", "trashed_at"?, ...its own fields}`; times are UTC.
Deleted records are in the trash: they count towards the quota, and only a query that asks for them finds them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, not_, select, text
from sqlalchemy.exc import OperationalError

from gateway.errors import ProviderInvalidRequest
from gateway.features.agents.tools.base import ToolError
from gateway.features.agents.tools.query import SYSTEM, Aggregates, Builder, Query
from gateway.features.agents.tools.tables import filters, models, records
from gateway.schema.checker import threads
from gateway.schema.jsontext import dump_json
from gateway.schema.objects import ObjectSchema
from gateway.store import Store

T = TypeVar("T")

MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
FILTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LONGEST_SCHEMA, MAX_MODELS, MAX_FILTERS = 256 * 1024, 200, 200
DEEPEST = 32
QUERY_SECONDS = 5
WAIT_SECONDS = 30
"""How long a query waits for others of its tenant."""
TRIES = 3
"""How often to try an update that conflicts with others."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """A model whose records another part keeps, and which can only be read.

    rows: dialect and tenant → a query with the columns of `tables.records`.
    """

    model: Model
    rows: Callable[[str, str], Select[Any]]


@dataclass(frozen=True, slots=True)
class Page:
    records: list[dict[str, Any]]
    more: bool
    """Whether more records follow."""


class Records:
    """The models and records of one tenant, and of no other. Methods raise ToolError."""

    def __init__(
        self, store: Store, tenant: str, *, maximum: int, longest: int, views: Mapping[str, View] | None = None
    ) -> None:
        """maximum: number of records, including the trash. longest: bytes of a record as JSON. views: name → view; a
        model that the tenant has defined under that name takes its place.
        """
        self._store = store
        self._tenant = tenant
        self._maximum = maximum
        self._longest = longest
        self._views = views or {}

    async def define(self, name: str, schema: Mapping[str, Any], description: str = "") -> Model:
        """Creates a model, or replaces the schema of an existing one; its records stay as they are.

        The schema comes from the operator. Its patterns run on text that models write.
        """
        if not MODEL_NAME.fullmatch(name):
            raise ToolError("invalid_model", "a model's name has letters, digits, _ and -, and starts with a letter")
        try:
            checked = await threads.run(_object_schema, schema)
        except ProviderInvalidRequest as error:
            raise ToolError("invalid_model", error.message) from None
        for field in SYSTEM:
            if field in schema.get("properties", {}):
                raise ToolError("invalid_model", f"the schema can't define {field}: every record has it")
        now = _now()
        values = {"description": description, "schema": checked.text, "updated_at": now}

        def work(connection: Connection) -> None:
            if connection.execute(
                models.update().where(*self._of(models), models.c.name == name).values(values)
            ).rowcount:
                return
            if name in self._views:
                raise _read_only(name)
            if connection.execute(select(func.count()).where(*self._of(models))).scalar_one() >= MAX_MODELS:
                raise ToolError("quota_exceeded", f"a tenant may have at most {MAX_MODELS} models")
            connection.execute(models.insert().values(tenant=self._tenant, name=name, created_at=now, **values))

        await self._store.write(work)
        return Model(name, description, json.loads(checked.text))

    async def models(self) -> list[Model]:
        rows = await self._read(
            lambda c: c.execute(select(models).where(*self._of(models)).order_by(models.c.name)).all()
        )
        found = {name: view.model for name, view in self._views.items()}
        found |= {row.name: Model(row.name, row.description, json.loads(row.schema)) for row in rows}
        return [found[name] for name in sorted(found)]

    async def model(self, name: str) -> Model:
        """Raises ToolError, code `model_not_found`, with the names of the tenant's models."""
        return await self._read(lambda connection: self._model(connection, name))

    async def save_filter(self, model: str, name: str, query: Mapping[str, Any]) -> None:
        """Saves a query of `find` under a name. Replaces an earlier one."""
        if not FILTER_NAME.fullmatch(name):
            raise ToolError("invalid_filter", "a filter's name has letters, digits and . _ -")
        Builder(self._store.dialect).query(query)
        written = json.dumps(query)
        key = and_(*self._of(filters), filters.c.model == model, filters.c.name == name)

        def work(connection: Connection) -> None:
            self._model(connection, model)
            if connection.execute(filters.update().where(key).values(query=written)).rowcount:
                return
            if connection.execute(select(func.count()).where(*self._of(filters))).scalar_one() >= MAX_FILTERS:
                raise ToolError("quota_exceeded", f"a tenant may have at most {MAX_FILTERS} saved filters")
            connection.execute(filters.insert().values(tenant=self._tenant, model=model, name=name, query=written))

        await self._store.write(work)

    async def filter(self, model: str, name: str) -> dict[str, Any]:
        """Raises ToolError, code `filter_not_found`."""

        def work(connection: Connection) -> str:
            self._model(connection, model)
            query = select(filters.c.name, filters.c.query).where(*self._of(filters), filters.c.model == model)
            saved = {row.name: row.query for row in connection.execute(query.order_by(filters.c.name))}
            if name not in saved:
                raise ToolError("filter_not_found", f"{model} has no such filter; it has: {', '.join(saved) or 'none'}")
            return str(saved[name])

        query: dict[str, Any] = json.loads(await self._read(work))
        return query

    async def create(self, model: str, record: Mapping[str, Any]) -> dict[str, Any]:
        data = await self._checked(await self.model(model), record)
        now = _now()
        row = {"id": str(uuid.uuid4()), "created_at": now, "updated_at": now}

        def work(connection: Connection) -> None:
            if self._view(connection, model) is not None:
                raise _read_only(model)
            if connection.execute(select(func.count()).where(*self._of(records))).scalar_one() >= self._maximum:
                raise ToolError("quota_exceeded", f"a tenant may have at most {self._maximum} records, trash included")
            connection.execute(records.insert().values(tenant=self._tenant, model=model, version=1, data=data, **row))

        await self._store.write(work)
        return {**row, **data}

    async def get(self, model: str, id: str) -> dict[str, Any]:
        return _shown((await self._row(model, id))[1])

    async def find(self, model: str, query: Mapping[str, Any]) -> Page:
        """Finds records by a query (see `query`), by default in the order of their creation."""

        def work(connection: Connection) -> Page:  # beside the event loop: to build a query takes a while, too
            return self._find(connection, model, Builder(self._store.dialect).query(query))

        return await self._read(work)

    async def aggregate(self, model: str, query: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
        """One object per group, with its fields and results; and whether there are more than `limit` groups."""

        def work(connection: Connection) -> tuple[list[dict[str, Any]], int]:
            builder = Builder(self._store.dialect)
            built = builder.aggregates(query)
            return self._aggregate(connection, model, builder, built), built.limit

        rows, maximum = await self._read(work)
        return rows[:maximum], len(rows) > maximum

    async def update(self, model: str, id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces these fields. The others stay."""
        for _ in range(TRIES):
            kind, row = await self._row(model, id)
            data = await self._checked(kind, {**row.data, **changes})
            now = _now()
            values = {"data": data, "updated_at": now, "version": row.version + 1}
            if await self._change(model, id, row.version, values):
                return {"id": row.id, "created_at": row.created_at, "updated_at": now, **data}
        raise ToolError("conflict", "other writers keep changing this record; try again")

    async def delete(self, model: str, id: str) -> None:
        """Moves the record to the trash."""
        for _ in range(TRIES):
            _, row = await self._row(model, id)
            if await self._change(model, id, row.version, {"trashed_at": _now(), "version": row.version + 1}):
                return
        raise ToolError("conflict", "other writers keep changing this record; try again")

    def _of(self, table: Any) -> list[ColumnElement[bool]]:
        return [table.c.tenant == self._tenant]

    def _one(self, model: str, id: str) -> list[ColumnElement[bool]]:
        return [*self._of(records), records.c.model == model, records.c.id == id, records.c.trashed_at.is_(None)]

    async def _row(self, model: str, id: str) -> tuple[Model, Any]:
        def work(connection: Connection) -> tuple[Model, Any]:
            kind = self._model(connection, model)
            row = connection.execute(
                self._of_view(connection, model, select(records).where(*self._one(model, id)))
            ).one_or_none()
            if row is None:
                raise ToolError("record_not_found", f"{model} has no record with this id")
            return kind, row

        return await self._read(work)

    async def _change(self, model: str, id: str, version: int, values: dict[str, Any]) -> bool:
        """Changes the record; False if it no longer has that version."""
        change = records.update().where(*self._one(model, id), records.c.version == version).values(values)

        def work(connection: Connection) -> bool:
            if self._view(connection, model) is not None:
                raise _read_only(model)
            return connection.execute(change).rowcount == 1

        return await self._store.write(work)

    def _model(self, connection: Connection, name: str) -> Model:
        if (view := self._view(connection, name)) is not None:
            return view.model
        row = connection.execute(select(models).where(*self._of(models), models.c.name == name)).one_or_none()
        if row is None:
            own = connection.execute(select(models.c.name).where(*self._of(models))).scalars()
            known = sorted({*own, *self._views})
            raise ToolError("model_not_found", f"no such model; there are: {', '.join(known) or 'none'}")
        return Model(row.name, row.description, json.loads(row.schema))

    def _view(self, connection: Connection, name: str) -> View | None:
        """None for a model of the tenant's own."""
        view = self._views.get(name)
        if view is None:
            return None
        own = select(models.c.name).where(*self._of(models), models.c.name == name)
        return None if connection.execute(own).first() is not None else view

    def _of_view(self, connection: Connection, model: str, query: Select[Any]) -> Select[Any]:
        """The query of records, of which those of a view stand in a common table in place of the table."""
        view = self._view(connection, model)
        if view is None:
            return query
        return query.add_cte(view.rows(self._store.dialect, self._tenant).cte(records.name))

    async def _checked(self, model: Model, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record as it is stored. Runs in a thread of the schemas', since a check may take long."""
        return await threads.run(self._check, model, record)

    def _check(self, model: Model, record: Mapping[str, Any]) -> dict[str, Any]:
        for field in SYSTEM:
            if field in record:
                raise ToolError("invalid_record", f"the gateway sets {field}")
        data: dict[str, Any] = _plain(dict(record), 0)
        if len(json.dumps(data, ensure_ascii=False).encode()) > self._longest:
            raise ToolError("too_large", f"a record may have at most {self._longest} bytes")
        try:
            violation = ObjectSchema(model.schema, "schema").violation(data)
        except ProviderInvalidRequest as error:
            violation = error.message
        if violation is not None:
            raise ToolError("invalid_record", violation)
        return data

    def _find(self, connection: Connection, model: str, query: Query) -> Page:
        self._model(connection, model)
        chosen = select(records).where(*self._of(records), records.c.model == model, query.where)
        ordered = chosen.order_by(*query.order, records.c.seq).limit(query.limit + 1).offset(query.offset)
        rows = [_shown(row) for row in connection.execute(self._of_view(connection, model, ordered))]
        found = rows[: query.limit]
        if query.select is not None:
            found = [_selected(record, query.select) for record in found]
        return Page(found, len(rows) > query.limit)

    def _aggregate(
        self, connection: Connection, model: str, builder: Builder, query: Aggregates
    ) -> list[dict[str, Any]]:
        self._model(connection, model)
        # An inner query names the values, so that they can be grouped: repeated parameters would count as different.
        columns: dict[str, ColumnElement[Any]] = {
            # null and a field that isn't there are one group, as they are one to a condition.
            f"g{at}": case((not_(field.missing), field.json))
            for at, field in enumerate(map(builder.field, query.group_by))
        }
        for at, (_, name) in enumerate(query.functions.values()):
            if name != "*":
                field = builder.field(name)
                columns |= {
                    f"n{at}": field.number,
                    f"t{at}": field.text,
                    f"j{at}": case((not_(field.missing), field.json)),
                }
        columns["seq"] = records.c.seq
        inner = (
            select(*(column.label(label) for label, column in columns.items()))
            .where(*self._of(records), records.c.model == model, query.where)
            .subquery()
        )
        wanted: list[ColumnElement[Any]] = [inner.c[f"g{at}"] for at in range(len(query.group_by))]
        for at, (function, name) in enumerate(query.functions.values()):
            wanted += [column.label(f"r{at}_{part}") for part, column in _calls(function, name, inner.c, at).items()]
        statement: Select[Any] = select(*wanted).select_from(inner)
        if query.group_by:
            statement = statement.group_by(*wanted[: len(query.group_by)])
        results = []
        for row in connection.execute(self._of_view(connection, model, statement)).mappings():
            result = {name: _restored(_number(row[f"g{at}"])) for at, name in enumerate(query.group_by)}
            for at, alias in enumerate(query.functions):
                values = [row[key] for key in row if str(key).startswith(f"r{at}_")]
                result[alias] = _number(next((value for value in values if value is not None), None))
            results.append(result)
        results.sort(key=lambda result: [_rank(result[name]) for name in query.group_by])
        for name, descends in reversed(query.order):
            # Missing values come last in either direction.
            results.sort(key=lambda result: _rank(result[name]), reverse=descends)
            results.sort(key=lambda result: _rank(result[name])[0])
        return results

    async def _read(self, work: Callable[[Connection], T]) -> T:
        """One query of a tenant at a time: the store has a few readers, for all tenants and all else that it keeps."""
        lines = _lines.setdefault(self._store, WeakValueDictionary())
        line = lines.setdefault(self._tenant, asyncio.Lock())
        try:
            await asyncio.wait_for(line.acquire(), WAIT_SECONDS)
        except TimeoutError:
            raise ToolError("query_timeout", f"other queries of this tenant took more than {WAIT_SECONDS} s") from None
        reading = asyncio.ensure_future(self._store.read(lambda connection: bounded(connection, work)))

        def done(read: asyncio.Future[T]) -> None:
            line.release()
            if not read.cancelled():
                read.exception()  # whoever asked may have left

        reading.add_done_callback(done)
        return await asyncio.shield(reading)  # a query goes on without the one who asked


_lines: WeakKeyDictionary[Store, WeakValueDictionary[str, asyncio.Lock]] = WeakKeyDictionary()
"""Of each store: tenant → what its queries wait for; nothing of a tenant without one."""


def _object_schema(schema: Mapping[str, Any]) -> ObjectSchema:
    """Looks at its length first: to check a schema takes much longer than to read it."""
    with suppress(ValueError):  # which the check explains
        if len(dump_json(schema)) > LONGEST_SCHEMA:
            raise ToolError("too_large", f"the schema has more than {LONGEST_SCHEMA} characters")
    return ObjectSchema(schema, "schema")


def bounded(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Runs a query, for QUERY_SECONDS at most."""
    raw = connection.connection.driver_connection
    if isinstance(raw, sqlite3.Connection):
        deadline = time.monotonic() + QUERY_SECONDS
        raw.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    else:
        connection.execute(text(f"SET LOCAL statement_timeout = {QUERY_SECONDS * 1000}"))
    try:
        # SQLAlchemy keeps what 500 statements became; those of queries differ, and may take megabytes.
        return work(connection.execution_options(compiled_cache=None))
    except OperationalError as error:
        if "interrupt" in str(error.orig) or "statement timeout" in str(error.orig):
            raise ToolError("query_timeout", f"the query took more than {QUERY_SECONDS} s") from None
        raise
    finally:
        if isinstance(raw, sqlite3.Connection):
            raw.set_progress_handler(None, 0)


def _read_only(model: str) -> ToolError:
    return ToolError("read_only", f"the gateway keeps {model} itself: its records can only be read")


def _calls(function: str, name: str, columns: Any, at: int) -> dict[str, ColumnElement[Any]]:
    """The aggregate as SQL expressions. The first one that isn't NULL is the result."""
    if name == "*":
        return {"all": func.count()}
    numbers, texts, values = columns[f"n{at}"], columns[f"t{at}"], columns[f"j{at}"]
    match function:
        case "$count":
            return {"all": func.count(values)}
        case "$distinct":
            return {"all": func.count(values.distinct())}
        case "$sum":
            return {"number": func.coalesce(func.sum(numbers), 0)}
        case "$avg":
            return {"number": func.avg(numbers)}
        case "$min":
            return {"number": func.min(numbers), "text": func.min(texts)}
        case _:
            return {"number": func.max(numbers), "text": func.max(texts)}


def _rank(value: Any) -> tuple[int, Any]:
    """A sort key: numbers, texts, booleans, the rest, missing values."""
    if isinstance(value, bool):
        return 2, value
    if isinstance(value, int | float):
        return 0, value
    if isinstance(value, str):
        return 1, value
    return (4, "") if value is None else (3, json.dumps(value, sort_keys=True))


def _shown(row: Any) -> dict[str, Any]:
    shown = {"id": row.id, "created_at": row.created_at, "updated_at": row.updated_at}
    if row.trashed_at is not None:
        shown["trashed_at"] = row.trashed_at
    return {**shown, **_restored(row.data)}


def _restored(value: Any) -> Any:
    """Turns huge integers back to floats: PostgreSQL writes 1e300 with all its digits."""
    if isinstance(value, dict):
        return {key: _restored(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner) for inner in value]
    return float(value) if isinstance(value, int) and abs(value) >= 2**63 else value


def _selected(record: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The id and the named fields. A nested field has its dotted name."""
    found = {"id": record["id"]}
    for name in names:
        value: Any = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        found[name] = value
    return found


def _plain(value: Any, depth: int) -> Any:
    """The value in the form that both databases preserve: 1.0 becomes 1."""
    if depth > DEEPEST:
        raise ToolError("invalid_record", f"the record is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        return {_plain(key, depth): _plain(value[key], depth + 1) for key in sorted(value)}
    if isinstance(value, list):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ToolError("invalid_record", "a text can't contain NUL or a lone surrogate")
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        raise ToolError("invalid_record", "a whole number has at most 63 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolError("invalid_record", "a number must be finite")
    return _number(value)


def _number(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

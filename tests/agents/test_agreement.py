"""SQLite and PostgreSQL give the same answers to any query over any records."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.features.agents.tools.base import ToolError
from gateway.features.agents.tools.query import OPERATORS
from gateway.features.agents.tools.records import Records
from gateway.store import Store
from tests.store.postgresql import Server

TEXT = st.text(st.sampled_from("abAB é%_*[\\'\"01"), max_size=4)
SCALAR = st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.5, 1e300, -1.5]) | TEXT
VALUE = SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(st.sampled_from("xy"), SCALAR, max_size=2)
RECORD = st.dictionaries(st.sampled_from("abc"), VALUE, max_size=3)
FIELD = st.sampled_from(["a", "b", "c", "a.x", "b.y", "d", "trashed_at"])
CONDITION = SCALAR | st.dictionaries(
    st.sampled_from(OPERATORS), SCALAR | st.lists(SCALAR, max_size=3) | TEXT, min_size=1, max_size=2
)
WHERE = st.recursive(
    st.dictionaries(FIELD, CONDITION, max_size=2),
    lambda inner: st.lists(inner, min_size=1, max_size=2).flatmap(
        lambda parts: st.sampled_from([{"$and": parts}, {"$or": parts}, {"$not": parts[0]}])
    ),
    max_leaves=3,
)
QUERY = st.fixed_dictionaries(
    {"where": WHERE},
    optional={
        "order": st.lists(st.tuples(FIELD, st.sampled_from(["asc", "desc"])).map(" ".join), max_size=2),
        "trashed": st.sampled_from(["exclude", "include", "only"]),
    },
)
AGGREGATE = st.fixed_dictionaries(
    {},
    optional={
        "where": WHERE,
        "group_by": st.lists(st.sampled_from(["a", "b", "a.x"]), max_size=2, unique=True),
        "aggregate": st.dictionaries(
            st.sampled_from(["p", "q"]),
            st.tuples(st.sampled_from(["$count", "$sum", "$min", "$max", "$distinct"]), FIELD).map(
                lambda c: {c[0]: c[1]}
            ),
            min_size=1,
        ),
    },
)


@pytest.fixture
async def two(store: Store, postgresql: Server, tmp_path: Path) -> AsyncIterator[list[Store]]:
    other = await Store.open(postgresql.database())
    assert {store.dialect, other.dialect} == {"sqlite", "postgresql"}
    yield [store, other]
    await other.aclose()


async def answer(records: Records, queries: list[dict[str, Any]], aggregates: list[dict[str, Any]]) -> list[str]:
    """What each query gives, without what is made anew for each record."""
    told = []
    for query in queries:
        try:
            found = (await records.find("m", query)).records
            made = ("id", "created_at", "updated_at", "trashed_at")
            told.append(json.dumps([{k: v for k, v in r.items() if k not in made} for r in found], sort_keys=True))
        except ToolError as error:
            told.append(f"{error.code} {error.message}")
    for query in aggregates:
        try:
            told.append(json.dumps((await records.aggregate("m", query))[0], sort_keys=True))
        except ToolError as error:
            told.append(f"{error.code} {error.message}")
    return told


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    data=st.lists(RECORD, max_size=6),
    trashed=st.integers(0, 2),
    queries=st.lists(QUERY, min_size=3, max_size=6),
    aggregates=st.lists(AGGREGATE, min_size=1, max_size=3),
)
async def test_both_databases_agree(
    two: list[Store],
    data: list[dict[str, Any]],
    trashed: int,
    queries: list[dict[str, Any]],
    aggregates: list[dict[str, Any]],
) -> None:
    # Every example has a tenant of its own in the same two stores.
    tenant = str(uuid.uuid4())
    answers = []
    for store in two:
        records = Records(store, tenant, maximum=1000, longest=10_000)
        await records.define("m", {"type": "object"})
        made = [await records.create("m", {"seen": at, **record}) for at, record in enumerate(data)]
        for record in made[:trashed]:
            await records.delete("m", record["id"])
        answers.append(await answer(records, queries, aggregates))
    assert answers[0] == answers[1]

"""Models and records through the tools: the same on SQLite and PostgreSQL, and each tenant's own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text

from gateway.features.agents.tools.base import ToolError
from gateway.features.agents.tools.query import OPERATORS
from gateway.features.agents.tools.records import QUERY_SECONDS, bounded
from gateway.features.agents.tools.tables import filters, models, records
from gateway.features.rooms.views import VIEWS as UNSORTED
from tests.agents.conftest import Room
from tests.patience import PATIENCE

VIEWS = {name: UNSORTED[name] for name in sorted(UNSORTED)}
"""The models that are always there."""

pytestmark = pytest.mark.usefixtures("both")

Make = Callable[..., Room]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["number", "string", "null"]},
        "ok": {"type": "boolean"},
        "tags": {"type": "array"},
        "at": {"type": "object"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
PEOPLE: list[dict[str, Any]] = [
    {"name": "Ann", "age": 30, "ok": True, "tags": ["x", 1, True], "at": {"city": "Köln", "no": 1.0}},
    {"name": "bob", "age": 25.5, "ok": False, "tags": [], "at": {"city": "Ulm"}},
    {"name": "Cy", "age": "old", "tags": ["x"]},
    {"name": "Dé*[_", "age": None, "tags": ["y", "1"]},
    {"name": "é%", "at": {"no": 2}},
]


async def people(room: Room) -> list[str]:
    """The ids, in the order of PEOPLE."""
    await room.records.define("person", SCHEMA, "People we know.")
    made = [await room.run("data.create", model="person", record=person) for person in PEOPLE]
    return [result["id"] for result in made]


async def found(room: Room, query: dict[str, Any]) -> list[str]:
    result = await room.run("find.records", model="person", query=query)
    return [record["name"] for record in result["records"]]


WHERE: list[tuple[dict[str, Any], str]] = [
    # names differ in their first letters
    ({}, "A b C D é"),
    ({"name": "Ann"}, "A"),
    ({"name": "ann"}, ""),
    ({"age": 30}, "A"),
    ({"age": 30.0}, "A"),
    ({"age": "30"}, ""),
    ({"age": None}, "D é"),
    ({"ok": True}, "A"),
    ({"ok": False}, "b"),
    ({"ok": 1}, ""),
    ({"age": True}, ""),
    ({"at.city": "Köln"}, "A"),
    ({"at.no": 1}, "A"),
    ({"at.city.x": None}, "A b C D é"),
    ({"none": None}, "A b C D é"),
    ({"age": {"$ne": 30}}, "b C D é"),
    ({"ok": {"$ne": True}}, "b C D é"),
    ({"age": {"$gt": 25.5}}, "A"),
    ({"age": {"$gte": 25.5}}, "A b"),
    ({"age": {"$lt": 30}}, "b"),
    ({"age": {"$lte": 30, "$gt": 26}}, "A"),
    ({"age": {"$gte": "a"}}, "C"),
    ({"name": {"$gt": "D"}}, "b D é"),
    ({"name": {"$between": ["B", "bob"]}}, "b C D"),
    ({"age": {"$between": [25, 29]}}, "b"),
    ({"age": {"$in": [30, "old", None]}}, "A C D é"),
    ({"age": {"$in": []}}, ""),
    ({"age": {"$nin": [30, "old"]}}, "b D é"),
    ({"name": {"$like": "%n%"}}, "A"),
    ({"name": {"$like": "A__"}}, "A"),
    ({"name": {"$like": "a%"}}, ""),
    ({"name": {"$like": "%*[_"}}, "D"),
    ({"name": {"$like": "%\\%"}}, "é"),
    ({"name": {"$like": "%\\_"}}, "D"),
    ({"name": {"$like": "%\\b%"}}, "b"),
    ({"name": {"$nlike": "%n"}}, "b C D é"),
    ({"age": {"$nlike": "o%"}}, "A b D é"),
    ({"name": {"$ilike": "a%"}}, "A"),
    ({"name": {"$ilike": "B%"}}, "b"),
    ({"name": {"$ilike": "É%"}}, ""),
    ({"name": {"$nilike": "A%"}}, "b C D é"),
    ({"age": {"$exists": True}}, "A b C D"),
    ({"age": {"$exists": False}}, "é"),
    ({"age": {"$null": True}}, "D é"),
    ({"age": {"$null": False}}, "A b C"),
    ({"tags": {"$contains": "x"}}, "A C"),
    ({"tags": {"$contains": 1}}, "A"),
    ({"tags": {"$contains": "1"}}, "D"),
    ({"tags": {"$contains": True}}, "A"),
    ({"name": {"$contains": "Ann"}}, ""),
    ({"tags": {"$any": ["y", 1]}}, "A D"),
    ({"tags": {"$any": []}}, ""),
    ({"tags": {"$all": ["x", True]}}, "A"),
    ({"tags": {"$all": []}}, "A b C D é"),
    ({"tags": {"$size": 0}}, "b"),
    ({"tags": {"$size": 2}}, "D"),
    ({"$or": [{"name": "Ann"}, {"age": "old"}]}, "A C"),
    ({"$and": [{"tags": {"$contains": "x"}}, {"ok": True}]}, "A"),
    ({"$not": {"age": {"$gt": 20}}}, "C D é"),
    ({"$not": {"$or": [{"ok": True}, {"ok": False}]}}, "C D é"),
    ({"ok": True, "$or": [{"name": "bob"}]}, ""),
    ({"created_at": {"$gt": "2020"}, "trashed_at": None}, "A b C D é"),
    ({"created_at": {"$lt": "2020"}}, ""),
    ({"id": "none"}, ""),
    ({"name": "'; DROP TABLE records; --"}, ""),
]


async def test_conditions(room: Room) -> None:
    await people(room)
    for where, letters in WHERE:
        assert [name[0] for name in await found(room, {"where": where})] == letters.split(), where
    used = json.dumps([where for where, _ in WHERE])
    assert [operator for operator in OPERATORS if f'"{operator}"' not in used] == ["$eq"]


ORDER: list[tuple[list[str], str]] = [
    (["age"], "b A C D é"),
    (["age desc"], "A b C D é"),
    (["name asc"], "A C D b é"),
    (["name desc"], "é b D C A"),
    (["ok desc", "name desc"], "A b é D C"),
    (["at.no desc"], "é A b C D"),
    (["created_at desc"], "é D C b A"),
    (["none"], "A b C D é"),
]


async def test_order(room: Room) -> None:
    await people(room)
    for order, letters in ORDER:
        assert [name[0] for name in await found(room, {"order": order})] == letters.split(), order


async def test_pages_and_fields(room: Room) -> None:
    ids = await people(room)
    assert await room.run(
        "find.records", model="person", query={"order": ["name"], "limit": 2, "offset": 1, "select": ["at.city", "ok"]}
    ) == {
        "records": [{"id": ids[2], "at.city": None, "ok": None}, {"id": ids[3], "at.city": None, "ok": None}],
        "next_offset": 3,
    }
    first = await room.run("data.list", model="person", limit=3)
    rest = await room.run("data.list", model="person", limit=3, offset=first["next_offset"])
    assert [record["id"] for record in first["records"] + rest["records"]] == ids
    assert "next_offset" not in rest
    assert await room.run("data.list", model="person", offset=100) == {"records": []}


AGGREGATES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({}, [{"count": 5}]),
    ({"where": {"name": "nobody"}}, [{"count": 0}]),
    ({"aggregate": {"n": {"$count": "age"}, "d": {"$distinct": "tags"}}}, [{"n": 3, "d": 4}]),
    (
        {"aggregate": {"s": {"$sum": "age"}, "a": {"$avg": "age"}, "l": {"$min": "age"}, "h": {"$max": "age"}}},
        [{"s": 55.5, "a": 27.75, "l": 25.5, "h": 30}],
    ),
    (
        {"aggregate": {"s": {"$sum": "name"}, "l": {"$min": "name"}, "h": {"$max": "name"}}},
        [{"s": 0, "l": "Ann", "h": "é%"}],
    ),
    (
        {"group_by": ["ok"]},
        [{"ok": False, "count": 1}, {"ok": True, "count": 1}, {"ok": None, "count": 3}],
    ),
    (
        {"group_by": ["ok"], "aggregate": {"n": {"$count": "*"}}, "order": ["n desc", "ok"], "limit": 2},
        [{"ok": None, "n": 3}, {"ok": False, "n": 1}],
    ),
    ({"group_by": ["at.no"], "where": {"at.no": {"$gt": 0}}}, [{"at.no": 1, "count": 1}, {"at.no": 2, "count": 1}]),
    (
        {"group_by": ["at", "tags"], "where": {"name": "Ann"}},
        [{"at": {"city": "Köln", "no": 1}, "tags": ["x", 1, True], "count": 1}],
    ),
    ({"group_by": ["ok"], "where": {"name": "nobody"}}, []),
]


async def test_aggregates(room: Room) -> None:
    await people(room)
    for query, groups in AGGREGATES:
        result = await room.run("aggregate.query", model="person", query=query)
        assert result == {"groups": groups, "truncated": "limit" in query}, query


BAD_QUERIES: list[tuple[str, dict[str, Any], str]] = [
    ("find.records", {"wher": {}}, "query.wher: the keys are"),
    ("find.records", {"where": []}, "query.where: it must be an object"),
    ("find.records", {"where": {"a": {"$regex": "x"}}}, "query.where.a.$regex: the operators are"),
    ("find.records", {"where": {"a": {}}}, "it needs an operator"),
    ("find.records", {"where": {"a": {"b": 1}}}, "query.where.a.b: the operators are"),
    ("find.records", {"where": {"a": [1]}}, "must be a text, a number"),
    ("find.records", {"where": {"a": {"$gt": None}}}, "query.where.a.$gt"),
    ("find.records", {"where": {"a": {"$gt": True}}}, "a number or a text"),
    ("find.records", {"where": {"a": {"$between": [1]}}}, "a list of two"),
    ("find.records", {"where": {"a": {"$in": "x"}}}, "a list"),
    ("find.records", {"where": {"a": {"$in": [1] * 201}}}, "at most 200"),
    ("find.records", {"where": {"a": {"$like": "%a%a%a%a%"}}}, "at most 4 %"),
    ("find.records", {"where": {"a": {"$like": "a" * 257}}}, "at most 256"),
    ("find.records", {"where": {"a": {"$like": "a\\"}}}, "backslash"),
    ("find.records", {"where": {"a": {"$like": 1}}}, "must be text"),
    ("find.records", {"where": {"a": "x\0"}}, "must be a text"),
    ("find.records", {"where": {"a": 2**70}}, "must be a text"),
    ("find.records", {"where": {"a": {"$size": -1}}}, "whole number"),
    ("find.records", {"where": {"a": {"$exists": 1}}}, "true or false"),
    ("find.records", {"where": {"a'b": 1}}, "a field's name"),
    ("find.records", {"where": {'a"]': 1}}, "a field's name"),
    ("find.records", {"where": {"a..b": 1}}, "a field's name"),
    ("find.records", {"where": {"": 1}}, "a field's name"),
    ("find.records", {"where": {"$where": "1"}}, "$and, $or and $not"),
    ("find.records", {"where": {"$or": []}}, "empty"),
    ("find.records", {"where": {"$or": {}}}, "a list"),
    ("find.records", {"where": {f"a{n}": 1 for n in range(101)}}, "at most 100"),
    ("find.records", {"where": json.loads('{"$not":' * 9 + "{}" + "}" * 9)}, "8 levels deep"),
    ("find.records", {"order": ["a up"]}, "query.order"),
    ("find.records", {"order": [1]}, "query.order"),
    ("find.records", {"order": ["a"] * 6}, "at most 5"),
    ("find.records", {"select": "a"}, "query.select"),
    ("find.records", {"limit": 0}, "query.limit: it must be a whole number from 1 to 500"),
    ("find.records", {"limit": 501}, "query.limit"),
    ("find.records", {"limit": True}, "query.limit"),
    ("find.records", {"offset": -1}, "query.offset"),
    ("find.records", {"trashed": "yes"}, "query.trashed"),
    ("aggregate.query", {"select": ["a"]}, "query.select"),
    ("aggregate.query", {"aggregate": {}}, "query.aggregate"),
    ("aggregate.query", {"aggregate": {"n": {"$median": "a"}}}, "the functions are"),
    ("aggregate.query", {"aggregate": {"n": {"$sum": "*"}}}, "a field's name"),
    ("aggregate.query", {"aggregate": {"n; --": {"$sum": "a"}}}, "not a valid name"),
    ("aggregate.query", {"aggregate": {"a": {"$sum": "a"}}, "group_by": ["a"]}, "not a valid name"),
    ("aggregate.query", {"group_by": ["a"] * 6}, "at most 5"),
    ("aggregate.query", {"order": ["a"]}, "results can be ordered by: count"),
]


async def test_invalid_queries(room: Room) -> None:
    await people(room)
    for tool, query, told in BAD_QUERIES:
        error = (await room.run(tool, model="person", query=query)).get("error", {})
        assert error.get("code") == "invalid_query", query
        assert told in error["message"], query


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["name", "age", "ok", "tags", "at", "at.city", "created_at", "id", "trashed_at", "x"])
QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "where": st.dictionaries(
            FIELDS, VALUES | st.dictionaries(st.sampled_from(OPERATORS), VALUES, max_size=2), max_size=3
        ),
        "order": st.lists(FIELDS, max_size=3),
        "select": st.lists(FIELDS, max_size=3),
        "trashed": st.sampled_from(["exclude", "include", "only"]),
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(query=QUERIES)
async def test_any_query_has_an_answer(room: Room, query: dict[str, Any]) -> None:
    """Records, or an error that says where the query is wrong; never one of the database."""
    if "person" not in [model.name for model in await room.records.models()]:
        await people(room)
    for model in ("room_messages", "person"):
        result = await room.run("find.records", model=model, query=query)
        assert "records" in result or result["error"]["code"] == "invalid_query"
    groups = await room.run(
        "aggregate.query", model="person", query={"where": query.get("where", {}), "group_by": ["age"]}
    )
    assert ("groups" in groups) == (
        "records" in await room.run("find.records", model="person", query={"where": query.get("where", {})})
    )


async def test_records_come_and_go(room: Room) -> None:
    ids = await people(room)
    id = ids[0]
    record = (await room.run("data.get", model="person", id=id))["record"]
    assert {key: record[key] for key in PEOPLE[0]} == {**PEOPLE[0], "at": {"city": "Köln", "no": 1}}
    assert record["created_at"] == record["updated_at"]

    updated = (await room.run("data.update", model="person", id=id, record={"age": 31, "at": {"no": 2}}))["record"]
    assert {**record, "age": 31, "at": {"no": 2}, "updated_at": updated["updated_at"]} == updated
    assert updated["updated_at"] > record["updated_at"]
    assert (await room.run("data.get", model="person", id=id))["record"] == updated

    assert await room.run("data.delete", model="person", id=id) == {"id": id, "trashed": True}
    for tool, more in (("data.get", {}), ("data.delete", {}), ("data.update", {"record": {"age": 1}})):
        assert await room.code(tool, model="person", id=id, **more) == "record_not_found"

    async def listed(**arguments: str) -> list[str]:
        return [record["id"] for record in (await room.run("data.list", model="person", **arguments))["records"]]

    assert await listed() == await listed(trashed="exclude") == ids[1:]
    assert await listed(trashed="include") == ids
    assert await listed(trashed="only") == [id]
    trash = (await room.run("data.list", model="person", trashed="only"))["records"]
    assert trash[0]["trashed_at"] > updated["updated_at"]
    assert await found(room, {"where": {"name": "Ann"}, "trashed": "only"}) == ["Ann"]
    count = await room.run("aggregate.query", model="person", query={"trashed": "include"})
    assert count["groups"] == [{"count": 5}]


async def test_records_are_checked(room: Room) -> None:
    ids = await people(room)
    bad: list[tuple[Any, str]] = [
        ({"age": 1}, "'name' is a required property"),
        ({"name": 1}, "/name: 1 is not of type 'string'"),
        ({"name": "x", "more": 1}, "'more' was unexpected"),
        ({"name": "x", "id": "mine"}, "the gateway sets id"),
        ({"name": "x", "trashed_at": None}, "sets trashed_at"),
        ({"name": "x\0"}, "NUL"),
        ({"name": "\ud800"}, "surrogate"),
        ({"name": "x", "at": {"\0": 1}}, "NUL"),
        ({"name": "x", "age": 2**63}, "63 bits"),
        ({"name": "x", "age": float("nan")}, "finite"),
        ({"name": "x", "tags": json.loads("[" * 40 + "]" * 40)}, "nested"),
    ]
    for record, told in bad:
        error = (await room.run("data.create", model="person", record=record)).get("error", {})
        assert error.get("code") == "invalid_record", record
        assert told in error["message"]
    assert await room.code("data.update", model="person", id=ids[0], record={"name": None}) == "invalid_record"
    assert await room.code("data.update", model="person", id=ids[0], record={"id": "x"}) == "invalid_record"
    assert await found(room, {}) == [person["name"] for person in PEOPLE]


async def test_what_is_written_is_read(room: Room) -> None:
    await room.records.define("any", {"type": "object"})
    value = {
        "text": "grüße \U0001f600 \u2028 ' \" \\ %",
        "numbers": [0, -1, 2**53, -(2**62), 0.1, 1e300, 5e-324, -0.5],
        "rest": [None, True, False, [], {}, {"a b": {"": []}}],
    }
    made = await room.run("data.create", model="any", record=value)
    record = (await room.run("data.get", model="any", id=made["id"]))["record"]
    assert {key: record[key] for key in value} == value


async def test_models_and_filters(room: Room) -> None:
    assert await room.run("describe.model_get", model="person") == {
        "error": {"code": "model_not_found", "message": f"no such model; there are: {', '.join(VIEWS)}"}
    }
    await people(room)
    assert await room.run("describe.model_get", model="person") == {
        **{"model": "person", "description": "People we know.", "schema": SCHEMA}
    }
    assert "there are: person" in (await room.run("data.list", model="persons"))["error"]["message"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("find.records", {"query": {}}),
        ("find.filter", {"target": "x"}),
        ("aggregate.query", {"query": {}}),
        ("data.get", {"id": "x"}),
        ("data.create", {"record": {}}),
        ("data.update", {"id": "x", "record": {}}),
        ("data.delete", {"id": "x"}),
    ]
    for tool, more in calls:
        assert await room.code(tool, model="none", **more) == "model_not_found"

    await room.records.save_filter("person", "old", {"where": {"age": {"$gte": 100}}})
    await room.records.save_filter("person", "old", {"where": {"age": {"$gte": 30}}, "select": ["name"]})
    result = await room.run("find.filter", model="person", target="old")
    assert [record["name"] for record in result["records"]] == ["Ann"]
    assert result["filter"] == {"where": {"age": {"$gte": 30}}, "select": ["name"]}
    assert await room.run("find.filter", model="person", target="new") == {
        "error": {"code": "filter_not_found", "message": "person has no such filter; it has: old"}
    }
    await room.records.define("person", {"type": "object"}, "Anybody.")
    assert (await room.run("describe.model_get", model="person"))["schema"] == {"type": "object"}
    assert [model.name for model in await room.records.models()] == ["person", *VIEWS]


async def test_models_that_can_t_be(room: Room) -> None:
    bad: list[tuple[str, Any, str]] = [
        ("", {"type": "object"}, "a model's name"),
        ("a b", {"type": "object"}, "a model's name"),
        ("x" * 65, {"type": "object"}, "a model's name"),
        ("m", {"type": "array"}, "object schema"),
        ("m", {"type": "object", "properties": {"a": {"type": "text"}}}, "not a valid JSON Schema"),
        ("m", {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}}, "leads nowhere"),
        ("m", {"type": "object", "properties": {"id": {}}}, "the schema can't define id"),
    ]
    for name, schema, told in bad:
        with pytest.raises(ToolError, match=told):
            await room.records.define(name, schema)
    await room.records.define("m", {"type": "object"})
    with pytest.raises(ToolError, match="filter's name"):
        await room.records.save_filter("m", "a b", {})
    with pytest.raises(ToolError, match=r"query\.x"):
        await room.records.save_filter("m", "a", {"x": 1})
    with pytest.raises(ToolError, match="no such model"):
        await room.records.save_filter("n", "a", {})


async def test_each_tenant_has_its_own(room: Room) -> None:
    ids = await people(room)
    await room.records.save_filter("person", "all", {})
    other = room.another("other", "room-1")
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("describe.model_get", {}, "model_not_found"),
        ("find.records", {"query": {"trashed": "include"}}, "model_not_found"),
        ("find.filter", {"target": "all"}, "model_not_found"),
        ("aggregate.query", {"query": {}}, "model_not_found"),
        ("data.get", {"id": ids[0]}, "model_not_found"),
        ("data.list", {}, "model_not_found"),
        ("data.create", {"record": {"name": "x"}}, "model_not_found"),
        ("data.update", {"id": ids[0], "record": {"name": "x"}}, "model_not_found"),
        ("data.delete", {"id": ids[0]}, "model_not_found"),
    ]
    for tool, arguments, code in calls:
        result = await other.run(tool, model="person", **arguments)
        assert result["error"]["code"] == code, tool
        assert "person" not in str(result), tool

    # With a model of the same name, its records are still another's.
    await other.records.define("person", {"type": "object"})
    mine = (await other.run("data.create", model="person", record={"name": "mine"}))["id"]
    assert await found(other, {"trashed": "include"}) == ["mine"]
    for where in ({"id": ids[0]}, {"$not": {"id": "x"}}, {"$or": [{"name": "Ann"}, {"name": {"$exists": True}}]}):
        assert set(await found(other, {"where": where, "trashed": "include"})) <= {"mine"}
    assert (await other.run("aggregate.query", model="person", query={}))["groups"] == [{"count": 1}]
    assert await other.code("find.filter", model="person", target="all") == "filter_not_found"
    for tool, more in (("data.get", {}), ("data.update", {"record": {"name": "x"}}), ("data.delete", {})):
        assert await other.code(tool, model="person", id=ids[0], **more) == "record_not_found"
        assert await room.code(tool, model="person", id=mine, **more) == "record_not_found"
    assert (await room.run("describe.model_get", model="person"))["schema"] == SCHEMA
    assert len(await found(room, {"trashed": "include"})) == 5


async def test_another_model_s_id_is_unknown(room: Room) -> None:
    ids = await people(room)
    await room.records.define("thing", {"type": "object"})
    calls: list[tuple[str, dict[str, Any]]] = [("data.get", {}), ("data.update", {"record": {}}), ("data.delete", {})]
    for tool, more in calls:
        assert await room.code(tool, model="thing", id=ids[0], **more) == "record_not_found"


async def test_quotas(make_room: Make) -> None:
    room = make_room(records_max_count=3, record_max_bytes=1024)
    await room.records.define("m", {"type": "object"})
    await room.records.define("n", {"type": "object"})
    assert await room.code("data.create", model="m", record={"a": "x" * 1024}) == "too_large"
    ids = [(await room.run("data.create", model=model, record={}))["id"] for model in ("m", "n", "m")]
    assert await room.code("data.create", model="m", record={}) == "quota_exceeded"
    assert await room.code("data.delete", model="m", id=ids[0]) is None
    assert await room.code("data.create", model="n", record={}) == "quota_exceeded"  # the trash counts
    assert await room.code("data.update", model="n", id=ids[1], record={"a": "x" * 1024}) == "too_large"
    assert await room.another("other", "room-1").records.model("rooms") == VIEWS["rooms"].model


async def test_null_and_nothing_are_one_group(room: Room) -> None:
    await room.records.define("m", {"type": "object"})
    for record in ({"a": None}, {}, {"b": 1}, {"a": 1}):
        await room.run("data.create", model="m", record=record)
    groups = await room.run("aggregate.query", model="m", query={"group_by": ["a"]})
    assert groups["groups"] == [{"a": 1, "count": 1}, {"a": None, "count": 3}]


async def test_results_are_bounded(make_room: Make) -> None:
    room = make_room(max_result_chars=1000)
    await room.records.define("m", {"type": "object"})
    ids = [(await room.run("data.create", model="m", record={"n": n, "text": "x" * 200}))["id"] for n in range(6)]
    page = await room.run("data.list", model="m")
    seen = [record["n"] for record in page["records"]]
    while "next_offset" in page:
        assert len(json.dumps(page)) < 1100
        page = await room.run("data.list", model="m", offset=page["next_offset"])
        seen += [record["n"] for record in page["records"]]
    assert seen == list(range(6))
    await room.run("data.update", model="m", id=ids[0], record={"text": "x" * 2000})
    assert await room.code("data.get", model="m", id=ids[0]) == "too_large"
    assert await room.code("data.list", model="m") == "too_large"
    result = await room.run("find.records", model="m", query={"select": ["n"], "limit": 1})
    assert result["records"] == [{"id": ids[0], "n": 0}]
    groups = await room.run("aggregate.query", model="m", query={"group_by": ["text", "n"]})
    assert groups["truncated"]
    assert len(json.dumps(groups)) < 1100


async def test_updates_at_once_lose_nothing(room: Room) -> None:
    await room.records.define("m", {"type": "object"})
    id = (await room.run("data.create", model="m", record={}))["id"]
    results = await asyncio.gather(*(room.run("data.update", model="m", id=id, record={f"f{n}": n}) for n in range(12)))
    done = [n for n, result in enumerate(results) if "error" not in result]
    assert {result["error"]["code"] for result in results if "error" in result} <= {"conflict"}
    assert done
    record = (await room.run("data.get", model="m", id=id))["record"]
    assert sorted(key for key in record if key.startswith("f")) == sorted(f"f{n}" for n in done)


async def test_a_query_that_takes_too_long_ends(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QUERY_SECONDS <= 10
    monkeypatch.setattr("gateway.features.agents.tools.records.QUERY_SECONDS", 0.2)
    counting = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ToolError) as caught:
            await room.store.read(lambda c: bounded(c, lambda c: c.execute(text(counting)).scalar()))
    assert caught.value.code == "query_timeout"
    # The connection is as it was.
    assert await room.store.read(lambda c: c.execute(select(func.count()).select_from(records)).scalar()) == 0


async def test_the_tables_are_those_of_the_migrations(room: Room) -> None:
    for table in (models, filters, records):
        assert await room.store.read(lambda c, t=table: c.execute(select(t)).all()) == []  # type: ignore[misc]


async def test_one_tenant_s_queries_leave_readers_to_others(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """The greedy one's first query takes long; neither those behind it nor one whose client left take a reader."""
    greedy, other = room.another("greedy", "room-1").records, room.another("other", "room-1").records
    entered: list[None] = []
    gate = threading.Event()

    def slow(connection: Any, work: Callable[[Any], Any]) -> Any:
        entered.append(None)
        if len(entered) == 1:
            gate.wait(PATIENCE)
        return work(connection)

    monkeypatch.setattr("gateway.features.agents.tools.records.bounded", slow)
    try:
        first, *more = [asyncio.create_task(greedy.models()) for _ in range(9)]
        while not entered:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await other.models()
        first.cancel()
        await asyncio.wait({first})
        await other.models()
        assert len(entered) == 3
        monkeypatch.setattr("gateway.features.agents.tools.records.WAIT_SECONDS", 0)
        with pytest.raises(ToolError, match="other queries of this tenant"):
            await greedy.models()
    finally:
        gate.set()
    await asyncio.gather(*more)
    assert len(entered) == 3 + len(more)

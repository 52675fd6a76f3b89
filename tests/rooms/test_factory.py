"""Rooms from templates, and a tenant's records over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.features.agents.settings import RoomMount, RoomTemplate
from tests.rooms.described import conforms
from tests.rooms.running import house, speaks


async def test_a_room_from_a_template(tmp_path: Path) -> None:
    template = RoomTemplate(
        description="Reads the docs.",
        purpose="answer",
        prompt="Be brief.",
        model="m",
        skills=("reading",),
        access="read",
        allow=("tool.*",),
        mounts=("docs",),
        after_turn="sleep",
        bounds={"model_calls": 3},
    )
    mounts = {"docs": RoomMount(path=tmp_path)}
    async with house(tmp_path / "state", speaks("Fine."), templates={"reader": template}, mounts=mounts) as rooms:
        (shown,) = await conforms(rooms, "GET", "/llm/factory", 200, None)
        assert (shown["name"], shown["description"]) == ("reader", "Reads the docs.")
        assert (await conforms(rooms, "GET", "/llm/factory/{name}", 200, None, name="reader")) == shown
        body = {"metadata": {"name": "mine"}, "content": "What is there?"}
        room = await conforms(rooms, "POST", "/llm/factory/{name}", 201, body, name="reader")
        assert room["metadata"] == {"template": "reader", "name": "mine"}
        assert room["tool_policy"] == {"access": "read", "allow": ["tool.*"], "deny": []}
        assert (room["mounts"], room["bounds"]["model_calls"], room["purpose"]) == (["docs"], 3, "answer")
        await rooms.until(room["id"], "room:sleeping")
        asked = rooms.engine.requests[0].json
        assert asked["messages"][0]["content"].startswith("Be brief.")
        assert {tool["function"]["name"] for tool in asked["tools"]} == {"tool_ls", "tool_cat", "tool_glob"}
        missing = await rooms.call("POST", "/llm/factory/nothing", 404, {})
        assert (missing["code"], "reader" in missing["message"]) == ("template_not_found", True)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_there_are_no_runs_and_the_answer_says_why(tmp_path: Path, method: str) -> None:
    async with house(tmp_path, speaks("Fine.")) as rooms:
        refused = await conforms(rooms, method, "/llm/factory/runs", 404, None)
        assert refused is None
        told = await rooms.call(method, "/llm/factory/runs", 404)
        assert told["code"] == "factory_runs_unsupported"
        assert "POST /llm/factory/NAME" in told["message"]


async def test_models_and_records(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    async with house(tmp_path, speaks("Fine.")) as rooms:
        body = {"schema": schema, "description": "People."}
        await conforms(rooms, "PUT", "/llm/describe/{model}", 200, body, model="person")
        described = await conforms(rooms, "GET", "/llm/describe", 200, None)
        assert [model["model"] for model in described] == ["person", "room_events", "room_messages", "rooms"]
        shown = await conforms(rooms, "GET", "/llm/describe/{model}", 200, None, model="person")
        assert shown == {"model": "person", "description": "People.", "schema": schema}
        ann = await conforms(rooms, "POST", "/llm/data/{model}", 201, {"name": "Ann", "age": 40}, model="person")
        await conforms(rooms, "POST", "/llm/data/{model}", 201, {"name": "Bob", "age": 9}, model="person")
        one = {"model": "person", "id": ann["id"]}
        assert (await conforms(rooms, "PATCH", "/llm/data/{model}/{id}", 200, {"age": 41}, **one))["age"] == 41
        assert (await conforms(rooms, "GET", "/llm/data/{model}/{id}", 200, None, **one))["name"] == "Ann"
        listed = await rooms.call("GET", "/llm/data/person?limit=1", 200)
        assert ([record["name"] for record in listed["records"]], listed["next_offset"]) == (["Ann"], 1)
        query = {"where": {"age": {"$gt": 18}}}
        found = await conforms(rooms, "POST", "/llm/find/{model}", 200, query, model="person")
        assert [record["name"] for record in found["records"]] == ["Ann"]
        total = {"aggregate": {"total": {"$sum": "age"}}}
        groups = await conforms(rooms, "POST", "/llm/aggregate/{model}", 200, total, model="person")
        assert groups == {"groups": [{"total": 50}], "truncated": False}
        await conforms(rooms, "DELETE", "/llm/data/{model}/{id}", 200, None, **one)
        gone = await rooms.call("GET", f"/llm/data/person/{ann['id']}", 404)
        assert gone["code"] == "record_not_found"
        await rooms.call("PUT", "/llm/describe/note", 200, {"schema": {"type": "object", "required": ["due", "text"]}})
        note = await rooms.call("POST", "/llm/data/note", 201, {"due": None, "text": {"lead": None}})
        assert (note["due"], note["text"]) == (None, {"lead": None})
        note = await rooms.call("PATCH", f"/llm/data/note/{note['id']}", 200, {"text": None})
        assert (note["due"], note["text"]) == (None, None)
        wrong = await rooms.call("POST", "/llm/data/person", 400, {"age": "old"})
        assert wrong["code"] == "invalid_record"
        unknown = await rooms.call("GET", "/llm/describe/nothing", 404)
        assert unknown["code"] == "model_not_found"


async def test_a_pattern_cannot_come_over_http(tmp_path: Path) -> None:
    """It would run on what language models write: `(a+)+$` takes for ever."""
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": "(a+)+$"}}}
    async with house(tmp_path, speaks("Fine.")) as rooms:
        refused = await rooms.call("PUT", "/llm/describe/person", 400, {"schema": schema})
        assert refused["code"] == "invalid_model"
        assert "ctxgate records define" in refused["message"]

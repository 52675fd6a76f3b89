"""Every tool, allowed and denied; policies; arguments; what a failing tool tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jsonschema
import pytest

from gateway.errors import ProviderUnavailable
from gateway.tools import Access, Catalogue, ToolContext, ToolError, ToolPolicy, ToolRow
from gateway.tools.base import Tool
from tests.patience import PATIENCE
from tests.tools.conftest import Room
from tests.tools.web import Web


class Case(NamedTuple):
    tool: str
    access: Access
    required: set[str]
    optional: set[str]
    arguments: dict[str, Any]
    result: dict[str, Any]
    """What the result has, at least."""


# The tools of the protocol, with its names of arguments; WEB and ID are filled in.
CASES = [
    Case("room.idle", "full", set(), {"reason"}, {"reason": "done"}, {"status": "accepted", "reason": "done"}),
    Case("room.release", "full", set(), {"mode"}, {}, {"status": "accepted", "mode": "graceful"}),
    Case(
        *("tool.ls", "read", set(), {"path", "all", "long", "recursive", "max_depth"}),
        *({"path": "notes"}, {"entries": [{"path": "/notes/a.txt", "type": "file"}]}),
    ),
    Case(
        *("tool.cat", "read", {"path"}, {"encoding", "max_chars"}),
        *({"path": "notes/a.txt"}, {"content": "hello", "size": 5, "truncated": False}),
    ),
    Case(
        *("tool.glob", "read", {"pattern"}, {"cwd", "all", "type", "max_depth"}),
        *({"pattern": "**/*.txt"}, {"matches": ["/notes/a.txt"]}),
    ),
    Case("tool.mkdir", "edit", {"path"}, {"parents"}, {"path": "new"}, {"path": "/new", "created": True}),
    Case(
        *("tool.rm", "edit", {"path"}, {"recursive", "force"}),
        *({"path": "notes/a.txt"}, {"path": "/notes/a.txt", "removed": True}),
    ),
    Case(
        *("tool.mv", "edit", {"source", "destination"}, set()),
        *({"source": "notes/a.txt", "destination": "b.txt"}, {"source": "/notes/a.txt", "destination": "/b.txt"}),
    ),
    Case(
        *("curl.get", "read", {"url"}, {"headers", "timeout_ms"}),
        *({"url": "WEB/page"}, {"status": 200, "body": "<title>T</title><p>Hi <b>you</b>", "truncated": False}),
    ),
    Case(
        *("curl.post", "read", {"url"}, {"headers", "body", "timeout_ms"}),
        *({"url": "WEB/echo", "body": "x=1"}, {"status": 200, "body": "POST x=1"}),
    ),
    Case(
        *("curl.markdown", "read", {"url"}, {"headers", "timeout_ms", "max_chars"}),
        *({"url": "WEB/page"}, {"title": "T", "content": "Hi **you**"}),
    ),
    Case(
        *("curl.compact", "read", {"url"}, {"headers", "timeout_ms", "max_chars"}),
        *({"url": "WEB/page"}, {"title": "T", "content": "Hi you", "links": [], "headings": []}),
    ),
    Case(
        *("curl.summarize", "read", {"url"}, {"headers", "timeout_ms", "focus", "max_chars"}),
        *({"url": "WEB/page", "focus": "people"}, {"title": "T", "model": "default"}),
    ),
    Case(
        *("describe.model_get", "read", {"model"}, set()),
        *({"model": "person"}, {"model": "person", "description": "People."}),
    ),
    Case("find.records", "read", {"model", "query"}, set(), {"model": "person", "query": {"where": {"age": 7}}}, {}),
    Case("find.filter", "read", {"model", "target"}, set(), {"model": "person", "target": "young"}, {}),
    Case(
        *("aggregate.query", "read", {"model", "query"}, set()),
        *({"model": "person", "query": {}}, {"groups": [{"count": 1}], "truncated": False}),
    ),
    Case("data.get", "read", {"model", "id"}, set(), {"model": "person", "id": "ID"}, {}),
    Case("data.list", "read", {"model"}, {"limit", "offset", "trashed"}, {"model": "person"}, {}),
    Case("data.create", "edit", {"model", "record"}, set(), {"model": "person", "record": {"name": "Cy"}}, {}),
    Case(
        *("data.update", "edit", {"model", "id", "record"}, set()),
        *({"model": "person", "id": "ID", "record": {"age": 8}}, {}),
    ),
    Case("data.delete", "edit", {"model", "id"}, set(), {"model": "person", "id": "ID"}, {"trashed": True}),
]
TABLE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.tool)


async def prepared(room: Room, web: Web | None, case: Case) -> dict[str, Any]:
    """The case's arguments, in a room that has what they speak of."""
    room.files.makedirs("notes")
    room.files.pipe_file("notes/a.txt", b"hello")
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    await room.records.define("person", schema, "People.")
    await room.records.save_filter("person", "young", {"where": {"age": {"$lt": 18}}})
    made = await room.records.create("person", {"name": "Bo", "age": 7})
    if web is not None:
        web.page("/page", b"<title>T</title><p>Hi <b>you</b>", "Content-Type: text/html")
        web.page("/echo", b"POST x=1", "Content-Type: text/plain")
    filled = {"ID": made["id"], "WEB": web.url if web is not None else "http://web.invalid"}

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            for name, meant in filled.items():
                value = value.replace(name, meant)
        return value

    return {name: fill(value) for name, value in case.arguments.items()}


@TABLE
async def test_allowed(case: Case, make_room: Callable[..., Room], web: Web) -> None:
    room = make_room(allow_hosts=(f"127.0.0.1:{web.port}",))
    arguments = await prepared(room, web, case)
    room = room.other(policy=ToolPolicy(case.access, allow=(case.tool,)))
    result = await room.run(case.tool, **arguments)
    assert "error" not in result
    assert result | case.result == result
    if "records" in result:
        assert [record["name"] for record in result["records"]] == ["Bo"]


DENIED = {
    "no access": ToolPolicy(),
    "not on the list": ToolPolicy("full", allow=("nothing.*",)),
    "on the list of the denied": ToolPolicy("full", deny=("*.*",)),
    "too little access": ToolPolicy("read"),
}


@TABLE
async def test_denied(case: Case, room: Room) -> None:
    files = room.files
    arguments = await prepared(room, None, case)
    before = (files.usage(), await room.records.find("person", {}))
    for why, policy in DENIED.items():
        if case.access == "read" and why == "too little access":
            continue
        denied = room.other(policy=policy)
        assert await denied.run(case.tool, **arguments) == {
            "error": {"code": "tool_denied", "message": f"the tool policy doesn't permit {case.tool}"}
        }, why
        assert case.tool not in [row.name for row in denied.catalogue.rows(policy)]
    assert (files.usage(), await room.records.find("person", {})) == before
    assert room.light.asked == []


def test_the_catalogue_is_the_protocol_s(room: Room) -> None:
    rows = {row.name: row for row in room.catalogue.rows(ToolPolicy("full"))}
    assert list(rows) == [case.tool for case in CASES]
    for case in CASES:
        row = rows[case.tool]
        jsonschema.Draft202012Validator.check_schema(row.parameters)
        assert row.access == case.access
        assert row.description.endswith((".", "folders."))
        required = set(row.parameters.get("required", ()))
        assert (required, set(row.parameters["properties"]) - required) == (case.required, case.optional)
        assert row.parameters["additionalProperties"] is False


@pytest.mark.parametrize(
    ("policy", "count"),
    [
        (ToolPolicy(), 0),
        (ToolPolicy(allow=("*",)), 0),
        (ToolPolicy("read"), 14),
        (ToolPolicy("edit"), 20),
        (ToolPolicy("full"), 22),
        (ToolPolicy("full", allow=("curl.*", "tool.ls")), 6),
        (ToolPolicy("full", allow=()), 0),
        (ToolPolicy("full", deny=("curl.*",)), 17),
        (ToolPolicy("edit", allow=("data.*",), deny=("data.delete",)), 4),
    ],
)
def test_policies(policy: ToolPolicy, count: int, room: Room) -> None:
    assert len(room.catalogue.rows(policy)) == count


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("tool.cat", {}, "'path' is a required property"),
        ("tool.cat", {"path": 1}, "/path: 1 is not of type 'string'"),
        ("tool.cat", {"path": "a", "more": 1}, "'more' was unexpected"),
        ("tool.cat", {"path": "a", "max_chars": 10**9}, "/max_chars"),
        ("tool.cat", {"path": "a", "encoding": "rot13"}, "/encoding"),
        ("curl.get", {"url": "http://a", "timeout_ms": 0}, "/timeout_ms"),
        ("data.list", {"model": "m", "trashed": "all"}, "/trashed"),
        ("room.release", {"mode": "now"}, "/mode"),
    ],
)
async def test_arguments_are_checked(tool: str, arguments: dict[str, Any], told: str, room: Room) -> None:
    error = (await room.run(tool, **arguments))["error"]
    assert error["code"] == "invalid_arguments"
    assert told in error["message"]


async def test_arguments_that_are_no_object(room: Room) -> None:
    wrong: Any = ["path"]
    result = await room.catalogue.run(room.context, "tool.cat", wrong)
    assert result["error"]["code"] == "invalid_arguments"


async def test_an_unknown_tool_lists_the_permitted_ones(room: Room) -> None:
    room = room.other(policy=ToolPolicy("full", allow=("tool.ls", "tool.cat")))
    assert await room.run("tool.cta") == {
        "error": {"code": "tool_unknown", "message": "no such tool; there are: tool.ls, tool.cat"}
    }


async def test_a_header_s_value_is_in_no_error(room: Room) -> None:
    result = await room.run("curl.get", url="http://a", headers={"Authorization": ["Bearer hidden"]})
    assert result["error"]["code"] == "invalid_arguments"
    assert "hidden" not in str(result)


def test_arguments_as_history_keeps_them(room: Room) -> None:
    headers = {"Authorization": "Bearer hidden", "Cookie": "hidden", "X-Key": "hidden", "Accept": "text/html"}
    given = {"url": "https://ann:hidden@host/path?q=1", "headers": headers, "timeout_ms": 5}
    assert room.catalogue.recorded("curl.get", given) == {
        "url": "https://[redacted]@host/path?q=1",
        "headers": {**dict.fromkeys(headers, "[redacted]"), "Accept": "text/html"},
        "timeout_ms": 5,
    }
    assert headers["Cookie"] == "hidden"
    assert room.catalogue.recorded("curl.get", {"url": 3, "headers": "x"}) == {"url": 3, "headers": "x"}


def only(run: Callable[[ToolContext, dict[str, Any]], Any]) -> Catalogue:
    return Catalogue([Tool(ToolRow("test.it", "A test.", {"type": "object"}, "read"), run)])


async def test_failures_are_results(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    failures: dict[str, Exception] = {
        "mine": ToolError("mine", "told"),
        "store_unavailable": ProviderUnavailable("told", code="store_unavailable"),
        "tool_failed": KeyError("hidden"),
    }
    assert {type(failure) for failure in failures.values()} == {ToolError, ProviderUnavailable, KeyError}
    for code, failure in failures.items():

        async def fail(context: ToolContext, arguments: dict[str, Any], failure: Exception = failure) -> dict[str, Any]:
            raise failure

        failing = replace(room, catalogue=only(fail))
        result = await failing.run("test.it")
        assert result["error"]["code"] == code
        assert "hidden" not in str(result)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "hidden" not in caplog.text
    assert "test_catalogue.py" in caplog.text


async def test_cancelling_a_call_ends_the_tool(room: Room) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    call = asyncio.create_task(replace(room, catalogue=only(wait)).run("test.it"))
    await asyncio.wait_for(started.wait(), PATIENCE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


def test_access_grows() -> None:
    assert get_args(Access) == ("read", "edit", "full")

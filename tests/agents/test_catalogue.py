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
from gateway.features.agents.tools import Access, Catalogue, Tool, ToolContext, ToolError, ToolPolicy
from gateway.features.agents.tools.base import Run
from tests.agents.conftest import Room
from tests.agents.web import Web
from tests.patience import PATIENCE


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
    room = room.under(ToolPolicy(case.access, allow=(case.tool,)))
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
        denied = room.under(policy)
        assert await denied.run(case.tool, **arguments) == {
            "error": {"code": "tool_denied", "message": f"the tool policy doesn't permit {case.tool}"}
        }, why
        assert case.tool not in [tool.name for tool in (await denied.toolbox()).tools.values()]
    assert (files.usage(), await room.records.find("person", {})) == before
    assert room.light.asked == []


async def test_the_catalogue_is_the_protocol_s(room: Room) -> None:
    tools = {tool.name: tool for tool in (await room.toolbox()).tools.values()}
    assert list(tools) == [case.tool for case in CASES]
    for case in CASES:
        tool = tools[case.tool]
        jsonschema.Draft202012Validator.check_schema(tool.parameters)
        assert tool.access == case.access
        assert tool.description.endswith((".", "folders."))
        required = set(tool.parameters.get("required", ()))
        assert (required, set(tool.parameters["properties"]) - required) == (case.required, case.optional)
        assert tool.parameters["additionalProperties"] is False


async def test_tools_for_files_speak_of_no_room(room: Room) -> None:
    """/ctx runs them, too, in a folder of its caller's."""
    files = [tool for tool in (await room.toolbox()).tools.values() if tool.name.startswith("tool.")]
    assert files
    assert [tool.name for tool in files if "room" in str(tool.parameters).lower()] == []


async def test_what_each_tool_does_and_costs(room: Room) -> None:
    """A call may run twice only if that has the effect and the result of once."""
    for tool in (await room.toolbox()).tools.values():
        family, _, verb = tool.name.partition(".")
        told = (tool.effect, tool.idempotent, tool.cost)
        match family:
            case "room":
                assert told == ("write", True, "local")
            case "curl":
                assert told == ("external", verb != "post", "model" if verb == "summarize" else "network")
            case _:
                reads = tool.access == "read"
                assert told == ("read" if reads else "write", reads, "local")


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
async def test_policies(policy: ToolPolicy, count: int, room: Room) -> None:
    assert len((await room.under(policy).toolbox()).tools) == count


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
    result = await (await room.toolbox()).run("tool.cat", wrong)
    assert result["error"]["code"] == "invalid_arguments"


async def test_an_unknown_tool_lists_the_permitted_ones(room: Room) -> None:
    room = room.under(ToolPolicy("full", allow=("tool.ls", "tool.cat")))
    assert await room.run("tool.cta") == {
        "error": {"code": "tool_unknown", "message": "no such tool; there are: tool.ls, tool.cat"}
    }


async def test_a_header_s_value_is_in_no_error(room: Room) -> None:
    result = await room.run("curl.get", url="http://a", headers={"Authorization": ["Bearer hidden"]})
    assert result["error"]["code"] == "invalid_arguments"
    assert "hidden" not in str(result)


async def test_arguments_as_history_keeps_them(room: Room) -> None:
    toolbox = await room.toolbox()
    headers = {"Authorization": "Bearer hidden", "Cookie": "hidden", "X-Key": "hidden", "Accept": "text/html"}
    given = {"url": "https://ann:hidden@host/path?q=1", "headers": headers, "timeout_ms": 5}
    assert toolbox.recorded(given) == {
        "url": "https://[redacted]@host/path?q=1",
        "headers": {**dict.fromkeys(headers, "[redacted]"), "Accept": "text/html"},
        "timeout_ms": 5,
    }
    assert headers["Cookie"] == "hidden"
    assert toolbox.recorded({"url": 3, "headers": "x"}) == {"url": 3, "headers": "x"}


async def nothing(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    return {}


def tool(name: str, run: Run = nothing) -> Tool:
    return Tool(
        name=name,
        description="A test.",
        parameters={"type": "object"},
        access="read",
        effect="read",
        idempotent=True,
        cost="local",
        run=run,
    )


def only(run: Callable[[ToolContext, dict[str, Any]], Any]) -> Catalogue:
    return Catalogue([tool("test.it", run)])


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


async def test_models_call_plain_names() -> None:
    """Letters, digits, `_` and `-`, at most 64 of them, and each tool has its own."""
    names = ["a.b", "a_b", "a/b", "x." + "y" * 80, "x." + "y" * 81]
    toolbox = await Catalogue(map(tool, names)).toolbox(ToolPolicy("read"), ToolContext())
    assert list(toolbox.tools) == ["a_b", "a_b_2", "a_b_3", "x_" + "y" * 62, "x_" + "y" * 60 + "_2"]
    assert [toolbox.name(called) for called in toolbox.tools] == names
    assert [toolbox.name(name) for name in ("a/b", "unknown")] == ["a/b", "unknown"]


class Others:
    """A source of tools, which counts how often it is asked."""

    def __init__(self, name: str, error: ToolError | None = None) -> None:
        self.name = name
        self.asked = 0
        self._error = error

    async def tools(self) -> list[Tool]:
        self.asked += 1
        if self._error is not None:
            raise self._error
        return [tool(f"{self.name}.it"), tool("own.it")]


async def test_sources_join_the_catalogue() -> None:
    here, away = Others("here"), Others("away", ToolError("mcp_failed", "told"))
    catalogue = Catalogue([tool("own.it")], lambda: (here, away))
    toolbox = await catalogue.toolbox(ToolPolicy("read", allow=("here.*",)), ToolContext())
    assert (list(toolbox.tools), here.asked, away.asked) == (["here_it"], 1, 0)
    toolbox = await catalogue.toolbox(ToolPolicy("read"), ToolContext())
    assert list(toolbox.tools) == ["own_it", "here_it"]
    assert {name: error.code for name, error in toolbox.missing.items()} == {"away": "mcp_failed"}
    assert await toolbox.run("away.it", {}) == {"error": {"code": "mcp_failed", "message": "told"}}
    assert await toolbox.run("here_it", {}) == {}
    assert not (await catalogue.toolbox(ToolPolicy(), ToolContext())).missing


@pytest.mark.parametrize(
    ("glob", "known"),
    [
        *(("here.it", True), ("here.any", True), ("he*", True), ("*.it", True), ("h?re.*", True), ("her", False)),
        *(("there.it", False), ("own.it", True), ("own.other", False), ("here", False)),
    ],
)
def test_what_a_policy_may_name(glob: str, known: bool) -> None:
    assert Catalogue([tool("own.it")], lambda: [Others("here")]).known(glob) is known


@pytest.mark.parametrize("name", ["tool.ls", "data.get", "curl.summarize"])
async def test_what_isn_t_there(name: str, make_room: Callable[..., Room], web: Web) -> None:
    web.page("/page", b"text", "Content-Type: text/plain")
    room = replace(make_room(allow_hosts=(f"127.0.0.1:{web.port}",)), context=ToolContext())
    arguments = {"data.get": {"model": "m", "id": "i"}, "curl.summarize": {"url": f"{web.url}/page"}}
    assert await room.code(name, **arguments.get(name, {})) == "not_available"


def test_access_grows() -> None:
    assert get_args(Access) == ("read", "edit", "full")

"""Responses whose model calls the tools of MCP servers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses.response_output_item import McpCall, McpListTools

from gateway.features.agents.settings import MCPServer, Rooms
from tests.api.asking import frames
from tests.gateway.client import Answer
from tests.gateway.double import Exchange, Json, answers, chunk
from tests.gateway.running import Running, running
from tests.responses.broken_off import begun, kept
from tests.responses.websocket import opened, turn
from tests.rooms.running import calls, speaks
from tests.support.mcp_servers import MISBEHAVING, TIME

SERVERS = {
    "time": MCPServer(command=TIME),
    "it": MCPServer(command=(sys.executable, str(MISBEHAVING))),
    "hasty": MCPServer(command=(sys.executable, str(MISBEHAVING)), call_seconds=0.5),
    "broken": MCPServer(command=(sys.executable, str(MISBEHAVING), "dies")),
}
TOKYO = calls(("time_get_current_time", {"timezone": "Asia/Tokyo"}), text="I look.")
ECHO = calls(("it_echo", {"text": "hello"}), text="I ask.")


def server(label: str, **fields: Any) -> Json:
    return {"type": "mcp", "server_label": label, **fields}


async def post(gateway: Running, *tools: Json, **fields: Any) -> Answer:
    asked = {"model": "m", "input": "What time is it in Tokyo?", "tools": [*tools], **fields}
    return await gateway.ask(asked, "/v1/responses")


async def test_a_real_server_called_by_openai_s_client() -> None:
    async with (
        running(TOKYO, speaks("It is", " late.", tokens=4), mcp=SERVERS) as gateway,
        AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x") as client,
    ):
        tool: Any = server("time", require_approval="never", allowed_tools=["get_current_time"])
        made = await client.responses.create(model="m", input="What time is it in Tokyo?", tools=[tool])
        asked = gateway.engine.requests
    listed, _, call, _ = made.output
    assert made.status == "completed"
    assert made.output_text == "I look.It is late."
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (6, 9, 15)
    assert isinstance(listed, McpListTools)
    assert [(tool.name, listed.server_label) for tool in listed.tools] == [("get_current_time", "time")]
    assert isinstance(call, McpCall)
    assert (call.server_label, call.name, call.status, call.error) == ("time", "get_current_time", "completed", None)
    assert json.loads(call.arguments) == {"timezone": "Asia/Tokyo"}
    assert json.loads(call.output or "")["timezone"] == "Asia/Tokyo"
    assert [tool["function"]["name"] for tool in asked[0].json["tools"]] == ["time_get_current_time"]
    roles = [message["role"] for message in asked[1].json["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert asked[1].json["messages"][2]["content"] == call.output


async def test_the_events_of_a_stream() -> None:
    async with running(ECHO, speaks("Late."), mcp=SERVERS) as gateway:
        got = frames(await post(gateway, server("it"), stream=True))
    assert [event["sequence_number"] for _, event in got] == list(range(len(got)))
    assert [name for name, _ in got] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"),
        "response.output_item.done",
        *("response.output_item.added", "response.content_part.added", "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", "response.mcp_call.in_progress", "response.mcp_call_arguments.delta"),
        *("response.mcp_call_arguments.done", "response.mcp_call.completed", "response.output_item.done"),
        *("response.output_item.added", "response.content_part.added", "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    items = {event["item"]["id"]: event["item"] for name, event in got if name == "response.output_item.done"}
    assert [*items.values()] == got[-1][1]["response"]["output"]
    assert [item["type"] for item in items.values()] == ["mcp_list_tools", "message", "mcp_call", "message"]


async def test_a_conversation_goes_on() -> None:
    """The next turn's model sees the call and its result; the tools aren't listed again."""
    async with running(ECHO, speaks("Late."), speaks("Very."), mcp=SERVERS) as gateway:
        first = (await post(gateway, server("it"))).json
        second = (await post(gateway, server("it"), previous_response_id=first["id"])).json
        asked = gateway.engine.requests[2].json["messages"]
    assert [item["type"] for item in second["output"]] == ["message"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]


async def test_the_client_s_own_function_ends_the_turn() -> None:
    """The server's call beside it has its result by then."""
    own: Json = {"type": "function", "name": "it_echo", "parameters": {"type": "object"}}
    made = calls(("it_echo", {}), ("it_echo_2", {"text": "hello"}))
    async with running(made, speaks("never"), mcp=SERVERS) as gateway:
        answer = (await post(gateway, own, server("it", allowed_tools=["echo"]))).json
        assert len(gateway.engine.requests) == 1
    _, function, remote = answer["output"]
    assert (answer["status"], function["type"], function["name"]) == ("completed", "function_call", own["name"])
    assert (remote["type"], remote["name"], remote["status"]) == ("mcp_call", "echo", "completed")


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("fails", "mcp_tool_failed: out of order"),
        ("dies", "mcp_interrupted: the MCP server it stopped during the call: it ended: exit status 3"),
        ("lines", "mcp_interrupted: "),
        ("slow", "mcp_timeout: hasty.slow gave no answer within 0.5 s"),
        ("wrong", "mcp_invalid_answer: "),
    ],
)
async def test_a_call_that_goes_wrong_is_told(tool: str, told: str) -> None:
    label = "hasty" if tool == "slow" else "it"
    async with running(calls((f"{label}_{tool}", {"text": "1"})), speaks("I see."), mcp=SERVERS) as gateway:
        answer = (await post(gateway, server(label))).json
        seen = gateway.engine.requests[1].json["messages"][-1]
    call = answer["output"][1]
    assert (answer["status"], call["type"], call["status"], call["output"]) == ("completed", "mcp_call", "failed", None)
    assert call["error"].startswith(told)
    assert (seen["role"], seen["content"]) == ("tool", call["error"])


async def test_a_server_that_doesn_t_start_is_told() -> None:
    async with running(speaks("Without tools."), mcp=SERVERS) as gateway:
        answer = (await post(gateway, server("broken"))).json
    listed, said = answer["output"]
    assert (listed["tools"], listed["error"]) == ([], "the MCP server broken: it ended: exit status 3")
    assert said["content"][0]["text"] == "Without tools."


async def test_arguments_against_the_schema_are_told() -> None:
    async with running(calls(("it_echo", {"text": 1})), speaks("I see."), mcp=SERVERS) as gateway:
        call = (await post(gateway, server("it"))).json["output"][1]
    assert call["error"].startswith("invalid_arguments: /text: 1 is not of type 'string'")


@pytest.mark.parametrize(
    ("fields", "bounds", "reason"),
    [
        ({"max_tool_calls": 1}, {}, "max_tool_calls"),
        ({}, {"turn_tool_calls": 1}, "max_tool_calls"),
        ({}, {"turn_model_calls": 2}, "model_calls"),
        ({"max_output_tokens": 8}, {}, "max_output_tokens"),
    ],
)
async def test_bounds_of_the_turn(fields: Json, bounds: Json, reason: str) -> None:
    """A model that calls without end."""
    async with running(calls(("it_echo", {"text": "a"})), mcp=SERVERS, rooms=Rooms(**bounds)) as gateway:
        answer = (await post(gateway, server("it"), **fields)).json
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert all(item["status"] in ("completed", "incomplete") for item in answer["output"][1:])


async def test_a_client_can_t_lift_the_operator_s_bound() -> None:
    async with running(speaks("Hi."), mcp=SERVERS, rooms=Rooms(turn_output_tokens=50)) as gateway:
        for tokens in ({}, {"max_output_tokens": 100_000}, {"max_output_tokens": 20}):
            await post(gateway, server("it"), **tokens)
        assert [asked.json["max_tokens"] for asked in gateway.engine.requests] == [50, 50, 20]


async def test_a_stream_tells_what_was_dropped() -> None:
    async with running(speaks("Hi."), mcp=SERVERS) as gateway:
        said: Any = [{"role": "user", "content": "Hi"}, {"type": "web_search_call", "id": "x"}]
        for stream in (False, True):
            answer = await post(gateway, server("it"), {"type": "web_search"}, input=said, stream=stream)
            assert answer.headers["x-ctxgate-dropped-tools"] == "web_search"
            assert answer.headers["x-ctxgate-dropped-items"] == "web_search_call"


@pytest.mark.parametrize(
    ("tool", "param", "told"),
    [
        (server("clock"), "server_label", "there is no MCP server 'clock'; config.yaml has: time, it, hasty, broken"),
        (server("time", server_url="https://mcp.example"), "server_url", "the MCP servers of its own configuration"),
        (server("time", connector_id="connector_gmail"), "connector_id", "connectors are OpenAI's"),
        (server("time", headers={"x": "y"}), "headers", "the gateway's configuration has the headers"),
        (server("time", authorization="key"), "authorization", "the gateway's configuration has the keys"),
        (server("time", require_approval="always"), "require_approval", "the gateway asks for no approvals"),
        (server("time", allowed_tools="all"), "allowed_tools", "must be a list of names"),
        ({"type": "mcp"}, "server_label", "must be a string"),
    ],
)
async def test_what_is_refused(tool: Json, param: str, told: str) -> None:
    async with running(speaks("never"), mcp=SERVERS) as gateway:
        answer = await post(gateway, tool)
        assert not gateway.engine.requests
    assert (answer.status, answer.error["param"]) == (400, f"tools[0].{param}")
    assert told in answer.error["message"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["it_echo", "it_fails"]),
        ({"type": "mcp", "server_label": "it"}, ["it_echo", "it_fails"]),
        ({"type": "mcp", "server_label": "it", "name": "fails"}, ["it_fails"]),
    ],
)
async def test_which_tool_must_be_called(choice: Any, names: list[str]) -> None:
    """What is required is required once: the model answers after the call."""
    async with running(calls((names[-1], {})), speaks("Done."), mcp=SERVERS) as gateway:
        await post(gateway, server("it", allowed_tools=["echo", "fails"]), tool_choice=choice)
        asked = [exchange.json for exchange in gateway.engine.requests]
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == names
    assert [fields["tool_choice"] for fields in asked] == ["required", "auto"]


async def test_read_only_tools_alone() -> None:
    async with running(speaks("Hi."), mcp=SERVERS) as gateway:
        answer = (await post(gateway, server("it", allowed_tools={"read_only": True}))).json
    assert [tool["name"] for tool in answer["output"][0]["tools"]] == ["echo", "looks"]


async def test_allowed_tools_are_names() -> None:
    """However many there are; a pattern names no tool."""
    names = ["look?", "*", "fails", *map(str, range(1000))]
    async with running(speaks("Hi."), mcp=SERVERS) as gateway:
        answer = (await post(gateway, server("it", allowed_tools=names))).json
    assert [tool["name"] for tool in answer["output"][0]["tools"]] == ["fails"]


async def test_in_the_background() -> None:
    async with (
        running(ECHO, speaks("Late."), mcp=SERVERS) as gateway,
        AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x") as client,
    ):
        tool: Any = server("it")
        made = await client.responses.create(model="m", input="Time?", tools=[tool], background=True, stream=True)
        got = [event async for event in made]
        last: Any = got[-1]
        assert last.type == "response.completed"
        stored = await client.responses.retrieve(last.response.id)
    assert [item.type for item in stored.output] == ["mcp_list_tools", "message", "mcp_call", "message"]


async def test_over_a_websocket() -> None:
    """A turn that continues the last one has what the server said from memory."""
    async with running(ECHO, speaks("So."), speaks("Yes."), mcp=SERVERS) as gateway, opened(gateway) as client:
        first = await turn(client, tools=[server("it")], store=False)
        second = await turn(client, store=False, previous_response_id=first[-1]["response"]["id"])
        asked = gateway.engine.requests[2].json["messages"]
    assert "response.mcp_call.completed" in [event["type"] for event in first]
    assert second[-1]["type"] == "response.completed"
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
    assert asked[2]["content"] == "hello"


async def test_a_client_that_leaves_frees_the_server() -> None:
    one_at_a_time = {"it": MCPServer(command=SERVERS["it"].command, at_a_time=1)}
    slow = calls(("it_slow", {"text": "0.2"}))
    async with running(slow, ECHO, speaks("So."), mcp=one_at_a_time) as gateway:
        async with await gateway.connect() as client:
            fields = {"model": "m", "input": "Hi", "tools": [server("it")], "stream": True}
            await client.post(fields, "/v1/responses")
            await client.head()
            seen = b""
            while b"response.mcp_call_arguments.done" not in seen:
                seen += await client.part()
            client.leave()
        answer = (await post(gateway, server("it"))).json
    assert answer["output"][2]["output"] == "hello"


async def test_an_engine_that_refuses_is_a_status() -> None:
    for stream in (False, True):
        async with running(answers({"error": {"message": "no"}}, 400), mcp=SERVERS) as gateway:
            answer = await post(gateway, server("it"), stream=stream)
        assert answer.status == 400, answer.body


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_was_written_of_a_broken_stream_is_kept(leaves: bool) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("Hello"))
        await exchange.gone if leaves else exchange.reset()

    async with running(ECHO, breaks, mcp=SERVERS) as gateway:
        asked = {"input": "Hi", "tools": [server("it")]}
        response = await begun(gateway, asked, at="Hello" if leaves else None)
        stored = await kept(gateway, response["id"])
        assert stored["status"] == ("cancelled" if leaves else "failed")
        assert [item["type"] for item in stored["output"]] == ["mcp_list_tools", "message", "mcp_call", "message"]
        assert [item["status"] for item in stored["output"] if item["type"] == "message"] == ["completed", "incomplete"]

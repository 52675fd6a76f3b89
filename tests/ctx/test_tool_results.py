"""Tool results over a model's socket: an agent outside can be built on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.frames import Send, ToolResult
from gateway.features.ctx.history import UNANSWERED, answered, asked, ordered, question
from tests.ctx.kept import keeping
from tests.ctx.served import Tree, text, types
from tests.gateway.double import Double, Exchange, chunk, streams

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_an_agent_outside(served: Tree) -> None:
    """On the real model: it calls a tool, gets the result, and answers."""
    with served.connect("openai/gpt-4o") as client:
        client.ask(op="send", id="m1", session="out", input="What is the weather in Paris?", tools=[WEATHER])
        events = client.until()
        (call,) = [event for event in events if event["type"] == "tool_call"]
        assert call["name"] == "get_weather"
        results = [{"id": call["id"], "content": {"celsius": 21}}]
        client.ask(op="send", id="m2", session="out", tool_results=results, tools=[WEATHER])
        second = client.until()
        assert (second[-1]["status"], bool(text(second) or "tool_call" in types(second))) == ("ok", True)
        # A retry isn't answered again, nor is another result under the same id.
        client.ask(op="send", id="m2", session="out", tool_results=results, tools=[WEATHER])
        assert client.frame() == second[-1]
        client.ask(
            op="send", id="m2", session="out", tool_results=[{"id": call["id"], "content": "x"}], tools=[WEATHER]
        )
        assert client.frame()["code"] == "EINVAL"
        client.ask(op="send", id="m3", session="out", tool_results=[{"id": "nothing", "content": "x"}])
        assert client.frame()["code"] == "EINVAL"
        client.ask(op="send", id="m4", session="out")
        assert client.frame()["code"] == "EINVAL"
    listed = served.ctxgate("ctx", "sessions", "main", "--json", "--config", served.config)
    assert "out" in [row["session"] for row in json.loads(listed.stdout)]


@pytest.mark.parametrize("scope", ["private", "temp"])
async def test_the_order_that_openai_demands(scope: str, short: Path) -> None:
    seen: list[list[dict[str, Any]]] = []
    tools: list[Any] = []

    async def engine(exchange: Exchange) -> None:
        seen.append(exchange.json["messages"])
        tools.append(exchange.json.get("tools"))
        if len(seen) == 1:
            calls = [
                {"index": at, "id": f"x{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                for at in range(2)
            ]
            await streams(chunk(tool_calls=calls), chunk(reason="tool_calls"))(exchange)
        else:
            await streams(chunk("Yes."), chunk(reason="stop"))(exchange)

    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with Double(engine).serve() as double, keeping(short, double) as kept, kept.connect() as client:
        await client.ask(op="send", id="m1", scope=scope, input="one", tools=[tool])
        calls = [event["id"] for event in await client.until() if event["type"] == "tool_call"]
        assert len(calls) == 2
        # The second one's result only, and a text beside it.
        results = [{"id": calls[1], "content": "second"}]
        await client.ask(op="send", id="m2", scope=scope, input="two", tool_results=results)
        assert (await client.until())[-1]["status"] == "ok"
        await client.ask(op="send", id="m3", scope=scope, input="three")
        await client.until()
    roles = [[message["role"] for message in messages] for messages in seen]
    assert roles == [
        ["user"],
        ["user", "assistant", "tool", "tool", "user"],
        ["user", "assistant", "tool", "tool", "user", "assistant", "user"],
    ]
    assert [message["content"] for message in seen[1][2:]] == [UNANSWERED, "second", "two"]
    assert [call["id"] for call in seen[1][1]["tool_calls"]] == calls
    assert [message["tool_call_id"] for message in seen[1][2:4]] == calls
    assert (bool(tools[0]), tools[1:]) == (True, [None, None])


ids = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, max_size=4)
turns = st.lists(st.tuples(st.text(min_size=1, max_size=3), ids, ids), max_size=5)


@given(turns)
def test_every_call_has_its_result_directly_behind_it(turns: list[tuple[str, list[str], list[str]]]) -> None:
    messages: list[dict[str, Any]] = []
    for said, calls, results in turns:
        messages += question(said, [])
        messages.append(answered("", [{"id": id, "name": "f", "arguments": {}} for id in calls]))
        messages += question(None, [ToolResult(id, "r") for id in results if id in calls])
    made = ordered(messages)
    position = 0
    while position < len(made):
        calls = [call["id"] for call in made[position].get("tool_calls", ())]
        position += 1
        for id in calls:
            assert made[position]["tool_call_id"] == id
            position += 1
    assert ordered(made) == made
    assert [message for message in made if message["role"] == "user"] == [
        message for message in messages if message["role"] == "user"
    ]


def test_results_of_calls_that_there_are_not() -> None:
    with pytest.raises(ProviderInvalidRequest, match="it has: none"):
        asked([], Send(id="m", tool_results=[ToolResult("a", "x")]))
    messages = [answered("", [{"id": "a", "name": "f", "arguments": {}}])]
    with pytest.raises(ProviderInvalidRequest, match="two results"):
        asked(messages, Send(id="m", tool_results=[ToolResult("a", "x"), ToolResult("a", "y")]))

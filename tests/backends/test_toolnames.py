"""Names that OpenAI's rule forbids go through servers that hold to it, and come back as they were."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.backends.toolnames import ToolNames
from tests.gateway.client import Answer
from tests.gateway.double import Exchange, Json, chunk, completion, response
from tests.gateway.running import running

RULE = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME = "filesystem.list_dir"


def tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


@given(st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=6, unique=True))
def test_every_name_has_one_stand_in(names: list[str]) -> None:
    fields = {"tools": Raw(json.dumps([tool(name) for name in names]).encode())}
    found = ToolNames.of(fields)
    if found is None:
        assert all(map(RULE.fullmatch, names))
        return
    found.adapt(fields)
    sent = [one["function"]["name"] for one in json.loads(bytes(fields["tools"]))]
    assert all(map(RULE.fullmatch, sent))
    assert len(set(sent)) == len(names)
    answer: Json = {"choices": [{"message": {"tool_calls": [{"function": {"name": name}} for name in sent]}}]}
    found.answer(answer)
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == names


async def strict(exchange: Exchange) -> None:
    """An engine that refuses what OpenAI refuses, and calls the first tool."""
    asked: Any = exchange.json
    past = [call["function"]["name"] for message in asked["messages"] for call in message.get("tool_calls", ())]
    names = [one["function"]["name"] for one in asked["tools"]]
    for name in (*names, *past):
        if RULE.fullmatch(name) is None:
            await exchange.send(response({"error": {"message": f"{name}: no valid name"}}, 400))
            return
    call = {"id": "c", "type": "function", "function": {"name": names[0], "arguments": "{}"}}
    if asked.get("stream"):
        await exchange.start()
        await exchange.event(chunk(tool_calls=[{"index": 0, **call}]), chunk(reason="tool_calls"))
        await exchange.end()
    else:
        await exchange.whole(completion(None, reason="tool_calls", tool_calls=[call]))


def asked(**fields: Any) -> Json:
    call = {"id": "b", "type": "function", "function": {"name": NAME, "arguments": "{}"}}
    past = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "b", "name": NAME, "content": "nothing"},
    ]
    return {"model": "m", "messages": past, "tools": [tool(NAME), tool("filesystem_list_dir")], **fields}


@pytest.mark.parametrize("choice", ["auto", {"type": "function", "function": {"name": NAME}}])
async def test_a_server_that_refuses_dots(choice: Any) -> None:
    async with running(strict) as gateway:
        whole: Answer = await gateway.ask(asked(tool_choice=choice))
        assert whole.status == 200, whole.body
        assert whole.json["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == NAME
        streamed = await gateway.ask(asked(tool_choice=choice, stream=True))
        deltas = [json.loads(event)["choices"][0]["delta"] for event in streamed.events[:-1]]
        calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        assert calls[0]["function"]["name"] == NAME
        sent = (await gateway.engine.asked(2)).json
        assert all(RULE.fullmatch(one["function"]["name"]) for one in sent["tools"])


async def test_names_by_the_rule_are_left_alone() -> None:
    async with running(strict) as gateway:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool("a-b_c")]}
        assert (await gateway.ask(body)).json["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "a-b_c"


def test_names_that_would_be_the_same_are_told_apart_by_numbers() -> None:
    long = "a tool of a server whose name is long enough to fill all that a name may have"
    names = [f"{long}{mark}" for mark in map(chr, range(0x4E00, 0x4E00 + 20_000))]
    names += [f"tool{mark}" for mark in map(chr, range(0x4E00, 0x4E00 + 20_000))]
    fields = {"tools": Raw(json.dumps([tool(name) for name in names]).encode())}
    found = ToolNames.of(fields)
    assert found is not None
    found.adapt(fields)
    sent = [one["function"]["name"] for one in json.loads(bytes(fields["tools"]))]
    assert all(map(RULE.fullmatch, sent))
    assert len(set(sent)) == len(names)
    assert sent[0].startswith("a_tool_of_a_server_whose_name_is_long_enough")

"""A JSON call whose arguments don't stand under a key that all models use: none of its values is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.normalizers.splits import parse, tool
from tests.support.thorough import examples

TOOLS = [
    tool("write", ["path"], path="string", text="string", mode="integer"),
    tool("search", ["input"], input="string"),
    tool("run", input="object", args="array"),
    tool("delete", id="integer"),
    tool("make", type="string", kwargs="object"),
    tool("install", ["tool"], tool="string"),
    tool("ping"),
    tool("exec", ["command"], command="string", args="array", timeout="integer"),
    tool("feed", ["input"], input="string", limit="integer"),
]
EXEC = {"command": "ls", "args": ["-l"]}
OPEN = {"name": "open", "parameters": {"type": "object", "additionalProperties": True}}
REGIONS = {
    "hermes": ("<tool_call>\n", "\n</tool_call>"),
    "auto": ("<tool_call>\n", "\n</tool_call>"),
    "cohere": ("<|START_ACTION|>[", "]<|END_ACTION|>"),
    "nemotron_v2": ("<TOOLCALL>[", "]</TOOLCALL>"),
    "granite": ("<|tool_call|>[", "]"),
    "llama3_json": ("<|python_tag|>", ""),
    "mistral": ("[TOOL_CALLS] [", "]"),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
}
PATH = ("write", {"path": "a"})

READ: list[tuple[str, tuple[str, dict[str, Any]]]] = [
    ('{"name": "write", "path": "a"}', PATH),
    ('{"path": "a", "name": "write"}', PATH),
    ('{"name": "write", "path": "a,}\\n", "mode": 7}', ("write", {"path": "a,}\n", "mode": 7})),
    ("{'name': 'write', 'path': 'a', 'mode': '7'}", ("write", {"path": "a", "mode": 7})),
    ('{"type": "function", "function": {"name": "write", "path": "a"}, "id": "call_1"}', PATH),
    ('{"name": "write", "tool_input": {"path": "a"}}', PATH),
    ('{"name": "write", "action_input": {"path": "a"}}', PATH),
    ('{"kwargs": {"path": "a"}, "name": "write"}', PATH),
    ('{"name": "write", "input": "{\\"path\\": \\"a\\"}"}', PATH),
    ('{"name": "write", "arguments": null, "params": {"path": "a"}}', PATH),
    ('{"name": "write", "arguments": {"path": "a"}, "thought": "now"}', PATH),
    ('{"name": "search", "input": "a"}', ("search", {"input": "a"})),
    ('{"name": "search", "input": {"input": "a"}}', ("search", {"input": "a"})),
    ('{"name": "run", "input": {"input": {"a": 1}}}', ("run", {"input": {"a": 1}})),
    ('{"name": "run", "input": {"a": 1}}', ("run", {"input": {"a": 1}})),
    ('{"name": "run", "input": {"a": 1}, "args": [1, {"b": 2}]}', ("run", {"input": {"a": 1}, "args": [1, {"b": 2}]})),
    ('{"name": "delete", "id": 5}', ("delete", {"id": 5})),
    ('{"name": "delete", "id": "call_1", "arguments": {"id": 5}}', ("delete", {"id": 5})),
    ('{"type": "function", "id": "call_1", "function": {"name": "delete"}}', ("delete", {})),
    ('{"name": "make", "type": "a"}', ("make", {"type": "a"})),
    ('{"name": "make", "type": "function"}', ("make", {})),
    ('{"name": "make", "kwargs": {"type": "a"}}', ("make", {"type": "a"})),
    ('{"name": "make", "kwargs": {"a": 1}}', ("make", {"kwargs": {"a": 1}})),
    ('{"name": "install", "tool": "hammer"}', ("install", {"tool": "hammer"})),
    ('{"name": "ping", "id": "call_1", "index": 0}', ("ping", {})),
    ('{"name": "ping", "note": null}', ("ping", {})),
    ('{"name": "ping", "note": "now"}', ("ping", {})),
    ('{"name": "ping", "strict": true, "status": "pending"}', ("ping", {})),
    ('{"description": "Look.", "name": "ping"}', ("ping", {})),
    ('{"name": "exec", "args": {"command": "ls", "args": ["-l"]}}', ("exec", EXEC)),
    ('{"name": "exec", "args": {"command": "ls", "args": ["-l"], "timeout": "5"}}', ("exec", EXEC | {"timeout": 5})),
    ('{"args": {"command": "ls", "args": ["-l"], "timeout": "5"}, "name": "exec"}', ("exec", EXEC | {"timeout": 5})),
    ('{"name": "exec", "command": "ls", "args": ["-l"]}', ("exec", EXEC)),
    ('{"name": "feed", "input": {"input": "a", "limit": 3}}', ("feed", {"input": "a", "limit": 3})),
    ('{"name": "feed", "input": {"input": "a", "limit": "3"}}', ("feed", {"input": "a", "limit": 3})),
    ('{"name": "feed", "input": "{\\"input\\": \\"a\\", \\"limit\\": 3}"}', ("feed", {"input": "a", "limit": 3})),
    ('{"name": "feed", "input": "{\\"a\\": 3}"}', ("feed", {"input": '{"a": 3}'})),
]


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize(("call", "expected"), READ)
def test_arguments_that_can_only_be_these(name: str, call: str, expected: tuple[str, Any]) -> None:
    message = parse(name, call.join(REGIONS[name]), TOOLS, unknown_tools="refuse")
    assert [(each.name, json.loads(each.arguments)) for each in message.tool_calls] == [expected]
    assert not message.content.strip()


KEPT = [
    '{"name": "write", "payload": {"path": "a"}}',
    '{"name": "write", "path": "a", "payload": 1}',
    '{"name": "write", "path": "a", "path": "b"}',
    '{"name": "write", "path": "a", "arguments": {"mode": 1}}',
    '{"name": "write", "arguments": {}, "path": "a"}',
    '{"name": "write", "arguments": {"path": "a"}, "args": {"path": "b"}}',
    '{"name": "write", "arguments": {"path": "a"}, "args": ["b"]}',
    '{"args": {"path": "a"}, "kwargs": {"path": "b"}, "name": "write"}',
    '{"name": "write", "input": "a"}',
    '{"name": "write", "function": {"path": "a"}, "note": 1}',
    '{"name": "write", "path": "a", "tool": "ping"}',
    '{"name": "open", "note": "now"}',
    '{"name": "ping", "tool": "write"}',
]


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("call", KEPT)
def test_a_call_that_would_lose_a_value_is_text_with_a_complaint(name: str, call: str) -> None:
    message = parse(name, call.join(REGIONS[name]), [*TOOLS, OPEN], unknown_tools="refuse")
    assert not message.tool_calls
    assert call in message.content
    assert {warning.code for warning in message.warnings} & {"syntax", "duplicate_key", "arguments_not_an_object"}


def test_the_parameters_of_a_tool_that_nobody_declared_are_unknown() -> None:
    call = '{"name": "other", "path": "a"}'.join(REGIONS["hermes"])
    assert parse("hermes", call, TOOLS, unknown_tools="forward").content == call
    assert parse("hermes", call, TOOLS, unknown_tools="refuse").content == call


@given(
    members=st.permutations(['"name": "run"', '"input": {"a": [1, "}"]}', '"args": ["x"]', '"id": "c"', '"note": 1']),
    count=st.integers(0, 5),
    name=st.sampled_from(sorted(REGIONS)),
    marked=st.booleans(),
)
@settings(max_examples=examples(60))
def test_any_split_gives_the_same(members: list[str], count: int, name: str, marked: bool) -> None:
    call = f"{{{', '.join(members[:count])}}}"
    message = parse(name, call.join(REGIONS[name]) if marked else call, TOOLS, cuts=True, unknown_tools="refuse")
    for each in message.tool_calls:
        given_values = {key: value for key, value in json.loads(call).items() if key in ("input", "args")}
        assert json.loads(each.arguments) == given_values

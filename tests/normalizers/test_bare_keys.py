"""Keys without quotes, as the templates of Gemma write them, hold any sign that begins or ends nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.normalizers.splits import parse, tool
from tests.support.thorough import examples

MARKS = {"gemma4": ("<|tool_call>", "<tool_call|>"), "functiongemma": ("<start_function_call>", "<end_function_call>")}
TOOLS = [tool("f", **{"@type": "string", "deep": "object"}), tool("ping")]
KEYS = ["a b", "@type", "*.py", "**/.git", "a[0]", "a+b", "#id", "a(b)", "it's", "a&b", "é", "😀", "a%", "k;l", "\\d+"]


def call(name: str, body: str) -> str:
    return f"call:f{body}".join(MARKS[name])


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_odd_signs(name: str, key: str) -> None:
    message = parse(name, call(name, f"{{deep:{{{key}:1,z:2}},{key}:3}}"), TOOLS, cuts=True)
    (found,) = message.tool_calls
    assert json.loads(found.arguments) == {"deep": {key: 1, "z": 2}, key: "3" if key == "@type" else 3}
    assert message.content == ""


@pytest.mark.parametrize("name", MARKS)
@given(key=st.text(st.characters(exclude_characters=':：=,，{}"<\n“”„‘’‚', codec="utf-8"), min_size=1, max_size=8))
@settings(max_examples=examples(100))
def test_any_key_that_begins_and_ends_nothing_else(name: str, key: str) -> None:
    key = key.strip().lstrip("[](){};'")
    if key == key.strip() != "":
        message = parse(name, call(name, f"{{deep:{{z:2,{key}:[{{{key}:1}}]}}}}"), TOOLS, unknown_tools="refuse")
        (found,) = message.tool_calls
        assert json.loads(found.arguments) == {"deep": {"z": 2, key: [{key: 1}]}}


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize("body", ["{deep:{a b,z:1}}", "{deep:{a", "{z:1 ", "{z:1,", "{a=b:1}"])
def test_a_call_behind_one_that_cannot_be_read_is_read(name: str, body: str) -> None:
    message = parse(name, call(name, body) + "call:ping{}".join(MARKS[name]), TOOLS, cuts=True)
    assert [found.name for found in message.tool_calls] == ["ping"]
    assert body in message.content

"""The doctor names the place where a prompt first differs from the turn before."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.doctor import ORDER, REASONING, Doctor

Asked = dict[str, Any]


def tool(name: str) -> Asked:
    properties = {"path": {"type": "string"}, "line": {"type": "integer", "description": "From 1."}}
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": parameters}}


def request() -> Asked:
    """The second turn of a coding agent."""
    return {
        "tools": [tool(name) for name in ("read", "write", "search", "run")],
        "messages": [
            {"role": "system", "content": "x-note: cch=91af;\nYou are an agent. Today is 2026-11-22. Be brief. " * 3},
            {"role": "user", "content": "Read the file <total_tokens>812 tokens left</total_tokens> please."},
            {
                "role": "assistant",
                "content": "I read it.",
                "reasoning_content": "The user wants the file.",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "text of the file"},
            {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        ],
    }


def swapped(values: list[Any], one: int, other: int) -> None:
    values[one], values[other] = values[other], values[one]


def replaced(asked: Asked, index: int, old: str, new: str) -> None:
    content = asked["messages"][index]["content"]
    assert old in content
    asked["messages"][index]["content"] = content.replace(old, new, 1)


def reversed_keys(asked: Asked) -> None:
    function = asked["tools"][2]["function"]
    function["parameters"] = dict(reversed(function["parameters"].items()))


CHANGES: dict[str, tuple[Callable[[Asked], Any], str, str]] = {
    "a tool reordered": (lambda a: swapped(a["tools"], 1, 3), "tools[1]", ORDER),
    "a tool added in front": (lambda a: a["tools"].insert(0, tool("list")), "tools[0]", ""),
    "a tool added at the end": (lambda a: a["tools"].append(tool("list")), "tools[4]", ""),
    "a tool dropped": (lambda a: a["tools"].pop(2), "tools[2]", ""),
    "no tools any more": (lambda a: a.pop("tools"), "tools[0]", ""),
    "a tool's description": (
        lambda a: a["tools"][3]["function"].update(description="To run now."),
        "tools[3].function.description characters 3-11",
        "",
    ),
    "a tool renamed": (
        lambda a: a["tools"][0]["function"].update(name="view"),
        "tools[0].function.name characters 0-4",
        "",
    ),
    "a schema's keys in another order": (reversed_keys, "tools[2].function.parameters", ORDER),
    "a required field more": (
        lambda a: a["tools"][1]["function"]["parameters"]["required"].append("line"),
        "tools[1].function.parameters.required[1]",
        "",
    ),
    "a date in the system prompt": (
        lambda a: replaced(a, 0, "2026-11-22", "2026-11-23"),
        "messages[0].content characters 45-56",
        "a date or time",
    ),
    "a nonce": (lambda a: replaced(a, 0, "cch=91af", "cch=03be"), "messages[0].content characters 8-16", "billing"),
    "a sentence more in the system prompt": (
        lambda a: replaced(a, 0, "Be brief.", "Be brief. Be kind."),
        "messages[0].content characters",
        "",
    ),
    "a count of tokens in the history": (
        lambda a: replaced(a, 1, "812 tokens", "640 tokens"),
        "messages[1].content characters 28-31",
        "",
    ),
    "a user's message edited": (lambda a: replaced(a, 1, "please", "now"), "messages[1].content characters 59-63", ""),
    "a reasoning dropped": (
        lambda a: a["messages"][2].pop("reasoning_content"),
        "messages[2].reasoning_content",
        REASONING,
    ),
    "arguments written in another way": (
        lambda a: a["messages"][2]["tool_calls"][0]["function"].update(arguments='{"path": "a"}'),
        "messages[2].tool_calls[0].function.arguments characters",
        "",
    ),
    "the id of a call": (
        lambda a: a["messages"][2]["tool_calls"][0].update(id="call_9"),
        "messages[2].tool_calls[0].id characters 0-6",
        "",
    ),
    "a result cut": (
        lambda a: replaced(a, 3, "text of the file", "[removed]"),
        "messages[3].content characters 0-9",
        "",
    ),
    "a message dropped": (lambda a: a["messages"].pop(3), "messages[3]", ""),
    "a reminder in the middle": (
        lambda a: a["messages"].insert(1, {"role": "user", "content": "Remember: be brief."}),
        "messages[1]",
        "",
    ),
    "content as parts": (
        lambda a: a["messages"][1].update(content=[{"type": "text", "text": "Read"}]),
        "messages[1].content",
        "",
    ),
    "an answer's text": (
        lambda a: a["messages"][4]["content"][0].update(text="Done!"),
        "messages[4].content[0].text characters 0-5",
        "",
    ),
}


def look(doctor: Doctor, asked: Asked) -> list[Any]:
    tools = json.dumps(asked["tools"]).encode() if "tools" in asked else b""
    return doctor.compare(tools, json.dumps(asked["messages"]).encode())


@pytest.mark.parametrize("name", CHANGES)
def test_the_place_is_named(name: str) -> None:
    change, place, advice = CHANGES[name]
    doctor, before = Doctor(), request()
    assert look(doctor, before) == []
    after = deepcopy(before)
    change(after)
    after["messages"] += [{"role": "user", "content": "And now?"}]
    (found,) = look(doctor, after)
    assert found.place.startswith(place), found
    assert advice in found.advice


def test_a_conversation_that_goes_on_has_no_finding() -> None:
    doctor, asked = Doctor(), request()
    for number in range(5):
        assert look(doctor, asked) == []
        asked["messages"] += [{"role": "user", "content": f"And {number}?"}, {"role": "assistant", "content": "Yes."}]


def test_another_conversation_is_no_finding() -> None:
    doctor, asked = Doctor(), request()
    look(doctor, asked)
    other = {**asked, "messages": [asked["messages"][0], {"role": "user", "content": "Something else."}]}
    assert look(doctor, other) == []
    # The first one is remembered.
    replaced(asked, 3, "text", "TEXT")
    (found,) = look(doctor, asked)
    assert found.place.startswith("messages[3]")


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_request_breaks_it(tools: bytes, messages: bytes) -> None:
    doctor = Doctor()
    doctor.compare(tools, messages)
    assert doctor.compare(messages, tools) is not None


def test_a_long_text_that_changes_in_its_middle() -> None:
    doctor = Doctor()
    hi = {"role": "user", "content": "hi"}
    for middle in ("one", "two"):
        system = {"role": "system", "content": "word " * 75_000 + middle + "x" * 500_000}
        found = look(doctor, {"messages": [system, hi]})
    assert [each.place for each in found] == ["messages[0].content characters 375000-375043"]

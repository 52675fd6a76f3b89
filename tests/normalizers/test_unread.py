"""A call that stands in an answer's text, since nobody read it."""

from __future__ import annotations

import json
import time

import pytest

from normalizers import registry
from normalizers.unread import MAX_CHARACTERS, unread_call
from normalizers.write.render import render_calls

TOOLS = ["get_weather", "calendar.create-event", "now"]
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
UNREAD = {
    "bare": CALL,
    "in a fence": f"```json\n{CALL}\n```",
    "after a sentence": f"I look it up. {CALL}",
    "before a sentence": f"{CALL} That is the call.",
    "in a list": f"[{CALL}]",
    "in words that quote another": f'{{"name": "Ann", "arguments": "many"}} {CALL}',
    "pretty": json.dumps(json.loads(CALL), indent=4),
    "in Python's quotes": "{'name': 'get_weather', 'arguments': {'city': 'Paris'}}",
    "parameters": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "tool and args": '{"tool": "get_weather", "args": {}}',
    "tool_name": '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {}}',
    "a function in it": f'{{"type": "function", "function": {CALL}}}',
    "a name alone": '{"name": "now"}',
    "an id before": '{"id": "call_1", "type": "function", "name": "now", "arguments": {}}',
    "cut": '{"name": "get_weather", "arguments": {"ci',
    "a dotted name": '{"name": "calendar.create-event", "arguments": {}}',
    "Python": 'get_weather(city="Paris")',
    "Python without arguments": "now()",
    "Python in a list": '[get_weather(city="Paris"), now()]',
    "Python in a fence": '```python\nget_weather(city="Paris")\n```',
    "a name before an object": 'get_weather({"city": "Paris"})',
    "an action": 'Thought: I need the weather.\nAction: get_weather\nAction Input: {"city": "Paris"}',
    "a line of a tool": "Tool: now\nArguments: {}",
    "a mark of an undeclared tool": '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
    "a mark alone": "<tool_call>",
    "a mark with an attribute": '<tool_call id="1">get_weather',
    "another family's mark": '<TOOLCALL>[{"name": "x", "arguments": {}}]</TOOLCALL>',
    "Cohere's": "<|START_ACTION|>[…]<|END_ACTION|>",
}
READ = {
    "nothing": "",
    "words": "It is sunny in Paris.",
    "words about a tool": "I could call get_weather, which takes a city.",
    "a call in a sentence": "The call get_weather(city) isn't possible.",
    "a quoted mark": "Write `<tool_call>` to begin a call.",
    "a mark in quotes": 'The text "<tool_call>" begins a call.',
    "other JSON": '{"city": "Paris", "temp_c": 21}',
    "the name of somebody": '{"name": "Ann", "arguments": "many"}',
    "an undeclared tool": '{"name": "rm", "arguments": {}}',
    "a tool's description": '{"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}',
    "a tool's name in other JSON": '{"city": "Paris", "source": "get_weather"}',
    "no object": '"name": "get_weather", "arguments": {}',
    "behind an object": '{"a": 1} "name": "now"}',
    "other code": "print(now)\nfetch(city=1)",
    "HTML": "<table><tr><td>[1]</td></tr></table>",
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_looks_like_a_call(name: str) -> None:
    found = unread_call(UNREAD[name], TOOLS)
    assert found
    assert found in UNREAD[name]


@pytest.mark.parametrize("name", READ)
def test_what_looks_like_none(name: str) -> None:
    assert unread_call(READ[name], TOOLS) is None


@pytest.mark.parametrize("format", [name for name in registry.names() if name not in ("native_json", "auto")])
def test_the_calls_of_every_format(format: str) -> None:
    written = render_calls(registry.get(format), [json.loads(CALL)])
    assert unread_call(f"I look.\n{written}", TOOLS)


@pytest.mark.parametrize(
    "piece", ["{", '"name": "', '{"name": "now", ', "[a", "\n ", "now(", "<", '{"name":' + " " * 30]
)
def test_it_takes_a_bounded_time(piece: str) -> None:
    text = piece * (4 * MAX_CHARACTERS // len(piece))
    began = time.process_time()
    unread_call(text, TOOLS)
    assert time.process_time() - began < 1.0

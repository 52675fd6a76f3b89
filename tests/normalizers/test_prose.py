"""200 answers that quote, explain or list calls of declared tools: no call, and every byte is there."""

from __future__ import annotations

import json

import pytest

from normalizers import FormatSpec, TextDelta, coalesce, fold, get, names
from normalizers.events import ToolCall
from normalizers.write.render import render_calls
from tests.normalizers.splits import run, splits, tool

TOOLS = [
    tool("get_weather", ["city"], city="string", days="integer"),
    tool("add", ["a", "b"], a="number", b="number"),
    tool("ping"),
]
WEATHER = {"city": "Paris", "days": 2}
SPELLINGS = {
    "name and arguments": json.dumps({"name": "get_weather", "arguments": WEATHER}),
    "name and parameters": json.dumps({"name": "get_weather", "parameters": WEATHER}),
    "tool and args": json.dumps({"tool": "get_weather", "args": WEATHER}),
    "on several lines": json.dumps({"name": "get_weather", "arguments": WEATHER}, indent=2),
    "within function": json.dumps({"type": "function", "function": {"name": "get_weather", "arguments": WEATHER}}),
    "arguments as text": json.dumps({"name": "get_weather", "arguments": json.dumps(WEATHER)}),
    "arguments first": json.dumps({"arguments": {"a": 1, "b": 2}, "name": "add"}),
    "a list": json.dumps([{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "ping", "arguments": {}}]),
    "Python's literals": str({"name": "get_weather", "arguments": WEATHER}),
    "none needed": json.dumps({"name": "ping", "arguments": {}}),
}
CONTEXTS = {
    "a sentence": "To look it up, I would write {} and wait for the result.",
    "a sentence's end": "A call of the tool looks like {}.",
    "back-ticks": "Write `{}` to call it.",
    "double back-ticks": "Write ``{}`` to call it.",
    "a fence with prose behind it": "Like this:\n\n```json\n{}\n```\n\nThe tool then answers.",
    "a fence of Markdown": "Copy this:\n\n````markdown\n```json\n{}\n```\n````\n\nThat is all.",
    "a fence at the start": "```json\n{}\n```\nis what such a call looks like.",
    "tildes": "~~~json\n{}\n~~~\nThat was the call.",
    "indented code": "Like this:\n\n    {}\n\nThe tool then answers.",
    "Python": "```python\npayload = {}\nsend(payload)\n```\nruns it.",
    "a shell": "Run:\n\n```sh\ncurl -d '{}' localhost\n```\n\nand see.",
    "a table": "| tool | call |\n|---|---|\n| weather | {} |\n\nThese are all.",
    "list items": "There are two ways:\n\n1. {}\n2. asking the user\n\nI prefer the second.",
    "a quotation": "The manual says:\n\n> {}\n\nbut it is wrong.",
    "quotation marks": 'The manual says "{}" on page 3.',
    "parentheses": "The call ({}) is what the log shows.",
    "a comparison": "Not {} but the other one is right, I think.",
    "a question": "Shall I send {}?",
    "HTML": "<p>{}</p>\nis the page's source.",
    "a log": "12:00 INFO sent {}\n12:01 INFO done\nThat is the log.",
}
PROSE = {
    f"{spelling}, {place}": text.format(call)
    for place, text in CONTEXTS.items()
    for spelling, call in SPELLINGS.items()
}
FORMATS = [name for name in names() if not get(name).inline]
"""Without those whose models are taught to write calls into their prose."""


def text_of(spec: FormatSpec, text: str) -> None:
    for pieces in splits(text, random_splits=2):
        events = coalesce(run(spec, pieces, TOOLS, unknown_tools="refuse"))
        assert events == [TextDelta(text)], pieces


def test_there_are_200() -> None:
    assert len(set(PROSE.values())) == len(PROSE) == 200


@pytest.mark.parametrize("name", FORMATS)
def test_calls_in_prose_are_text(name: str) -> None:
    for text in PROSE.values():
        text_of(get(name), text)


TILDES = "Like this:\n\n~~~\n{}\n~~~\n\nThe tool then answers."
QUOTES = {**CONTEXTS, "a fence of tildes with prose behind it": TILDES}
QUOTING = ("back-ticks", "double back-ticks", "a fence with prose behind it", "a fence of tildes with prose behind it")


@pytest.mark.parametrize("name", [name for name in FORMATS if get(name).open and not get(name).begun])
def test_so_are_the_format_s_own_calls_in_quotes(name: str) -> None:
    spec = get(name)
    call = render_calls(spec, [ToolCall("functions.get_weather:0", "get_weather", json.dumps(WEATHER))])
    for place in QUOTING:
        if "\n" not in call or "fence" in place:
            text_of(spec, QUOTES[place].format(call.strip("\n")))


@pytest.mark.parametrize(
    ("name", "text", "content", "reasoning"),
    [
        ("harmony", "x <|channel|>final<|message|>y", "x y", ""),
        ("inkling", "x<|content_text|>y", "xy", ""),
        ("inkling", "x <|content_thinking|>y", "x ", "y"),
    ],
)
def test_a_message_within_a_line_that_the_end_cuts_is_told_once(
    name: str, text: str, content: str, reasoning: str
) -> None:
    for pieces in splits(text, cuts=True):
        message = fold(run(name, pieces, TOOLS, unknown_tools="refuse"))
        assert (message.content, message.reasoning) == (content, reasoning), pieces

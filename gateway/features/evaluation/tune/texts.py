"""Requests that represent typical uses of a model: prose, a code edit, JSON, tool calls. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]

_CODE = '''\
class Order:
    """What one customer ordered."""

    def __init__(self, number, customer):
        self.number = number
        self.customer = customer
        self.lines = []

    def add_line(self, article, price, count):
        if count < 1:
            raise ValueError("count must be at least 1")
        self.lines.append({"article": article, "price": price, "count": count})

    def remove_line(self, article):
        self.lines = [line for line in self.lines if line["article"] != article]

    def total(self):
        return sum(line["price"] * line["count"] for line in self.lines)

    def count(self):
        return sum(line["count"] for line in self.lines)
'''

_PEOPLE = {
    "type": "object",
    "properties": {
        "people": {
            "type": "array",
            "minItems": 6,
            "maxItems": 6,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 30},
                    "age": {"type": "integer", "minimum": 18, "maximum": 99},
                    "city": {"type": "string", "maxLength": 20},
                    "married": {"type": "boolean"},
                },
                "required": ["name", "age", "city", "married"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["people"],
    "additionalProperties": False,
}


def _tool(name: str, purpose: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": purpose, "parameters": parameters}}


_TOOLS = [
    _tool("read_file", "Reads a text file.", path={"type": "string", "maxLength": 60}),
    _tool(
        "search_files",
        "Finds text in the files of a folder.",
        folder={"type": "string", "maxLength": 60},
        text={"type": "string", "maxLength": 60},
    ),
    _tool(
        "send_mail",
        "Sends a message to one person.",
        to={"type": "string", "maxLength": 40},
        subject={"type": "string", "maxLength": 60},
        message={"type": "string", "maxLength": 240},
    ),
]


def _prose(number: int, tokens: int) -> Body:
    # Hot enough that a small model doesn't repeat itself, which would flatter speculation.
    asked = f"Write the story of lighthouse keeper number {number}, who finds a letter in a bottle on the beach."
    return {**_asked(asked, tokens), "temperature": 0.9, "seed": number, "ignore_eos": True}


def _code_edit(number: int, tokens: int) -> Body:
    file = _CODE.replace("Order", f"Order{number}")
    asked = f"Here is orders{number}.py:\n\n```python\n{file}```\n\nRename `total` to `amount`. Write the whole file."
    return {**_asked(asked, tokens), "ignore_eos": True}


def _json(number: int, tokens: int) -> Body:
    schema = {"type": "json_schema", "json_schema": {"name": "people", "strict": True, "schema": _PEOPLE}}
    asked = f"Invent the 6 people who live in house number {number} of a small town. Answer in JSON."
    return {**_asked(asked, tokens), "response_format": schema}


def _tool_call(number: int, tokens: int) -> Body:
    asked = (
        f"Send a mail to anna{number}@example.com. Its subject is the meeting of day {number}. Tell her that the "
        f"meeting is moved to room {number} on the second floor, and that she should bring the plans of the bridge."
    )
    named = {"type": "function", "function": {"name": "send_mail"}}
    return {**_asked(asked, tokens), "tools": _TOOLS, "tool_choice": named}


def _asked(text: str, tokens: int) -> Body:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}


def to_read(number: int) -> Body:
    """A request for one token after a prompt of several steps, which begins as no other does."""
    return _asked(f"File {number}:\n" + _CODE.replace("Order", f"Order{number}") * 2 + "\nIs this right?", 1)


TEXTS: dict[str, Callable[[int, int], Body]] = {
    "prose": _prose,
    "code edit": _code_edit,
    "JSON": _json,
    "tool call": _tool_call,
}
"""Kind of text → a function (number, most tokens) → request. Prompts with different numbers end differently."""

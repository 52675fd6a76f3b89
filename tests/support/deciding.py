"""Questions to a model that decides whether to call, asked whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core import Gateway
from tests.formats.asking import ASK, WEATHER, Json, Said, ask, tool

TOOLS = [tool(WEATHER), tool({"name": "now"})]
UNIT: Json = {"type": "object", "properties": {"unit": {"enum": ["celsius", "kelvin"]}}, "required": ["unit"]}
NONE: Json = {"type": "object", "properties": {}}
SHORT = [tool({"name": "convert", "parameters": UNIT}), tool({"name": "now", "parameters": NONE})]
"""Calls that are short, whatever the model writes; it knows one of the formats alone."""
HELLO: Json = {"role": "user", "content": "Say hello."}
RESULT: Sequence[Json] = (
    ASK,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"time": "12:00"}'},
)


async def both(gateway: Gateway, *messages: Json, **fields: Any) -> Said:
    """The answer, whole and streamed, which are the same."""
    whole, streamed = [await ask(gateway, *messages, **fields, stream=stream) for stream in (False, True)]
    assert (whole.content, whole.parsed) == (streamed.content, streamed.parsed)
    assert whole.finish_reason == streamed.finish_reason
    assert whole.ctxgate.get("call_threshold") == streamed.ctxgate.get("call_threshold")
    # The engine computes the second answer from the first one's prefix, in batches of another size.
    told = [said.ctxgate.get("call_probability") for said in (whole, streamed)]
    assert told == ([None, None] if None in told else [pytest.approx(told[0], abs=0.01)] * 2)
    return streamed

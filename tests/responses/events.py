"""What an engine streams, and the order of the events of /v1/responses that come of it."""

from __future__ import annotations

from tests.api.asking import WEATHER, call, said
from tests.gateway.double import Json, Script, chunk

TOOLS: list[Json] = [
    {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": WEATHER, "strict": False},
    {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "Edits files."},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Other agents.",
        "tools": [{"type": "function", "name": "close", "parameters": {"type": "object"}, "strict": False}],
    },
]

START = ["response.created", "response.in_progress"]
MESSAGE = [
    "response.output_item.added message",
    "response.content_part.added output_text",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done output_text",
    "response.output_item.done message",
]
REASONING = [
    "response.output_item.added reasoning",
    "response.content_part.added reasoning_text",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done reasoning_text",
    "response.output_item.done reasoning",
]
SUMMED = [
    "response.output_item.added reasoning",
    "response.content_part.added reasoning_text",
    "response.reasoning_summary_part.added summary_text",
    "response.reasoning_text.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done reasoning_text",
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done summary_text",
    "response.output_item.done reasoning",
]
"""Reasoning of which a summary was asked for."""
CALL = [
    "response.output_item.added function_call",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done function_call",
]
CUSTOM = [
    "response.output_item.added custom_tool_call",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.output_item.done custom_tool_call",
]
NO_DELTA = [event for event in MESSAGE if not event.endswith("delta")]

CASES: dict[str, tuple[Script, list[str]]] = {
    "a text": (said(chunk(role="assistant", content=""), chunk("Hel"), chunk("lo")), [*START, *MESSAGE]),
    "nothing": (said(), [*START, *NO_DELTA]),
    "a call": (
        said(*call(0, "call_1", "get_weather", '{"city":', '"Paris"}'), reason="tool_calls"), [*START, *CALL],
    ),
    "a call without arguments": (said(*call(0, "call_1", "now"), reason="tool_calls"), [*START, *CALL]),
    "two calls, the first without arguments": (
        said(*call(0, "a", "now"), *call(1, "b", "get_weather", '{"city":"Rome"}'), reason="tool_calls"),
        [*START, *CALL, *CALL],
    ),
    "two calls": (
        said(
            *call(0, "call_1", "get_weather", '{"city":"Paris"}'),
            *call(1, "call_2", "get_weather", '{"city":', '"Rome"}'),
            reason="tool_calls",
        ),
        [*START, *CALL, *CALL],
    ),
    "a text, then a call": (
        said(chunk("Let me see."), *call(0, "c", "get_weather", '{"city":"Paris"}'), reason="tool_calls"),
        [*START, *MESSAGE, *CALL],
    ),
    "reasoning, then a text": (
        said(chunk(reasoning_content="Hm"), chunk(reasoning_content="m."), chunk("Yes.")),
        [*START, *REASONING, *MESSAGE],
    ),
    "reasoning, then a call": (
        said(chunk(reasoning_content="Hm."), *call(0, "c", "now", "{}"), reason="tool_calls"),
        [*START, *REASONING, *CALL],
    ),
    "a custom tool": (
        said(*call(0, "c", "apply_patch", '{"input": "***', ' Begin\\n', 'x"}'), reason="tool_calls"),
        [*START, *CUSTOM],
    ),
    "a tool in a namespace": (
        said(*call(0, "c", "agents__close", "{}"), reason="tool_calls"), [*START, *CALL],
    ),
}  # fmt: skip

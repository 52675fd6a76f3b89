"""Tools for models whose chat template has no place for them: the list goes into the system message (ADR-003)."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import decode, encode
from normalizers import FormatSpec
from normalizers.events import ToolCall
from normalizers.render import render_calls, render_result, render_tools


def tools_into_prompt(fields: dict[str, Raw], spec: FormatSpec, must: tuple[str, ...] | None = None) -> None:
    """Moves `tools` into the system message of `messages`, and past calls and results into plain text.

    Such a template would drop them without a word. must: the tools of which one has to be called; (): any.
    Raises ProviderInvalidRequest for a tool that no call could name.
    """
    messages: list[dict[str, Any]] = decode(fields["messages"])
    tools = decode(fields.pop("tools"))
    for index, tool in enumerate(tools):
        function = tool.get("function", tool)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            place = f"tools[{index}]"
            raise ProviderInvalidRequest(f"{place}: declare a function with a name; no other tools work", param=place)
    prompt = render_tools(spec, tools)
    fields.pop("tool_choice", None)
    if must is not None:
        prompt += f"\nThis time call {' or '.join(must) or 'one of the tools'}, whatever is said."
    fields.pop("parallel_tool_calls", None)
    names: dict[str, str] = {}
    written = [_as_text(message, spec, names, results=True) for message in messages]
    if written and written[0].get("role") == "system" and isinstance(written[0].get("content"), str):
        written[0] = {**written[0], "content": f"{written[0]['content']}\n\n{prompt}"}
    else:
        written.insert(0, {"role": "system", "content": prompt})
    fields["messages"] = Raw(encode(written))


def calls_into_text(fields: dict[str, Raw], spec: FormatSpec, *, results: bool) -> None:
    """Writes past calls into the content of their messages, as the model wrote them, for a template that drops them.

    results: their results as a user's message, for a template that knows no tools at all.
    """
    names: dict[str, str] = {}
    messages = [_as_text(message, spec, names, results=results) for message in decode(fields["messages"])]
    fields["messages"] = Raw(encode(messages))


def _as_text(message: dict[str, Any], spec: FormatSpec, names: dict[str, str], *, results: bool) -> dict[str, Any]:
    """`names` collects call id -> tool name on the way, for the results that refer to it."""
    if calls := message.get("tool_calls"):
        native = []
        for call in calls:
            function = call.get("function") or {}
            arguments = function.get("arguments") or "{}"
            text = arguments if isinstance(arguments, str) else encode(arguments).decode()
            names[call.get("id", "")] = name = function.get("name", "")
            native.append(ToolCall(call.get("id", ""), name, text))
        others = {key: value for key, value in message.items() if key != "tool_calls"}
        content, written = message.get("content") or "", render_calls(spec, native)
        if isinstance(content, list):
            return {**others, "content": [*content, {"type": "text", "text": written}]}
        return {**others, "content": content + written}
    if results and message.get("role") == "tool":
        name = message.get("name") or names.get(message.get("tool_call_id", ""), "")
        content = message.get("content")
        text = content if isinstance(content, str) else encode(content).decode()
        return {"role": "user", "content": render_result(spec, name, text)}
    return message

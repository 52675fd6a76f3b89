"""Tools for models whose chat template has no place for them: the list goes into the system message (ADR-003)."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import decode, encode
from normalizers import FormatSpec
from normalizers.events import ToolCall
from normalizers.write.render import render_calls, render_result, render_tools


def tools_into_prompt(fields: dict[str, Raw], spec: FormatSpec, must: tuple[str, ...] | None = None) -> None:
    """Moves `tools` into the system message of `messages`, and past calls and results into plain text.

    Such a template would drop them without a word. must: the tools of which one has to be called; (): any.
    Raises ProviderInvalidRequest for a tool that no call could name, and for a call that can't be written.
    """
    messages: list[dict[str, Any]] = decode(fields["messages"])
    tools = decode(fields.pop("tools"))
    for index, tool in enumerate(tools):
        function = tool.get("function", tool)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _malformed(f"tools[{index}]", "declare a function with a name; no other tools work")
    prompt = render_tools(spec, tools)
    fields.pop("tool_choice", None)
    if must is not None:
        prompt += f"\nThis time call {' or '.join(must) or 'one of the tools'}, whatever is said."
    fields.pop("parallel_tool_calls", None)
    written = _as_texts(messages, spec, results=True)
    if written and written[0].get("role") == "system" and isinstance(written[0].get("content"), str):
        written[0] = {**written[0], "content": f"{written[0]['content']}\n\n{prompt}"}
    else:
        written.insert(0, {"role": "system", "content": prompt})
    fields["messages"] = Raw(encode(written))


def calls_into_text(fields: dict[str, Raw], spec: FormatSpec, *, results: bool) -> None:
    """Writes past calls into the content of their messages, as the model wrote them, for a template that drops them.

    results: their results as a user's message, for a template that knows no tools at all.
    Raises ProviderInvalidRequest for a call that can't be written.
    """
    fields["messages"] = Raw(encode(_as_texts(decode(fields["messages"]), spec, results=results)))


def _as_texts(messages: list[dict[str, Any]], spec: FormatSpec, *, results: bool) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    return [
        _as_text(message, spec, names, f"messages[{index}]", results=results) for index, message in enumerate(messages)
    ]


def _as_text(
    message: dict[str, Any], spec: FormatSpec, names: dict[str, str], place: str, *, results: bool
) -> dict[str, Any]:
    """`names` collects call id -> tool name on the way, for the results that refer to it."""
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise _malformed(f"{place}.tool_calls", "expected a list of calls")
        native = [_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)]
        names |= {call.id: call.name for call in native}
        others = {key: value for key, value in message.items() if key != "tool_calls"}
        content, written = message.get("content") or "", render_calls(spec, native)
        if isinstance(content, list):
            return {**others, "content": [*content, {"type": "text", "text": written}]}
        if not isinstance(content, str):
            raise _malformed(f"{place}.content", "expected a text or a list of parts")
        return {**others, "content": content + written}
    if results and message.get("role") == "tool":
        name = message.get("name") or names.get(message.get("tool_call_id", ""), "")
        content = message.get("content")
        text = content if isinstance(content, str) else encode(content).decode()
        return {"role": "user", "content": render_result(spec, name, text)}
    return message


def _call(call: Any, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise _malformed(place, "a call needs a function with a name")
    arguments = function.get("arguments") or "{}"
    return ToolCall(call.get("id", ""), name, arguments if isinstance(arguments, str) else encode(arguments).decode())


def _malformed(place: str, wanted: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"{place}: {wanted}", param=place)

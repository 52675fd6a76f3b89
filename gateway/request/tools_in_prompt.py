"""Tools for models whose chat template has no place for them: the list goes into the system message (ADR-003)."""

from __future__ import annotations

from typing import Any

from gateway.errors import ProviderInvalidRequest
from gateway.request.grammars import tool_name
from gateway.request.repair_history import result_in_words
from gateway.wire.chat import decode, encode
from normalizers import FormatSpec
from normalizers.events import ToolCall
from normalizers.write.instructions import Wording, render_instructions, render_tools
from normalizers.write.render import render_calls

Json = dict[str, Any]


def tools_prompt(
    tools: bytes, spec: FormatSpec, wording: Wording = "brief", must: tuple[str, ...] | None = None
) -> str:
    """The list of `tools`, a JSON array, and how to call them in the format `spec`.

    must: the tools of which the model has to call one; () allows any, None leaves it free.
    Raises ProviderInvalidRequest for a tool without a name, which no call could name.
    """
    declared = decode(tools)
    for index, tool in enumerate(declared):
        if not isinstance(tool_name(tool), str):
            raise _malformed(f"tools[{index}]", "declare a function with a name; no other tools work")
    return render_tools(spec, declared, wording) + _forced(must)


def instructions_prompt(
    tools: bytes, spec: FormatSpec, wording: Wording = "brief", must: tuple[str, ...] | None = None
) -> str:
    """How and when to call the `tools`, which the chat template lists. must: as for `tools_prompt`."""
    names = {name for tool in decode(tools) if isinstance(name := tool_name(tool), str)}
    return render_instructions(spec, names, wording) + _forced(must)


def _forced(must: tuple[str, ...] | None) -> str:
    if must is None:
        return ""
    return f"\nThis time call {' or '.join(must) or 'one of the tools'}, whatever is said."


def calls_as_text(messages: list[Json], spec: FormatSpec, *, results: bool) -> list[Json]:
    """The messages with past calls written into their content, as the model writes them: some templates drop calls.

    results: also turn their results into a user's messages, for a template that knows no tools at all.
    Raises ProviderInvalidRequest for a call that can't be written.
    """
    names: dict[str, str] = {}
    return [
        _as_text(message, spec, names, f"messages[{index}]", results=results) for index, message in enumerate(messages)
    ]


def add_to_system(messages: list[Json], text: str) -> list[Json]:
    """The messages with `text` at the end of the system message, which is made if there is none."""
    first = messages[0] if messages else {}
    if first.get("role") in ("system", "developer") and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _as_text(message: Json, spec: FormatSpec, names: dict[str, str], place: str, *, results: bool) -> Json:
    """`names` collects call id -> tool name, for the results that refer to it."""
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise _malformed(f"{place}.tool_calls", "expected a list of calls")
        native = [_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)]
        names |= {call.id: call.name for call in native}
        others = {key: value for key, value in message.items() if key != "tool_calls"}
        content = message.get("content") or ""
        try:
            written = render_calls(spec, native)
        except ValueError as error:
            raise _malformed(f"{place}.tool_calls", str(error)) from None
        if isinstance(content, list):
            return {**others, "content": [*content, {"type": "text", "text": written}]}
        if not isinstance(content, str):
            raise _malformed(f"{place}.content", "expected a text or a list of parts")
        return {**others, "content": content + written}
    if results and message.get("role") == "tool":
        return result_in_words(message, message.get("name") or names.get(message.get("tool_call_id", ""), ""), spec)
    return message


def _call(call: Any, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise _malformed(place, "a call needs a function with a name")
    arguments = function.get("arguments") or "{}"
    return ToolCall(call.get("id", ""), name, arguments if isinstance(arguments, str) else encode(arguments).decode())


def _malformed(place: str, expected: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"{place}: {expected}", param=place)

"""The inverse of parsing: calls, tool lists and tool results as a format's own text.

For templates that have no place for tools or that drop ``tool_calls`` from history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normalizers.events import ToolCall
from normalizers.spec import FormatSpec


def render_calls(spec: FormatSpec, calls: Sequence[ToolCall | Mapping[str, Any]]) -> str:
    """The assistant's text that makes these calls: ``parse(render_calls(spec, calls)) == calls``.

    A call is a `ToolCall` or an OpenAI tool call. Raises ValueError for arguments that are not a
    JSON object.
    """
    pairs = [_name_and_arguments(call) for call in calls]
    return _RENDERERS.get(spec.dialect, _json_calls)(spec, pairs) if pairs else ""


def render_tools(spec: FormatSpec, tools: Sequence[Mapping[str, Any]]) -> str:
    """The system message's part that lists the tools and says how to call them."""
    if not tools:
        return ""
    example = render_calls(spec, [ToolCall("", "tool_name", '{"parameter": "value"}')])
    listed = ", ".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return (
        f"List of tools: [{listed}]\n\n"
        f"To call a tool, answer with nothing but the call, in exactly this form:\n{example}\n"
        "Use only the tools and parameters listed. If no tool is needed, answer in plain text."
    )


def render_result(spec: FormatSpec, name: str, content: str) -> str:
    """A tool's result as text, for templates without a tool role."""
    if spec.result:
        return spec.result[0] + content + spec.result[1]
    return f"Result of {name}:\n{content}"


Pair = tuple[str, dict[str, Any]]


def _name_and_arguments(call: ToolCall | Mapping[str, Any]) -> Pair:
    if isinstance(call, ToolCall):
        name, arguments = call.name, call.arguments
    else:
        function = call.get("function", call)
        name, arguments = function["name"], function.get("arguments") or "{}"
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(value, dict):
        raise ValueError(f"arguments of {name!r} are not a JSON object")
    return name, value


def _pythonic_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    body = ", ".join(f"{name}({', '.join(map(_keyword, args.items()))})" for name, args in calls)
    opening = spec.open[0] if spec.open else ""
    return f"{opening}[{body}]{spec.close[0] if spec.close else ''}"


def _keyword(item: tuple[str, object]) -> str:
    key, value = item
    if key and all(c.isalnum() or c in "_-." for c in key) and key[0] not in "-.":
        return f"{key}={_python(value)}"
    return f"**{_python({key: value})}"


def _python(value: object) -> str:
    match value:
        case None | bool():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_python(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_python, value)) + "]"
        case _:
            return json.dumps(value)


def _json_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    opening, closing = spec.open[0], spec.close[0] if spec.close else ""
    return "\n".join(
        f"{opening}\n{json.dumps({'name': name, 'arguments': args}, ensure_ascii=False)}\n{closing}"
        for name, args in calls
    )


_RENDERERS: dict[str, Callable[[FormatSpec, Sequence[Pair]], str]] = {
    "pythonic": _pythonic_calls,
    "json": _json_calls,
}

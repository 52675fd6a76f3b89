"""Explains to a model how and when to call its tools: the texts that stand in a system message, in several wordings."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from normalizers.events import ToolCall
from normalizers.spec import FormatSpec
from normalizers.write.render import render_calls

Wording = Literal["brief", "examples"]
"""`examples` shows answers with and without a call, for models that call on everything."""


def render_tools(spec: FormatSpec, tools: Sequence[Mapping[str, Any]], wording: Wording = "brief") -> str:
    """The part of a system message that lists the tools and explains how and when to call them."""
    if not tools:
        return ""
    functions = [tool.get("function", tool) for tool in tools]
    listed = ", ".join(json.dumps(function, ensure_ascii=False) for function in functions)
    names = [function["name"] for function in functions]
    return f"List of tools: [{listed}]\n\n{render_instructions(spec, names, wording)}"


def render_instructions(spec: FormatSpec, names: Collection[str], wording: Wording = "brief") -> str:
    """The part of a system message that explains how and when to call tools that are listed elsewhere.

    names: of the tools. No example calls one of them, since it could have other parameters.
    """
    return WORDINGS[wording](spec, names)


def _brief(spec: FormatSpec, names: Collection[str]) -> str:
    return (
        f"To call a tool, answer with nothing but the call, in exactly this form:\n{_form(spec)}\n"
        "Use only the tools and parameters listed. If no tool is needed, answer in plain text."
    )


def _examples(spec: FormatSpec, names: Collection[str]) -> str:
    """Ends with questions back: small models imitate the last example most."""
    tool = "set_heating"
    while tool in names:
        tool += "_2"
    call = render_calls(spec, [ToolCall("", tool, '{"room": "kitchen", "degrees": 20}')])
    return (
        "If the user asks for something that a tool does and has given every required value, answer with nothing but "
        f"the call, in exactly this form:\n{_form(spec)}\n"
        "If a required value is missing, ask for it in words. If no tool fits or none is needed, answer in words. "
        "Use only the tools and parameters listed.\n\n"
        f"Examples with another tool, {tool}, which needs a room and degrees:\n"
        f"User: Set the heating in the kitchen to 20 degrees.\nAssistant: {call}\n"
        'Result: {"ok": true}\nAssistant: The kitchen is set to 20 degrees.\n'
        "User: Hello!\nAssistant: Hello! How can I help you?\n"
        "User: What is a noun?\nAssistant: A word for a person, a place or a thing.\n"
        "User: Set the heating, please.\nAssistant: In which room, and to how many degrees?\n"
        "User: Make the hall warmer.\nAssistant: To how many degrees?"
    )


def _form(spec: FormatSpec) -> str:
    return render_calls(spec, [ToolCall("", "tool_name", '{"parameter": "value"}')])


WORDINGS: Mapping[Wording, Callable[[FormatSpec, Collection[str]], str]] = {"brief": _brief, "examples": _examples}

"""Grammars for tool calls that the gateway reads from the model's own text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.errors import ProviderInvalidRequest
from gateway.schema.fault import Unchecked, Write
from gateway.wire.chat import ChatRequest, decode
from gateway.wire.engine import Decision, Notation, RawText
from gateway.wire.text import short
from normalizers import FormatSpec
from normalizers.spec import BEGINS_JSON, MAX_CALLS

if TYPE_CHECKING:
    from normalizers.write.grammar import Grammar

MAX_SCHEMA = 1024 * 1024
"""Bytes. A longer schema would exceed the time that its check may take."""


def raw_text(
    request: ChatRequest,
    spec: FormatSpec,
    *,
    write: Write,
    answer: bytes | None = None,
    notation: Notation = "gbnf",
    threshold: float | None = None,
) -> RawText | None:
    """How to ask for the model's text; a `tool_choice` "required" or with a tool's name becomes a grammar.

    If the model decides, a grammar makes sure that each call it begins can be read, and fits its schema if the tool is
    strict. threshold: see `Decision`; it counts if the model decides. answer: a JSON Schema for the text if no call is
    forced. Returns None if a constraint needs a grammar and
    the format has none: then the engine must enforce it. Raises ProviderInvalidRequest for an undeclared tool, and for
    schemas that take `write` too long.
    """
    names = forced_tools(request)
    free = free_text(spec)
    tools = request.tools if request.tools is not None and request.tool_choice != "none" else b"[]"
    calls = MAX_CALLS if request.parallel_tool_calls else 1
    if names is None and answer is None:
        guard = guarding(write, spec, tools, calls, notation, decide=threshold is not None)
        if guard is None:
            return free
        starts = (*spec.open, *spec.begins) if guard.marked else ()
        decision = None
        if threshold is not None and guard.called:
            begins = (*spec.openers, *(BEGINS_JSON if guard.unmarked else ()))
            decision = Decision(threshold, begins, guard.called, guard.words)
        return replace(
            free,
            grammar=guard.text,
            in_reasoning=guard.in_reasoning,
            starts=starts,
            unmarked=guard.unmarked,
            decision=decision,
        )
    if names is not None:
        # The model calls a named tool once.
        calls, answer = 1 if len(names) == 1 else calls, None
    forced = _grammar(write, spec, tools, names or (), calls, notation, answer)
    return None if forced is None else replace(free, grammar=forced.text, in_reasoning=forced.in_reasoning)


def forced_tools(request: ChatRequest) -> tuple[str, ...] | None:
    """The tools of which the model must call one; () means any, None that the model decides.

    Raises ProviderInvalidRequest for an undeclared tool.
    """
    choice = request.tool_choice
    if choice is None or choice == "auto" or choice == "none":
        return None
    if request.tools is None:
        raise ProviderInvalidRequest("tool_choice: no tools are declared", param="tool_choice")
    if choice == "required":
        return ()
    if not isinstance(choice, Mapping):
        message = (
            f"tool_choice: there is no {short(choice)}; allowed: auto, none, required, or a tool's name in an object"
        )
        raise ProviderInvalidRequest(message, param="tool_choice")
    name = tool_name(choice)
    if not isinstance(name, str):
        message = 'tool_choice: it names no tool; write {"type": "function", "function": {"name": "NAME"}}'
        raise ProviderInvalidRequest(message, param="tool_choice")
    declared = [tool_name(tool) for tool in decode(request.tools)]
    if name not in declared:
        known = ", ".join(sorted({str(each) for each in declared}))
        raise ProviderInvalidRequest(
            f"tool_choice: there is no tool {short(name)}; declared: {known}", param="tool_choice"
        )
    return (name,)


def tool_name(tool: Any) -> object:
    """The name in a tool of either shape, or in a choice that names one."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


@lru_cache(maxsize=64)
def free_text(spec: FormatSpec) -> RawText:
    """How to ask for unconstrained text."""
    return RawText(spec.markers if spec.keep_special else (), spec.think)


class _Strict(Struct, gc=False):
    strict: Any = None
    function: _Strict | None = None


_decode_strict = msgspec.json.Decoder(list[_Strict]).decode


def strict(tools: bytes) -> bool:
    """Whether one of the tools is strict."""
    if b'"strict"' not in tools:
        return False
    return any((tool.function or tool).strict is True for tool in _decode_strict(tools))


def guarding(
    write: Write, spec: FormatSpec, tools: bytes, calls: int, notation: Notation, *, decide: bool
) -> Grammar | None:
    """Guards the calls that the model may begin. None if there is no such grammar, or the tools' schemas are too
    costly, unless one of them is strict."""
    if len(tools) <= MAX_SCHEMA:
        try:
            return write(spec, decode(tools), calls=calls, free=True, decide=decide, notation=notation)
        except Unchecked as error:
            if strict(tools):
                raise _refused(error) from None
    elif strict(tools):
        raise _too_long()
    return None


def _grammar(
    write: Write,
    spec: FormatSpec,
    tools: bytes,
    names: tuple[str, ...],
    calls: int,
    notation: Notation,
    answer: bytes | None,
) -> Grammar | None:
    if len(tools) + len(answer or b"") > MAX_SCHEMA:
        raise _too_long()
    schema = decode(answer) if answer is not None else None
    try:
        return write(spec, decode(tools), only=names or None, calls=calls, answer=schema, notation=notation)
    except Unchecked as error:
        raise _refused(error) from None


def _too_long() -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"tools: their schemas are longer than {MAX_SCHEMA} bytes", param="tools")


def _refused(error: Unchecked) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"tools: no grammar can be made of them: {error}", param="tools")

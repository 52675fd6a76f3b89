"""What an answer with tools is held to, where the gateway reads the model's own text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gateway.backends.base import RawText
from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import ChatRequest, decode
from normalizers import FormatSpec
from normalizers.grammar import MAX_CALLS, grammar


def raw_text(request: ChatRequest, spec: FormatSpec) -> RawText | None:
    """How the model's text is asked for; `tool_choice` "required" or with a tool's name becomes a grammar.

    None where a call is forced and the format has no grammar: then the engine must see to it.
    Raises ProviderInvalidRequest for a tool that isn't declared.
    """
    names = forced(request)
    free = _free(spec)
    if names is None:
        return free
    # A named tool is called once.
    calls = MAX_CALLS if len(names) != 1 and request.parallel_tool_calls else 1
    text = _grammar(spec, request.tools or b"[]", names, calls)
    return None if text is None else replace(free, grammar=text)


def forced(request: ChatRequest) -> tuple[str, ...] | None:
    """The tools of which one must be called; (): any; None: the model decides.

    Raises ProviderInvalidRequest for a tool that isn't declared.
    """
    choice = request.tool_choice
    if choice == "required":
        return ()
    if not isinstance(choice, Mapping):
        return None
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if not isinstance(allowed, Mapping) or allowed.get("mode") != "required":
            return None
        named = [_name(tool) for tool in allowed.get("tools") or ()]
    else:
        named = [_name(choice)]
    declared = {_name(tool) for tool in decode(request.tools or b"[]")}
    for name in named:
        if name not in declared:
            known = ", ".join(sorted(map(str, declared)))
            raise ProviderInvalidRequest(
                f"tool_choice: there is no tool {name!r}; declared: {known}", param="tool_choice"
            )
    return tuple(map(str, named))


def _name(tool: Any) -> object:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


@lru_cache(maxsize=64)
def _free(spec: FormatSpec) -> RawText:
    return RawText(spec.markers if spec.keep_special else (), spec.think)


@lru_cache(maxsize=64)
def _grammar(spec: FormatSpec, tools: bytes, names: tuple[str, ...], calls: int) -> str | None:
    return grammar(spec, decode(tools), only=names or None, calls=calls)

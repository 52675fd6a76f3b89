"""`tool_choice` of the type `allowed_tools`: which of the declared tools the model may call. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, cast

import msgspec

from gateway.errors import ProviderInvalidRequest
from gateway.wire.text import short

Json = dict[str, Any]

Mode = Literal["auto", "required"]

ALLOWED_TOOLS = "allowed_tools"
"""The type of such a choice."""


class _Tool(msgspec.Struct, gc=False):
    """A declared tool of either form, checked before; nothing else of it is decoded."""

    name: Any = None
    function: _Tool | None = None


_decode_names = msgspec.json.Decoder(list[_Tool]).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def only_allowed(choice: Mapping[str, Any], tools: bytes) -> tuple[bytes, Mode]:
    """The tools that a chat request's choice lists, and the choice among them.

    choice: OpenAI's chat form, with the list below `allowed_tools`, or the flat form of its Responses. tools: the
    declared tools, a JSON array. Raises ProviderInvalidRequest, which names the field of the choice.
    """
    nested = ALLOWED_TOOLS in choice
    place = f"tool_choice.{ALLOWED_TOOLS}" if nested else "tool_choice"
    allowed = choice[ALLOWED_TOOLS] if nested else choice
    mode = mode_of(allowed, place)
    declared = [(tool.function or tool).name for tool in _decode_names(tools)]
    known = {name for name in declared if isinstance(name, str)}
    names = set()
    for entry, where in listed(allowed, place):
        check_function(entry, where)
        holder = entry.get("function", entry)
        names.add(name_of(holder, where if holder is entry else f"{where}.function", known))
    kept = zip(declared, _decode_raw(tools), strict=True)
    return _encode([tool for name, tool in kept if isinstance(name, str) and name in names]), mode


def mode_of(allowed: Any, place: str) -> Mode:
    """The choice among the allowed tools; auto if it isn't said."""
    if not isinstance(allowed, Mapping):
        raise _invalid(place, 'must be an object, as {"mode": "auto", "tools": [{"type": "function", …}]}')
    mode = "auto" if allowed.get("mode") is None else allowed["mode"]
    if mode not in ("auto", "required"):
        raise _invalid(f"{place}.mode", f"there is no {short(mode)}; allowed: auto, required")
    return cast(Mode, mode)


def listed(allowed: Mapping[str, Any], place: str) -> Iterator[tuple[Json, str]]:
    """The entries of the list, each with its place in the request."""
    entries, place = allowed.get("tools"), f"{place}.tools"
    if not isinstance(entries, list):
        raise _invalid(place, "must be a list of the tools that the model may call")
    if not entries:
        raise _invalid(place, 'it allows no tool: list at least one, or send "none" as tool_choice')
    for at, entry in enumerate(entries):
        where = f"{place}[{at}]"
        if not isinstance(entry, dict):
            raise _invalid(where, 'must be an object, as {"type": "function", "function": {"name": "NAME"}}')
        yield entry, where


def check_function(entry: Json, place: str) -> None:
    kind = entry.get("type")
    if kind is not None and kind != "function":
        raise _invalid(f"{place}.type", f"only functions can be allowed here, not {short(kind)}; leave it out")


def name_of(holder: Any, place: str, declared: Iterable[str]) -> str:
    """The name in an entry, or in its function, which must be declared."""
    name = holder.get("name") if isinstance(holder, Mapping) else None
    if not isinstance(name, str) or not name:
        raise _invalid(f"{place}.name", "it names no tool: write the name of a declared one")
    if name not in declared:
        raise _invalid(
            f"{place}.name", f"there is no tool {short(name)}; declared: {', '.join(sorted(declared)) or 'none'}"
        )
    return name


def choice_of(names: Iterable[str], mode: Mode) -> Json:
    """A chat request's choice that allows the tools of these names."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": ALLOWED_TOOLS, ALLOWED_TOOLS: {"mode": mode, "tools": tools}}


def freed(choice: Any) -> Any:
    """A chat request's choice once the call that it required has been made."""
    if isinstance(choice, Mapping) and isinstance(allowed := choice.get(ALLOWED_TOOLS), Mapping):
        return {**choice, ALLOWED_TOOLS: {**allowed, "mode": "auto"}}
    return choice if choice in (None, "none") else "auto"


def _invalid(place: str, message: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"{place}: {message}", param=place)

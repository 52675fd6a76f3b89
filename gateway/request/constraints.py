"""What an answer has to hold to beyond words, and which way each engine is held to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Raw, Struct

from gateway.errors import ProviderInvalidRequest
from gateway.request.grammars import forced, tool_name
from gateway.wire.chat import ChatRequest, decode, encode

Json = dict[str, Any]

Kind = Literal["call", "json", "json or call"]
"""A tool must be called; the text must be JSON; the same where tools may be called instead."""

Way = Literal["engine", "grammar", "checked", "refused"]
"""The engine holds to it by itself; a grammar of ours does, in the model's own dialect; the answer is held back until
it is seen to conform, and asked for again if it doesn't; a 400."""

_CHECKED: Mapping[Kind, Way] = {"call": "checked", "json": "checked", "json or call": "checked"}

WAYS: Mapping[str, Mapping[Kind, Way]] = {
    # Where the dialect is known and has a grammar; else checked.
    "llama.cpp": {"call": "grammar", "json": "engine", "json or call": "grammar"},
    "llama-cpp-python": _CHECKED,
    "mlx": _CHECKED,
    "ollama": {"call": "checked", "json": "engine", "json or call": "checked"},
    "openai": _CHECKED,
    "echo": {"call": "refused", "json": "refused", "json or call": "refused"},
}
"""By runtime; a backend of a user's own is checked. Held everywhere by the gateway itself: `tool_choice` "none" (the
tools aren't shown, calls are dropped) and `parallel_tool_calls` false (further calls are dropped)."""

UNTOLD = ("llama-cpp-python", "mlx", "ollama")
"""Runtimes whose checked constraints the engine doesn't understand: the model is told in words, from the start."""


class Constraint(Struct, frozen=True):
    """must: the tools of which one has to be called; (): any. schema: of the text, None: any JSON object."""

    kind: Kind
    must: tuple[str, ...] = ()
    schema: Json | None = None

    def way(self, runtime: str) -> Way:
        return WAYS.get(runtime, _CHECKED)[self.kind]

    @property
    def text_schema(self) -> bytes | None:
        """The JSON Schema of an answer in text, where calls are free; None where its text is."""
        return encode(self.schema or {"type": "object"}) if self.kind == "json or call" else None

    def told(self) -> str:
        """The constraint in words, for a model."""
        if self.kind == "call":
            return f"Call {' or '.join(self.must) or 'one of the tools'} now, whatever is said, and write nothing else."
        value = "one JSON object" if self.schema is None else "one JSON value"
        told = f"Answer with {value}, and with nothing else: no words around it, no code fence."
        if self.kind == "json or call":
            told += " This is about an answer in text: calling a tool stays allowed."
        if self.schema is not None:
            told += f" It has to conform to this JSON Schema: {encode(self.schema).decode()}"
        return told


def constraint(request: ChatRequest) -> Constraint | None:
    """What the request constrains its answer to.

    Raises ProviderInvalidRequest for a tool that isn't declared, a response_format that is none, a schema that isn't.
    """
    must = forced(request)
    if must is not None:
        return Constraint("call", must)
    format = request.response_format
    kind = None if format is None else format.get("type")
    if kind is None or kind == "text":
        return None
    may_call = request.tools is not None and request.tool_choice != "none"
    if kind == "json_object":
        return Constraint("json or call" if may_call else "json")
    if kind != "json_schema":
        raise ProviderInvalidRequest(
            f"response_format.type: there is no {kind!r}; allowed: text, json_object, json_schema",
            param="response_format.type",
        )
    named = format.get("json_schema") if format is not None else None
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        where = "response_format.json_schema.schema"
        raise ProviderInvalidRequest(f"{where}: a JSON Schema is needed", param=where)
    return Constraint("json or call" if may_call else "json", schema=schema)


def keep_allowed_tools(fields: dict[str, Raw], request: ChatRequest, *, named: bool) -> None:
    """Leaves only the tools that a `tool_choice` of allowed ones allows, and says the rest in words every engine knows.

    named: likewise for one that names a tool. Raises ProviderInvalidRequest for allowed tools that are no list.
    """
    choice = request.tool_choice
    if not isinstance(choice, Mapping) or "tools" not in fields:
        return
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
        if listed and not isinstance(listed, list):
            raise ProviderInvalidRequest("tool_choice: its allowed tools are no list", param="tool_choice")
        names = [tool_name(tool) for tool in listed or ()]
        mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
        fields["tool_choice"] = Raw(b'"required"' if mode == "required" else b'"auto"')
    elif named:
        names = [tool_name(choice)]
    else:
        return
    tools = [tool for tool in decode(fields["tools"]) if tool_name(tool) in names]
    if tools:
        fields["tools"] = Raw(encode(tools))


def tell(fields: dict[str, Raw], wish: Constraint, runtime: str) -> None:
    """Puts a constraint that the engine doesn't understand into words, in the system message."""
    if wish.kind == "call":
        # The tools are there, and most models call one; who doesn't is told when asked again.
        return
    fields.pop("response_format", None)
    if runtime == "llama-cpp-python" and wish.kind == "json":
        fields["response_format"] = Raw(b'{"type":"json_object"}')
    messages: list[Json] = decode(fields["messages"])
    if messages[0].get("role") in ("system", "developer") and isinstance(messages[0].get("content"), str):
        messages[0] = {**messages[0], "content": f"{messages[0]['content']}\n\n{wish.told()}"}
    else:
        messages.insert(0, {"role": "system", "content": wish.told()})
    fields["messages"] = Raw(encode(messages))


def refused(wish: Constraint, runtime: str) -> ProviderInvalidRequest:
    param = "tool_choice" if wish.kind == "call" else "response_format"
    return ProviderInvalidRequest(f"{param}: runtime {runtime} can't be held to it", param=param)

"""Rare fields of chat requests, which would be dropped silently: translates them, or refuses them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import ProviderInvalidRequest

Json = dict[str, Any]

decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode

RANGES = {"presence_penalty": 2, "frequency_penalty": 2}
"""Fields of a chat or a completion → their largest absolute value, as OpenAI's API has it."""


def translated(fields: Mapping[str, Raw]) -> bytes | None:
    """The body with tools in place of `functions`; None if it has none.

    Raises ProviderInvalidRequest for a rare field that asks for something that nothing here does.
    """
    try:
        _check(fields)
        asked = any(bytes(fields.get(name, b"null")) != b"null" for name in ("functions", "function_call"))
        return with_tools(fields) if asked else None
    except RecursionError:
        raise ProviderInvalidRequest("the request body is not valid: it is nested too deeply") from None


def _check(fields: Mapping[str, Raw]) -> None:
    check_ranges(fields, least=1)
    for name, harmless, message in REFUSED:
        if name in fields and decode(fields[name]) not in harmless:
            raise ProviderInvalidRequest(f"{name}: {message}", param=name)


def check_ranges(fields: Mapping[str, Raw], least: int = 0) -> None:
    """least: of a limit of tokens; to engines, -1 is none. Raises ProviderInvalidRequest for what no engine takes."""
    for name in ("max_tokens", "max_completion_tokens"):
        if name in fields and type(limit := decode(fields[name])) is int and limit < least and limit != -1:
            raise ProviderInvalidRequest(f"{name}: must be at least {least}", param=name)
    for name, maximum in RANGES.items():
        value = decode(fields[name]) if name in fields else None
        if value is not None and not (type(value) in (int, float) and abs(value) <= maximum):
            raise ProviderInvalidRequest(f"{name}: must be a number from -{maximum} to {maximum}", param=name)


REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("modalities", (None, [], ["text"]), 'answers come as text alone, unless the model has speak_with; send ["text"]'),
    ("audio", (None,), 'is for modalities: ["text", "audio"]; leave it out'),
    ("web_search_options", (None,), "nothing here searches the web; leave it out, and offer a tool that does"),
    ("echo", (None, False), "a chat repeats no prompt; /v1/completions does"),
    ("best_of", (None, 1), "no engine ranks its answers; ask for n, and choose yourself"),
)
"""Field, the values that request nothing, and why any other is refused."""


def with_tools(fields: Mapping[str, Raw]) -> bytes:
    """The body of a request with `functions`, converted to `tools`, `tool_choice`, and calls in the messages.

    Raises ProviderInvalidRequest.
    """
    if "tools" in fields or "tool_choice" in fields:
        raise ProviderInvalidRequest("functions: can't be combined with tools, which replace them", param="functions")
    functions, choice = decode(fields.get("functions", b"null")), decode(fields.get("function_call", b"null"))
    if not isinstance(functions, list) or not functions:
        param = "functions" if "functions" in fields else "function_call"
        raise ProviderInvalidRequest(f"{param}: functions must be a list of at least one function", param=param)
    made: dict[str, Any] = {
        name: value for name, value in fields.items() if name not in ("functions", "function_call", "messages")
    }
    made["tools"] = [{"type": "function", "function": function} for function in functions]
    # An answer in the old format has room for only one call.
    made["parallel_tool_calls"] = False
    if choice in ("auto", "none"):
        made["tool_choice"] = choice
    elif isinstance(choice, dict) and isinstance(choice.get("name"), str):
        made["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice is not None:
        raise ProviderInvalidRequest("function_call: must be auto, none, or {name}", param="function_call")
    made["messages"] = _with_calls(decode(fields["messages"]))
    return encode(made)


def _with_calls(messages: list[Json]) -> list[Json]:
    """Past calls and results in the present format. A result belongs to the latest call of its function."""
    ids: dict[str, str] = {}
    found = []
    for at, message in enumerate(messages):
        call = message.get("function_call")
        if isinstance(call, dict):
            name = str(call.get("name"))
            ids[name] = f"call_{at}"
            message = {key: value for key, value in message.items() if key != "function_call"}
            message.setdefault("content", None)
            function = {"name": name, "arguments": call.get("arguments") or "{}"}
            message["tool_calls"] = [{"id": ids[name], "type": "function", "function": function}]
        elif message.get("role") == "function":
            name = str(message.get("name"))
            message = {**message, "role": "tool", "tool_call_id": ids.get(name, f"call_{at}")}
        found.append(message)
    return found


def old_answer(body: bytes) -> bytes:
    """A whole answer in the format of `functions`."""
    answer = decode(body)
    for choice in answer["choices"]:
        _rename(choice, choice["message"])
    return encode(answer)


def old_chunk(payload: bytes) -> bytes:
    """A chunk in the format of `functions`."""
    if b'"tool_calls"' not in payload:
        return payload
    chunk = decode(payload)
    for choice in chunk.get("choices") or ():
        _rename(choice, choice["delta"])
    return encode(chunk)


def _rename(choice: Json, message: Json) -> None:
    calls = message.pop("tool_calls", None)
    if calls and (calls[0].get("index") or 0) == 0:
        message["function_call"] = calls[0]["function"]
    if choice.get("finish_reason") == "tool_calls":
        choice["finish_reason"] = "function_call"

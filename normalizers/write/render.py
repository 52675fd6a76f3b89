"""The inverse of parsing: renders calls and tool results as a format's own text.

For chat templates that don't render tools, or that drop ``tool_calls`` from history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normalizers.events import ToolCall
from normalizers.spec import FormatSpec, NamedSyntax, TagSyntax

_BARE_KEY = re.compile(r"[\w$](?:[\w.\-/ $]*[\w$])?")


def render_calls(spec: FormatSpec, calls: Sequence[ToolCall | Mapping[str, Any]]) -> str:
    """The assistant's text for these calls: ``parse(render_calls(spec, calls)) == calls``.

    A call is a `ToolCall` or an OpenAI tool call. Raises ValueError if its arguments aren't a JSON object.
    """
    pairs = [_name_and_arguments(call) for call in calls]
    return _RENDERERS.get(spec.dialect, _json_calls)(spec, pairs) if pairs else ""


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
        raise ValueError(f"the arguments of {name!r} are not a JSON object")
    return name, value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _markers(spec: FormatSpec) -> tuple[str, str]:
    return spec.open[0] if spec.open else "", spec.close[0] if spec.close else ""


# -- one renderer for each dialect ---------------------------------------------------------------


def _pythonic_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    opening, closing = _markers(spec)
    written = [f"{name}({', '.join(map(_keyword, args.items()))})" for name, args in calls]
    body = "\n".join(written) if spec.lines else f"[{', '.join(written)}]"
    return f"{opening}{body}{closing}"


def _keyword(item: tuple[str, object]) -> str:
    key, value = item
    if re.fullmatch(r"[^\W\d][\w\-.]*", key):
        return f"{key}={_python(value)}"
    return f"**{_python({key: value})}"


def _python(value: object) -> str:
    match value:
        case None | bool():
            return repr(value)
        case dict():
            return "{" + ", ".join(f"{_json(k)}: {_python(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_python, value)) + "]"
        case _:
            return _json(value)


def _json_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    opening, closing = _markers(spec)
    arguments = "parameters" if spec.name == "llama3_json" else "arguments"
    objects = [_json({"name": name, arguments: args}) for name, args in calls]
    if closing:
        return "\n".join(f"{opening}\n{one}\n{closing}" for one in objects)
    if opening and spec.listed:
        return f"{opening}[{', '.join(objects)}]"
    return opening + "; ".join(objects)


def _named_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    opening, closing = _markers(spec)
    syntax = spec.syntax
    assert isinstance(syntax, NamedSyntax)
    written = []
    for index, (name, args) in enumerate(calls):
        fields = {"name": name, "index": str(index), "arguments": _object(args, syntax)}
        pieces = re.split(r"\{(\w+)\}", syntax.written)
        written.append("".join(fields[piece] if at % 2 else piece for at, piece in enumerate(pieces)))
    if syntax.tail:
        return opening + "".join(written) + closing
    return ("" if opening else "\n").join(opening + one + closing for one in written)


def _object(value: object, syntax: NamedSyntax) -> str:
    if not syntax.bare_keys:
        return _json(value)
    match value:
        case str():
            for opening, closing in syntax.quotes:
                if closing not in value and not any(value.endswith(closing[:n]) for n in range(1, len(closing))):
                    return opening + value + closing
            return _json(value)
        case dict():
            return "{" + ",".join(f"{_key(k)}:{_object(v, syntax)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(_object(item, syntax) for item in value) + "]"
        case _:
            return _json(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _json(key)


def _tag_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    opening, closing = _markers(spec)
    syntax = spec.syntax
    assert isinstance(syntax, TagSyntax)
    written = []
    for name, args in calls:
        parts = [syntax.call[0].replace("{name}", name), "\n"]
        for key, value in args.items():
            parts += (_parameter(syntax, key, value), "\n")
        parts += syntax.call_end[:1]
        written.append("".join(parts))
    if syntax.call_end:
        return f"{opening}\n" + "\n".join(written) + f"\n{closing}"
    return "\n".join(f"{opening}{one}{closing}" for one in written)


def _parameter(syntax: TagSyntax, key: str, value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    if isinstance(value, str):
        if syntax.unquote and text[:1] == '"':
            text = _json(value)
        elif text[:1] == "\n":
            text = f"\n{text}\n"
    opening = syntax.parameter[0].replace("{key}", key)
    opening = opening.replace("{string}", "true" if isinstance(value, str) else "false")
    return opening.replace("</arg_key> <", "</arg_key>\n<") + text + syntax.parameter_end


def _harmony_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(args)}<|call|>"
        for name, args in calls
    )


_RENDERERS: dict[str, Callable[[FormatSpec, Sequence[Pair]], str]] = {
    "auto": lambda spec, calls: "\n".join(
        f"<tool_call>\n{_json({'name': name, 'arguments': args})}\n</tool_call>" for name, args in calls
    ),
    "harmony": _harmony_calls,
    "json": _json_calls,
    "named": _named_calls,
    "pythonic": _pythonic_calls,
    "tags": _tag_calls,
}

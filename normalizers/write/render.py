"""The inverse of parsing: renders calls and tool results as a format's own text.

For chat templates that don't render tools, or that drop ``tool_calls`` from history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normalizers.events import ToolCall
from normalizers.spec import ElementSyntax, FormatSpec, MessageSyntax, NamedSyntax, TagSyntax, call_format

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
    objects = [_json_call(spec, pair) for pair in calls]
    if spec.listed:
        return f"{opening}[{', '.join(objects)}]{closing}"
    if closing:
        return "\n".join(f"{opening}\n{one}\n{closing}" for one in objects)
    return opening + "; ".join(objects)


def _json_call(spec: FormatSpec, pair: Pair) -> str:
    return _json(dict(zip(spec.keys, pair, strict=True)) if spec.keys else {pair[0]: pair[1]})


def _named_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    opening, closing = _markers(spec)
    syntax = spec.syntax
    assert isinstance(syntax, NamedSyntax)
    written = []
    for index, (name, args) in enumerate(calls):
        fields = {"name": name, "index": str(index), "arguments": _object(args, syntax)}
        written.append(_filled(syntax.written, fields))
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
    gap, written = syntax.gap, []
    for index, (name, args) in enumerate(calls, start=1):
        head = syntax.call[0].replace("{index}", str(index)).replace("{name}", name)
        written.append(gap.join((head, *(_parameter(syntax, *item) for item in args.items()), *_end_of_call(syntax))))
    if syntax.call_end:
        return gap.join(part for part in (opening, *written, closing) if part)
    return gap.join(f"{opening}{one}{closing}" for one in written)


def _end_of_call(syntax: TagSyntax) -> tuple[str, ...]:
    # Without an end of its own the call ends on a line of its own.
    return syntax.call_end[:1] or ("",)


def _parameter(syntax: TagSyntax, key: str, value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    if syntax.entities:
        key = key.replace("&", "&amp;").replace('"', "&quot;")
    if syntax.cdata and isinstance(value, str) and re.search(r"[<&\n]", value):
        text = f"<![CDATA[{value}]]>"
    elif isinstance(value, str):
        if syntax.unquote and text[:1] == '"':
            text = _json(value)
        elif text[:1] == "\n":
            text = f"\n{text}\n"
    opening = syntax.parameter[0].replace("{string}", "true" if isinstance(value, str) else "false")
    opening = opening.replace("{type}", _TYPES[type(value)]).replace("> <", f">{syntax.gap}<")
    return opening.replace("{key}", key) + text + syntax.parameter_end[0]


_TYPES: dict[type[object], str] = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "number",
    list: "array",
    str: "string",
    type(None): "null",
}


def _element_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    opening, closing = _markers(spec)
    syntax = spec.syntax
    assert isinstance(syntax, ElementSyntax)
    mark, written = syntax.mark, []
    for name, args in calls:
        head = mark + syntax.call[0].replace("{name}", name)
        inner = "".join(_element(syntax, key, value) for key, value in args.items())
        written.append(f"{head}{inner}{mark}{syntax.call_end}\n")
    return f"{opening}\n{''.join(written)}{closing}"


def _element(syntax: ElementSyntax, key: str, value: object) -> str:
    # JSON, which the reader takes, too, is in no doubt where tags would be.
    inner = value if isinstance(value, str) else _json(value)
    if isinstance(value, dict | list) and _fits_elements(value, syntax.item):
        items = value.items() if isinstance(value, dict) else [(syntax.item, item) for item in value]
        inner = "".join(_element(syntax, name, item) for name, item in items)
    return f"{syntax.mark}<{key}>{inner}{syntax.mark}</{key}>"


def _fits_elements(value: object, item: str) -> bool:
    """Whether tags say all that the value holds, whatever the schema leaves open."""
    match value:
        case None:
            return False
        case str():
            return bool(value.strip()) and not re.fullmatch(r"\s*([-\d.].*|true|false|null)\s*", value, re.S)
        case dict():
            keys = value.keys()
            fit = all(_BARE_KEY.fullmatch(key) and key != item for key in keys)
            return bool(keys) and fit and all(_fits_elements(part, item) for part in value.values())
        case list():
            return bool(value) and all(_fits_elements(part, item) for part in value)
        case _:
            return True


def _message_calls(spec: FormatSpec, calls: Sequence[Pair]) -> str:
    syntax = spec.syntax
    assert isinstance(syntax, MessageSyntax)
    inner = call_format(spec)
    written = []
    for name, args in calls:
        fields = {"name": name, "arguments": _json(args), "call": _json_call(spec, (name, args))}
        if syntax.calls == "tags":
            fields["call"] = _tag_calls(inner, [(name, args)])
        written.append(_filled(syntax.written, fields))
    return syntax.again.join(written)


def _filled(template: str, fields: Mapping[str, str]) -> str:
    pieces = re.split(r"\{(\w+)\}", template)
    return "".join(fields[piece] if at % 2 else piece for at, piece in enumerate(pieces))


_RENDERERS: dict[str, Callable[[FormatSpec, Sequence[Pair]], str]] = {
    "auto": lambda spec, calls: "\n".join(
        f"<tool_call>\n{_json({'name': name, 'arguments': args})}\n</tool_call>" for name, args in calls
    ),
    "elements": _element_calls,
    "messages": _message_calls,
    "json": _json_calls,
    "named": _named_calls,
    "pythonic": _pythonic_calls,
    "tags": _tag_calls,
}

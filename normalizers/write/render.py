"""The inverse of parsing: renders calls and tool results as a format's own text.

For chat templates that don't render tools, or that drop ``tool_calls`` from history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from normalizers.events import ToolCall
from normalizers.spec import ElementSyntax, FormatSpec, Layout, on_lines
from normalizers.write.layout import bare_quotes, layout_of, name_in, tags_of

_FIELD = re.compile(r"\{(\w+)\}")
_BARE_KEY = re.compile(r"[\w$](?:[\w.\-/ $]*[\w$])?")


def render_calls(spec: FormatSpec, calls: Sequence[ToolCall | Mapping[str, Any]]) -> str:
    """The assistant's text for these calls: ``parse(render_calls(spec, calls)) == calls``.

    A call is a `ToolCall` or an OpenAI tool call. Raises ValueError if its arguments aren't a JSON object, or
    are nested too deeply.
    """
    layout = layout_of(spec)
    try:
        written = [_call(spec, layout, index, call) for index, call in enumerate(calls)]
    except RecursionError:
        raise ValueError("the arguments are nested too deeply") from None
    if not written:
        return ""
    closing = layout.closing + (layout.behind_several if len(written) > 1 else "")
    return layout.opening + layout.between.join(written) + closing


def render_result(spec: FormatSpec, name: str, content: str) -> str:
    """A tool's result as text, for templates without a tool role."""
    if spec.result:
        return spec.result[0] + content + spec.result[1]
    return f"Result of {name}:\n{content}"


def _call(spec: FormatSpec, layout: Layout, index: int, call: ToolCall | Mapping[str, Any]) -> str:
    name, arguments, own_id = _parts(call)
    template = layout.empty if layout.empty and not arguments else layout.call
    fields = {
        "name": name_in(template, name),
        "index": str(index + int(layout.first)),
        "id": own_id or f"call{index:05}",
        "arguments": _arguments(spec, layout, arguments),
    }
    return _filled(template, fields)


def _parts(call: ToolCall | Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """A call's name, arguments and id."""
    own_id: object
    if isinstance(call, ToolCall):
        name, arguments, own_id = call.name, call.arguments, call.id
    else:
        function = call.get("function", call)
        name, arguments, own_id = function["name"], function.get("arguments") or "{}", call.get("id")
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(value, dict):
        raise ValueError(f"the arguments of {name!r} are not a JSON object")
    return name, value, own_id if isinstance(own_id, str) else ""


def _arguments(spec: FormatSpec, layout: Layout, arguments: dict[str, Any]) -> str:
    if layout.sorted:
        arguments = _in_order(arguments)
    syntax = spec.syntax
    if isinstance(syntax, ElementSyntax):
        return "".join(_element(syntax, key, value) for key, value in arguments.items())
    if layout.parameter:
        written = _keyword if spec.dialect == "pythonic" else _parameter
        return layout.separator.join(written(spec, layout, *item) for item in arguments.items())
    if quotes := bare_quotes(spec):
        return _bare(arguments, layout, quotes)
    return _object(layout, arguments)


def _in_order(value: Any) -> Any:
    """The same with the keys of all objects in the order of the alphabet."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value, key=str.lower)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(layout: Layout, arguments: dict[str, Any]) -> str:
    if not layout.indent:
        return json.dumps(arguments, ensure_ascii=False, separators=(layout.comma, layout.colon))
    written = json.dumps(arguments, ensure_ascii=False, indent=layout.indent)
    line = layout.call.partition("{arguments}")[0].rpartition("\n")[2]
    return written.replace("\n", "\n" + line[: len(line) - len(line.lstrip())])


def _filled(template: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda match: fields[match[1]], template)


# -- arguments -----------------------------------------------------------------------------------


def _keyword(spec: FormatSpec, layout: Layout, key: str, value: object) -> str:
    if re.fullmatch(r"[^\W\d][\w\-.]*", key):
        mixed = layout.spelling == "mixed" and isinstance(value, dict | list)
        return _filled(layout.parameter, {"key": key, "value": _json(value) if mixed else _python(value)})
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


def _bare(value: object, layout: Layout, quotes: tuple[str, str]) -> str:
    match value:
        case str():
            opening, closing = quotes
            if closing not in value and not any(value.endswith(closing[:n]) for n in range(1, len(closing))):
                return opening + value + closing
            return _json(value)
        case dict():
            members = (f"{_key(k)}{layout.colon}{_bare(v, layout, quotes)}" for k, v in value.items())
            return "{" + layout.comma.join(members) + "}"
        case list():
            return "[" + layout.comma.join(_bare(item, layout, quotes) for item in value) + "]"
        case None if layout.spelling == "mixed":
            return "None"
        case _:
            return _json(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _json(key)


def _parameter(spec: FormatSpec, layout: Layout, key: str, value: object) -> str:
    syntax = tags_of(spec)
    is_text = isinstance(value, str)
    if syntax is not None and syntax.entities:
        key = key.replace("&", "&amp;").replace('"', "&quot;")
    if isinstance(value, str):
        text = _json(value) if layout.quoted else _text(spec, layout.parameter, value)
    else:
        text = _spelled(layout, value)
    fields = {"string": "true" if is_text else "false", "type": _TYPES[type(value)], "key": key, "value": text}
    return _filled(layout.parameter, fields)


def _text(spec: FormatSpec, parameter: str, text: str) -> str:
    """A string between its tags."""
    syntax = tags_of(spec)
    if syntax is not None and syntax.cdata and re.search(r"[<&\n]", text):
        return f"<![CDATA[{text}]]>"
    if syntax is not None and syntax.unquote and text[:1] == '"':
        return _json(text)
    if "\n{value}\n" in parameter or text[:1] != "\n" or syntax is None or not syntax.gap:
        return text
    # The reader would take the line break for layout.
    return f"\n{text}\n" if on_lines(spec, syntax) or text[1:].endswith("\n") else text


def _spelled(layout: Layout, value: object) -> str:
    scalar = not isinstance(value, dict | list)
    if layout.spelling == "python" or (scalar and layout.spelling == "mixed"):
        return repr(value)
    return json.dumps(value, ensure_ascii=False, separators=(layout.comma, layout.colon))


_TYPES: dict[type[object], str] = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "number",
    list: "array",
    str: "string",
    type(None): "null",
}


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

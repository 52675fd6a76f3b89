"""Converts a server's tools and results to the catalogue's values. No I/O."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gateway.features.agents.settings import MCPServer
from gateway.features.agents.tools.base import Effect, Tool, ToolContext, ToolError

if TYPE_CHECKING:
    import mcp_types as types

log = logging.getLogger("ctxgate")

MAX_TOOLS = 128
LONGEST_NAME, LONGEST_DESCRIPTION, LONGEST_SCHEMA = 100, 4000, 32 * 1024
"""Characters."""
MAX_VALUES = 20_000
"""JSON values of one message. To parse and check so many takes a tenth of a second, and a result shows far fewer."""

_TOO_MANY = re.compile(rb'(?:(?:[^"\[{,]++|"(?:[^"\\\n]++|\\.)*+["\n]?+)*+[\[{,]){%d}' % MAX_VALUES, re.DOTALL)

Call = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""(the tool's name at its server, arguments) → result. Raises ToolError."""


def too_many_values(text: bytes | bytearray) -> bool:
    """Whether JSON, or server-sent events with it, has more than MAX_VALUES values; much cheaper than to parse it."""
    return _TOO_MANY.match(text) is not None


def tools(server: str, settings: MCPServer, listed: Sequence[types.Tool], call: Call) -> list[Tool]:
    """The tools that `allow` names, as the catalogue has them; leaves out, with a warning, what no model could use."""
    allow = settings.allow
    found: dict[str, Tool] = {}
    for each in listed:
        if allow is not None and not any(fnmatchcase(each.name, glob) for glob in allow):
            continue
        if fault := _fault(each) or ("it is listed twice" if each.name in found else ""):
            log.warning("the MCP server %s: the tool %r is left out: %s", server, each.name[:LONGEST_NAME], fault)
            continue
        if len(found) == MAX_TOOLS:
            log.warning("the MCP server %s: only its first %d tools are used; `allow` chooses", server, MAX_TOOLS)
            break
        found[each.name] = _tool(server, settings, each, call)
    return [*found.values()]


def _fault(listed: types.Tool) -> str:
    if not 0 < len(listed.name) <= LONGEST_NAME or not listed.name.isprintable() or " " in listed.name:
        return f"its name must have 1 to {LONGEST_NAME} printable characters"
    if listed.input_schema.get("type") != "object":
        return "its schema must be an object's"
    size = len(json.dumps(listed.input_schema))
    return f"its schema has over {LONGEST_SCHEMA} characters" if size > LONGEST_SCHEMA else ""


def _tool(server: str, settings: MCPServer, listed: types.Tool, call: Call) -> Tool:
    """Its effect is as the server's hints say, since whoever configures a server trusts it; without hints it may
    change anything anywhere, and twice isn't once."""
    hints = listed.annotations
    reads = bool(hints and hints.read_only_hint)
    closed = bool(hints and hints.open_world_hint is False)
    effect: Effect = ("read" if reads else "write") if closed else "external"
    name = listed.name

    async def run(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
        return await call(name, arguments)

    return Tool(
        name=f"{server}.{name}",
        description=(listed.description or listed.title or name)[:LONGEST_DESCRIPTION],
        parameters=listed.input_schema,
        access=settings.access or ("read" if reads else "edit"),
        effect=effect,
        idempotent=reads or bool(hints and hints.idempotent_hint),
        cost="local" if closed and settings.url is None else "network",
        run=run,
    )


def result(given: types.CallToolResult, maximum: int, hide: Callable[[str], str]) -> dict[str, Any]:
    """`{text, truncated}`, at most `maximum` characters of text. hide: hides secrets.

    Raises ToolError, code `mcp_tool_failed`, for a result that is an error.
    """
    parts = [_text(part) for part in given.content]
    if not parts and given.structured_content is not None:
        parts = [json.dumps(given.structured_content, ensure_ascii=False)]
    text = hide("\n".join(parts))
    if given.is_error:
        raise ToolError("mcp_tool_failed", text[:maximum] or "the tool failed and doesn't say why")
    return {"text": text[:maximum], "truncated": len(text) > maximum}


def _text(part: types.ContentBlock) -> str:
    match part.type:
        case "text":
            return part.text
        case "resource":
            inner = part.resource
            text = getattr(inner, "text", None)
            return text if isinstance(text, str) else f"[{inner.mime_type or 'binary data'}: {inner.uri}]"
        case "resource_link":
            return f"[{part.name}: {part.uri}]"
        case _:
            return f"[{part.mime_type}, {len(part.data) * 3 // 4} bytes]"

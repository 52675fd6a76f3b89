"""All tools by name; calls checked, permitted, run, and answered."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from gateway.config import RoomTools
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.schema.objects import ObjectSchema
from gateway.tools.base import Tool, ToolContext, ToolError, ToolPolicy, ToolRow

log = logging.getLogger(__name__)

FAMILIES = (
    "gateway.tools.files:tools",
    "gateway.tools.curl:tools",
    "gateway.tools.data:tools",
)
"""Import strings of factories, `(RoomTools) -> list[Tool]`."""

REDACTED = "[redacted]"
HARMLESS = ("accept", "accept-language", "content-type", "if-modified-since", "if-none-match", "range", "user-agent")
"""Headers whose values are no secrets."""


def catalogue(settings: RoomTools, more: Sequence[Tool] = ()) -> Catalogue:
    """Every tool within the bounds of the settings, behind `more`: tools that the caller brings."""
    tools = [*more]
    for family in FAMILIES:
        module, _, attribute = family.partition(":")
        tools += getattr(import_module(module), attribute)(settings)
    return Catalogue(tools)


class Catalogue:
    """Tools by their names. Safe for any number of turns at once."""

    def __init__(self, tools: list[Tool]) -> None:
        self._tools = {tool.row.name: tool for tool in tools}

    def rows(self, policy: ToolPolicy) -> list[ToolRow]:
        """What a room with this policy may use, in the catalogue's order."""
        return [tool.row for tool in self._tools.values() if policy.permits(tool.row)]

    def known(self, glob: str) -> bool:
        """Whether it names a tool."""
        return any(fnmatchcase(name, glob) for name in self._tools)

    async def run(self, context: ToolContext, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The tool's result, or `{"error": {"code", "message"}}`: both are for the model. Raises nothing.

        Its length is bounded. Cancelling it ends the tool.
        """
        try:
            return await self._run(context, name, arguments)
        except ToolError as error:
            return error.result()
        except GatewayError as error:
            return ToolError(error.code, error.message).result()
        except Exception as error:  # noqa: BLE001 - a tool's failure is a result
            # Its message may hold what the tool was given: the log has the places alone.
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("the tool %s failed: %s\n%s", name, type(error).__name__, places)
            return ToolError("tool_failed", f"{name} failed inside the gateway").result()

    async def _run(self, context: ToolContext, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(row.name for row in self.rows(context.policy)) or "none"
            raise ToolError("tool_unknown", f"no such tool; there are: {known}")
        if not context.policy.permits(tool.row):
            raise ToolError("tool_denied", f"the tool policy doesn't permit {name}")
        if not isinstance(arguments, dict):
            raise ToolError("invalid_arguments", f"the arguments of {name} must be an object")
        if violation := await asyncio.to_thread(_violation, tool.row, arguments):
            raise ToolError("invalid_arguments", violation)
        return await tool.run(context, arguments)

    def recorded(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as history may keep them: a URL without its user, headers that may be secret without values."""
        kept = dict(arguments)
        if isinstance(url := kept.get("url"), str):
            kept["url"] = re.sub(r"^([^/?#]*:?//)[^/?#]*@", rf"\1{REDACTED}@", url)
        if isinstance(headers := kept.get("headers"), Mapping):
            kept["headers"] = {
                name: value if str(name).lower() in HARMLESS else REDACTED for name, value in headers.items()
            }
        return kept


def _violation(row: ToolRow, arguments: dict[str, Any]) -> str | None:
    try:
        violation = ObjectSchema(row.parameters, row.name).violation(arguments)
    except ProviderInvalidRequest as error:
        return error.message
    if violation is not None and violation.startswith("/headers"):
        return "/headers: it must be an object of strings"  # and no more: they may be secrets
    return violation

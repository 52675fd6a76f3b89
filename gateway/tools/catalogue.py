"""All tools by name. Checks calls against schema and policy, runs them, and turns failures into results."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from gateway.config import RoomTools
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.schema.checker import threads
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
"""Headers whose values are never secret."""


def catalogue(settings: RoomTools, more: Sequence[Tool] = ()) -> Catalogue:
    """Every tool, within the bounds of the settings. more: the caller's own tools, listed first."""
    tools = [*more]
    for family in FAMILIES:
        module, _, attribute = family.partition(":")
        tools += getattr(import_module(module), attribute)(settings)
    return Catalogue(tools)


class Catalogue:
    """Tools by name. Any number of turns may share it."""

    def __init__(self, tools: list[Tool]) -> None:
        self._tools = {tool.row.name: tool for tool in tools}

    def rows(self, policy: ToolPolicy) -> list[ToolRow]:
        """The tools that the policy permits, in the catalogue's order."""
        return [tool.row for tool in self._tools.values() if policy.permits(tool.row)]

    def known(self, glob: str) -> bool:
        """Whether it matches a tool's name."""
        return any(fnmatchcase(name, glob) for name in self._tools)

    async def run(self, context: ToolContext, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Runs a tool; returns its result or `{"error": {"code", "message"}}`, for the model. Never raises.

        The result's length is bounded. Cancelling ends the tool.
        """
        try:
            return await self._run(context, name, arguments)
        except ToolError as error:
            return error.result()
        except GatewayError as error:
            return ToolError(error.code, error.message).result()
        except Exception as error:  # noqa: BLE001 - a tool's failure is a result
            # The message may contain the arguments, so the log gets only the traceback's places.
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
        if violation := await threads.run(_violation, tool.row, arguments):
            raise ToolError("invalid_arguments", violation)
        return await tool.run(context, arguments)

    def recorded(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the record may have them: URLs without user and password, headers without secret values."""
        shown = dict(arguments)
        if isinstance(url := shown.get("url"), str):
            shown["url"] = re.sub(r"^([^/?#]*:?//)[^/?#]*@", rf"\1{REDACTED}@", url)
        if isinstance(headers := shown.get("headers"), Mapping):
            shown["headers"] = {
                name: value if str(name).lower() in HARMLESS else REDACTED for name, value in headers.items()
            }
        return shown


def _violation(row: ToolRow, arguments: dict[str, Any]) -> str | None:
    try:
        violation = ObjectSchema(row.parameters, row.name).violation(arguments)
    except ProviderInvalidRequest as error:
        return error.message
    if violation is not None and violation.startswith("/headers"):
        return "/headers: it must be an object of strings"  # the validator's message would quote their values
    return violation

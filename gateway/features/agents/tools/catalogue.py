"""All tools by name. Checks calls against schema and policy, runs them, and turns failures into results."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.features.agents.settings import RoomTools
from gateway.features.agents.tools.base import Source, Tool, ToolContext, ToolError, ToolPolicy, reaches
from gateway.schema.checker import threads
from gateway.schema.objects import ObjectSchema

log = logging.getLogger(__name__)

FAMILIES = (
    "gateway.features.agents.tools.files:tools",
    "gateway.features.agents.tools.curl:tools",
    "gateway.features.agents.tools.data:tools",
)
"""Import strings of factories, `(RoomTools) -> list[Tool]`."""

REDACTED = "[redacted]"
HARMLESS = ("accept", "accept-language", "content-type", "if-modified-since", "if-none-match", "range", "user-agent")
"""Headers whose values are never secret."""

LONGEST_NAME = 64
"""Characters of a name that every engine takes."""


def catalogue(
    settings: RoomTools, more: Sequence[Tool] = (), sources: Callable[[], Iterable[Source]] = tuple
) -> Catalogue:
    """Every tool, within the bounds of the settings.

    more: the caller's own tools, listed first. sources: the present ones, asked for each toolbox.
    """
    tools = [*more]
    for family in FAMILIES:
        module, _, attribute = family.partition(":")
        tools += getattr(import_module(module), attribute)(settings)
    return Catalogue(tools, sources)


class Catalogue:
    """Tools by name. Any number of turns may share it."""

    def __init__(self, tools: Iterable[Tool], sources: Callable[[], Iterable[Source]] = tuple) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._sources = sources

    def known(self, glob: str) -> bool:
        """Whether it matches a tool's name, or may match one of a source's tools."""
        if any(fnmatchcase(name, glob) for name in self._tools):
            return True
        return any(reaches(glob, source.name) for source in self._sources())

    async def toolbox(self, policy: ToolPolicy, context: ToolContext) -> Toolbox:
        """What the policy permits, the sources' tools included: starts those that the policy reaches."""
        sources = [source for source in self._sources() if policy.reaches(source.name)]
        found = await asyncio.gather(*map(_asked, sources))
        tools = {**self._tools}
        missing: dict[str, ToolError] = {}
        for source, answer in zip(sources, found, strict=True):
            if isinstance(answer, ToolError):
                missing[source.name] = answer
            else:
                tools.update({tool.name: tool for tool in answer if tool.name not in tools})
        return Toolbox(tools, policy, context, missing)


async def _asked(source: Source) -> Sequence[Tool] | ToolError:
    try:
        return await source.tools()
    except ToolError as error:
        log.warning("the tools %s.* are missing: %s", source.name, error.message)
        return error


class Toolbox:
    """The tools that one policy permits, with their context: what one turn, or one call, may do."""

    def __init__(
        self,
        every: Mapping[str, Tool],
        policy: ToolPolicy,
        context: ToolContext,
        missing: Mapping[str, ToolError] | None = None,
    ) -> None:
        self._every = every
        self._context = context
        self.missing: Mapping[str, ToolError] = missing or {}
        """Name of each source whose tools aren't available now → the reason."""
        self.tools: dict[str, Tool] = {}
        """The permitted tools, in the catalogue's order, by the name that a model calls: `tool_ls` for `tool.ls`,
        since not every chat template takes dots."""
        for tool in every.values():
            if policy.permits(tool):
                self.tools[_plain(tool.name, self.tools)] = tool
        self._permitted = {tool.name: tool for tool in self.tools.values()}

    def get(self, called: str) -> Tool | None:
        """The permitted tool, by either of its names."""
        return self.tools.get(called) or self._permitted.get(called)

    def name(self, called: str) -> str:
        """The catalogue's name of a tool that a model called."""
        tool = self.get(called)
        return called if tool is None else tool.name

    async def run(self, called: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a tool; returns its result or `{"error": {"code", "message"}}`, for the model. Never raises.

        The result's length is bounded. Cancelling ends the tool.
        """
        name = self.name(called)
        try:
            return await self._run(name, arguments)
        except ToolError as error:
            return error.result()
        except GatewayError as error:
            return ToolError(error.code, error.message).result()
        except Exception as error:  # noqa: BLE001 - a tool's failure is a result
            # The message may contain the arguments, so the log gets only the traceback's places.
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("the tool %s failed: %s\n%s", name, type(error).__name__, places)
            return ToolError("tool_failed", f"{name} failed inside the gateway").result()

    async def _run(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        tool = self._permitted.get(name)
        if tool is None and name in self._every:
            raise ToolError("tool_denied", f"the tool policy doesn't permit {name}")
        if tool is None and (missing := self.missing.get(name.partition(".")[0])):
            raise missing
        if tool is None:
            raise ToolError("tool_unknown", f"no such tool; there are: {', '.join(self._permitted) or 'none'}")
        if not isinstance(arguments, Mapping):
            raise ToolError("invalid_arguments", f"the arguments of {name} must be an object")
        given = dict(arguments)
        if violation := await threads.run(_violation, tool, given):
            raise ToolError("invalid_arguments", violation)
        return await tool.run(self._context, given)

    def recorded(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the record may have them: URLs without user and password, headers without secret values."""
        shown = dict(arguments)
        if isinstance(url := shown.get("url"), str):
            shown["url"] = re.sub(r"^([^/?#]*:?//)[^/?#]*@", rf"\1{REDACTED}@", url)
        if isinstance(headers := shown.get("headers"), Mapping):
            shown["headers"] = {
                name: value if str(name).lower() in HARMLESS else REDACTED for name, value in headers.items()
            }
        return shown


def _plain(name: str, taken: Mapping[str, Tool]) -> str:
    """A name of letters, digits, `_` and `-` alone, which no other tool has."""
    plain = found = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:LONGEST_NAME]
    number = 2
    while found in taken:
        ending = f"_{number}"
        found, number = plain[: LONGEST_NAME - len(ending)] + ending, number + 1
    return found


def _violation(tool: Tool, arguments: dict[str, Any]) -> str | None:
    try:
        violation = ObjectSchema(tool.parameters, tool.name).violation(arguments)
    except ProviderInvalidRequest as error:
        return error.message
    if violation is not None and violation.startswith("/headers"):
        return "/headers: it must be an object of strings"  # the validator's message would quote their values
    return violation

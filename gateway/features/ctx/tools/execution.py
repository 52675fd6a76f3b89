"""One run of an executed tool, in its caller's folder, under the policy in its `.d` folder."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from gateway.errors import GatewayError, InternalError, ProviderInvalidRequest
from gateway.features.agents.settings import MCP, Rooms
from gateway.features.ctx.errors import NotFound, code
from gateway.features.ctx.events import Done, Error, Event, Start, ToolResult
from gateway.features.ctx.objects import Triple
from gateway.features.ctx.policy import parse_policy
from gateway.features.ctx.tree import read_text
from gateway.services import Services

if TYPE_CHECKING:
    from gateway.features.agents.tools import Catalogue, Toolbox
    from gateway.features.ctx.settings import CtxTools

log = logging.getLogger("ctxgate")

TENANT = "local"
"""The tools see the records of this principal: the owner of this machine."""

NEED_RECORDS = ("describe", "find", "aggregate", "data")
"""Families of tools that need the store."""

ERRNOS = {
    "invalid_arguments": errno.EINVAL,
    "invalid_query": errno.EINVAL,
    "invalid_record": errno.EINVAL,
    "url_refused": errno.EINVAL,
    "tool_denied": errno.EACCES,
    "path_refused": errno.EACCES,
    "address_refused": errno.EACCES,
    "tool_unknown": errno.ENOENT,
    "not_found": errno.ENOENT,
    "model_not_found": errno.ENOENT,
    "record_not_found": errno.ENOENT,
    "filter_not_found": errno.ENOENT,
    "exists": errno.EEXIST,
    "not_a_folder": errno.ENOTDIR,
    "not_a_file": errno.EISDIR,
    "not_empty": errno.ENOTEMPTY,
    "quota_exceeded": errno.EDQUOT,
    "read_only": errno.EROFS,
    "too_large": errno.EFBIG,
    "busy": errno.EBUSY,
    "conflict": errno.EBUSY,
    "fetch_failed": errno.EHOSTDOWN,
    "fetch_timeout": errno.EHOSTDOWN,
    "server_unavailable": errno.EHOSTDOWN,
    "server_failed": errno.EHOSTDOWN,
    "tool_failed": errno.EIO,
}
"""Code of a tool's failure → errno. Any other is EPROTO."""


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One call of a tool. folder: where its caller is; "" if he is nowhere."""

    services: Services
    triple: Triple
    run: str
    folder: str

    async def events(self, text: str) -> AsyncGenerator[list[Event], None]:
        """Yields `start`, `tool_result` and `done`; a failure also as `error`. Raises nothing but CancelledError."""
        name = self.triple.name.name
        try:
            arguments = _arguments(text)
            policy = await asyncio.to_thread(policy_of, self.triple)
            yield [Start(run=self.run, tool=name)]
            toolbox = await host_toolbox(self.services, policy, name, self.folder)
            result = await toolbox.run(name, arguments)
            failure = result.get("error")
            answered = ToolResult(run=self.run, name=name, result=Raw(msgspec.json.encode(result)), ok=failure is None)
            if not isinstance(failure, dict):
                yield [answered, Done(run=self.run, status="ok")]
                return
            number = ERRNOS.get(str(failure.get("code")), errno.EPROTO)
            told = Error(run=self.run, code=errno.errorcode[number], message=str(failure.get("message")))
            yield [answered, told, Done(run=self.run, status="error")]
        except GatewayError as error:
            yield self._failed(error)
        except Exception:
            log.exception("%s failed", self.triple.name)
            yield self._failed(InternalError("ctxgate failed; see its log"))

    def _failed(self, error: GatewayError) -> list[Event]:
        return [Error(run=self.run, code=code(error), message=error.message), Done(run=self.run, status="error")]


def policy_of(triple: Triple) -> CtxTools:
    """Raises NotFound, BadControlFile, NotPermitted."""
    if not triple.entry.is_file():
        raise NotFound(f"no object {triple.name}")
    return parse_policy(read_text(triple.control / "policy"))


async def host_toolbox(services: Services, policy: CtxTools, name: str, folder: str) -> Toolbox:
    """What a policy permits of the tools that work on this machine. name: of the tool that will be called."""
    from gateway.features.agents.inprocess import complete, summary_writer
    from gateway.features.agents.tools import ToolContext, ToolPolicy
    from gateway.features.agents.tools.data import records

    settings = services.gateway.config.section(Rooms).tools
    store = await services.store() if name.partition(".")[0] in NEED_RECORDS else None
    context = ToolContext(
        files=Path(folder) if folder else None,
        records=(lambda: records(settings, store, TENANT)) if store is not None else None,
        complete=partial(complete, services.gateway, "ctx"),
        writer=(await asyncio.to_thread(summary_writer, services.gateway.config)).name,
    )
    # Only the source of this tool is asked: others' servers needn't start.
    allowed = (name,) if ToolPolicy("full", policy.allow, policy.deny).names(name) else ()
    return await catalogue(services).toolbox(ToolPolicy(policy.access, allowed), context)


def catalogue(services: Services) -> Catalogue:
    """The tools that work on this machine."""
    from gateway.features.agents.tools import Catalogue
    from gateway.features.agents.tools.host import tools

    config = services.gateway.config
    found = tools(config.section(Rooms).tools)
    if not config.section(MCP).servers:
        return Catalogue(found)
    from gateway.features.agents.tools.mcp.servers import Servers

    return Catalogue(found, services.shared(Servers).present)


def _arguments(text: str) -> dict[str, Any]:
    """Nothing stands for no arguments. Raises ProviderInvalidRequest."""
    if not text.strip():
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProviderInvalidRequest(f"the arguments aren't valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ProviderInvalidRequest("the arguments must be a JSON object")
    return found

"""What a tool is, who may run it, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from gateway.store import Store

Access = Literal["read", "edit", "full"]
"""Each includes those before it."""

_RANKS: dict[str, int] = {name: rank for rank, name in enumerate(get_args(Access))}


class ToolError(Exception):
    """Something that the model is told as the tool's result: `{"error": {"code", "message"}}`.

    The message must hold nothing that the model may not see.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def result(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}


@dataclass(frozen=True, slots=True)
class ToolRow:
    """A tool as the model is told of it; `parameters` is the JSON Schema that its arguments are checked against."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    access: Access


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Which tools a room has: those up to `access`, among them those that `allow` names and `deny` doesn't.

    Names are globs: `curl.*`. Without `access` there are none.
    """

    access: Access | None = None
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    def permits(self, row: ToolRow) -> bool:
        if self.access is None or _RANKS[row.access] > _RANKS[self.access]:
            return False
        return _named(row.name, self.allow) and not _named(row.name, self.deny)


def _named(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


class Complete(Protocol):
    async def __call__(self, model: str, system: str, prompt: str, *, max_tokens: int) -> str:
        """The text that a model of the configuration answers, asked without tools and without the room's history.

        model: a name of the configuration; `default` is the active one.
        Raises GatewayError.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """On whose behalf a tool runs. One is enough for a turn."""

    tenant: str
    user: str
    folder: Path
    store: Store
    policy: ToolPolicy
    complete: Complete


@dataclass(frozen=True, slots=True)
class Tool:
    """A row and what runs it: its arguments have been checked, what it returns is JSON. It raises ToolError."""

    row: ToolRow
    run: Callable[[ToolContext, dict[str, Any]], Awaitable[dict[str, Any]]]

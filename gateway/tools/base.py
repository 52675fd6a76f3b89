"""What a tool is, who may run it, and what it runs with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from gateway.store import Store

Access = Literal["read", "edit", "full"]
"""Each level includes those before it."""

_RANKS: dict[str, int] = {name: rank for rank, name in enumerate(get_args(Access))}


class ToolError(Exception):
    """A failure that becomes the tool's result: `{"error": {"code", "message"}}`. The model reads the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def result(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}


@dataclass(frozen=True, slots=True)
class ToolRow:
    """A tool as the model sees it. parameters: the JSON Schema of its arguments.

    idempotent: a call that was cut off may run again, since twice has the effect of once.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    access: Access
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Selects tools: those up to `access` that `allow` matches and `deny` doesn't. Without `access` there are none.

    Names may be globs: `curl.*`.
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
        """A model's answer to one prompt, without tools or history. model: a name from the configuration, or `default`.

        Raises GatewayError.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """On whose behalf a tool runs; one per turn. folder: of the files that the model may use."""

    tenant: str
    user: str
    folder: Path
    store: Store
    policy: ToolPolicy
    complete: Complete


@dataclass(frozen=True, slots=True)
class Tool:
    """A row and its function: takes checked arguments, returns JSON, raises ToolError."""

    row: ToolRow
    run: Callable[[ToolContext, dict[str, Any]], Awaitable[dict[str, Any]]]

"""Defines tools, policies that select tools, and the context in which a tool runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

Access = Literal["read", "edit", "full"]
"""Each level includes those before it."""

Effect = Literal["read", "write", "external"]
"""read: it changes nothing. write: it changes what is stored here. external: it talks to others, which may change
anything."""

Cost = Literal["local", "network", "model"]
"""The resource that a call uses: time of this machine, a connection, or a model's tokens."""

_RANKS: dict[str, int] = {name: rank for rank, name in enumerate(get_args(Access))}


class ToolError(Exception):
    """A failure that becomes the tool's result: `{"error": {"code", "message"}}`. The model reads the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def result(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}


class Complete(Protocol):
    async def __call__(self, model: str, system: str, prompt: str, *, max_tokens: int) -> str:
        """A model's answer to one prompt, without tools or history. model: a name from the configuration, or `default`.

        Raises GatewayError.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of this machine. max_bytes, max_count: limits of a writable one, with its own files."""

    path: Path
    writable: bool
    max_bytes: int
    max_count: int


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context in which tools run, made by their caller. A tool doesn't learn who that is. None: not available.

    files: the folder that the files' tools see as `/`. records: the models and records that the records' tools see, a
    `records.Records`, which raises this module's errors and so can't be named here. complete: asks a model.
    mounts: folders that the files' tools see as `/mnt/NAME`. share: whose share of common resources it takes. writer:
    the model that writes summaries.
    """

    files: Path | None = None
    records: Callable[[], Any] | None = None
    complete: Complete | None = None
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    share: str = ""
    writer: str = "default"


Run = Callable[[ToolContext, dict[str, Any]], Awaitable[dict[str, Any]]]
"""(context, checked arguments) → JSON. Raises ToolError, or GatewayError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """parameters: the JSON Schema of its arguments. access: what a policy must grant.

    idempotent: a call that was cut off may run again, since twice has the effect and the result of once.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    access: Access
    effect: Effect
    idempotent: bool
    cost: Cost
    run: Run


class Named(Protocol):
    """What a policy must know of a tool."""

    @property
    def name(self) -> str: ...

    @property
    def access(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Selects tools: those within `access` that `allow` matches and `deny` doesn't. Without `access` there are none.

    Names may be globs: `curl.*`.
    """

    access: Access | None = None
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    def permits(self, tool: Named) -> bool:
        if self.access is None or _RANKS[tool.access] > _RANKS[self.access]:
            return False
        return self.names(tool.name)

    def names(self, name: str) -> bool:
        """Whether `allow` names a tool and `deny` doesn't."""
        return _named(name, self.allow) and not _named(name, self.deny)

    def reaches(self, family: str) -> bool:
        """Whether it may permit a tool whose name begins with `family.`."""
        return self.access is not None and any(reaches(glob, family) for glob in self.allow)


def _named(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def reaches(glob: str, family: str) -> bool:
    """Whether a glob may match a name that begins with `family.`."""
    head, dot, _ = glob.partition(".")
    if dot and "*" not in head:
        return fnmatchcase(family, head)
    literal = glob[: min(at for sign in "*?[" if (at := glob.find(sign)) >= 0)] if "*" in glob else None
    return literal is not None and f"{family}.".startswith(literal)


class Source(Protocol):
    """Tools that must be asked for: an MCP server's. Their names begin with `name` and a dot."""

    @property
    def name(self) -> str: ...

    async def tools(self) -> Sequence[Tool]:
        """All of them, within bounded time. Raises ToolError if they aren't available now."""
        ...

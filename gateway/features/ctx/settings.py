"""The section `ctx` of config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from gateway.config.file import Entry

if TYPE_CHECKING:
    from pydantic import Field, StringConstraints

    from gateway.config.fields import NUMBER, Days, DriverName, FilePath, Many, Seconds, Text, UserID

UseCase = Literal["default", "exec", "socket", "agent"]
"""How a caller uses a model object; `default` covers uses without a route of their own."""


class CtxModel(Entry, frozen=True, kw_only=True):
    """How one model appears in `/ctx`."""

    object: Annotated[str, StringConstraints(pattern=r"^[^/]+/[^/]+$")] | None = None
    """Its name there, provider/model; if omitted: its maker or its server's host, and its name."""
    session: Literal["none", "socket"] = "socket"
    """socket: it has a .sock for conversations; none: it is only executable."""
    driver: Mapping[UseCase, Annotated[Many[DriverName], Field(min_length=1)]] = {}
    """Drivers for each use, the preferred one first; if omitted: those that fit the runtime."""
    credential: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")] | None = None
    """NAME of its server's key if there is no api_key: variable NAME_API_KEY, else account default of service
    cortexfs:NAME in the keychain."""


class CtxTools(Entry, frozen=True, kw_only=True):
    """Which tools may run: those within `access` that `allow` matches and `deny` doesn't; names may be globs."""

    access: Literal["read", "edit", "full"] = "full"
    """Each level includes those before it."""
    allow: Many[Text] = ("*",)
    """Names or globs; if omitted: all."""
    deny: Many[Text] = ()
    """Names or globs."""


class AgentTools(CtxTools, frozen=True, kw_only=True):
    """Which tools an agent may run."""

    access: Literal["read", "edit", "full"] = "read"
    """Each level includes those before it."""


class CtxAgent(Entry, frozen=True, kw_only=True):
    """An agent of `/ctx`: a model, its instructions, and the tools that it may run in its caller's folder."""

    model: Text = "main"
    """An object, an alias in model/, or a model of this file; if omitted: main."""
    description: Text = ""
    """What it is for."""
    instructions: Text = ""
    """The system message."""
    tools: AgentTools = AgentTools()
    """Its tools; if omitted: those that only read."""
    turn_seconds: Seconds | None = None
    """Time limit of a task."""
    turn_model_calls: Annotated[int, Field(ge=1, le=1000), NUMBER] | None = None
    """Model calls that a task may make."""
    turn_tool_calls: Annotated[int, Field(ge=0, le=1000), NUMBER] | None = None
    """Tool calls that a task may make."""
    turn_output_tokens: Annotated[int, Field(ge=1), NUMBER] | None = None
    """Tokens over all model calls of a task. Limits wider than those of rooms have no effect."""


class Ctx(Entry, frozen=True, kw_only=True):
    """Models as executable objects in the file system."""

    enabled: bool = False
    """Maintain the tree and serve its objects."""
    compile: bool = True
    """Compile the program that runs objects, if there is a C compiler; else it is Python."""
    root: FilePath | None = None
    """Folder of the tree; $CTX_ROOT overrides it; if omitted: /ctx if writable, else ctx in $XDG_RUNTIME_DIR."""
    aliases: Mapping[Text, Text] = {}
    """Names in model/ for models of this file, or for objects."""
    users: Mapping[UserID, Mapping[Text, Text]] = {}
    """The same in home/UID/model/ for each user, by "UID"."""
    session_days: Days | None = None
    """Delete a session after this many days without a message; if omitted: never."""
    models: Mapping[Text, CtxModel] = {}
    """Settings by model."""
    agents: Mapping[Text, CtxAgent] = {}
    """Agents by name."""
    tools: CtxTools = CtxTools()
    """Which tools in tool/ may be executed; if omitted: all."""

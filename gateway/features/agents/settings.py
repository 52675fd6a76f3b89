"""The sections `rooms` and `mcp` of config.yaml: the limits of turns and of their tools, and tool servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from gateway.config.file import Entry
from gateway.config.values import Config

if TYPE_CHECKING:
    from pydantic import Field

    from gateway.config.fields import (
        NUMBER,
        AllowedHost,
        Bytes,
        Command,
        Count,
        Days,
        FilePath,
        Folder,
        GroupName,
        HeaderName,
        Many,
        MCPName,
        ProviderURL,
        Seconds,
        SecretText,
        Text,
        Tokens,
        VariableName,
    )
    from gateway.config.source import Document, KeyPath

FAMILIES = ("aggregate", "curl", "data", "describe", "find", "room", "tool")
"""First parts of the names of our own tools."""


class RoomTools(Entry, frozen=True, kw_only=True):
    """Limits of the tools of a room's model."""

    allow_hosts: Many[AllowedHost] = ()
    """Hosts that curl.* may fetch from even on this machine: host, host:port, host:* or *.domain; without a port: 80
    and 443."""
    public_hosts: bool = True
    """Let curl.* fetch from any host with a public address."""
    fetch_max_bytes: Bytes = 2 * 1024 * 1024
    """Longest response that curl.* accepts."""
    fetch_timeout_seconds: Seconds = 20.0
    """How long curl.* waits at most."""
    summary_model: Text | None = None
    """Writes the summaries of old turns and of curl.summarize; if omitted: the chat model with the smallest weights on
    this machine."""
    max_result_chars: Annotated[int, Field(ge=1000), NUMBER] = 20_000
    """How many characters of a result the model gets."""
    files_max_bytes: Bytes = 64 * 1024 * 1024
    """Total size of a room's files."""
    files_max_count: Annotated[int, Field(ge=1, le=100_000), NUMBER] = 1000
    """Files and folders that a room may have."""
    files_max_depth: Annotated[int, Field(ge=1, le=64), NUMBER] = 16
    """Depth of nested folders in a room."""
    records_max_count: Annotated[int, Field(ge=1), NUMBER] = 10_000
    """Records that a tenant may have, including trash."""
    record_max_bytes: Bytes = 64 * 1024
    """Longest record."""


class RoomMount(Entry, frozen=True, kw_only=True):
    """A folder of this machine that rooms may mount as `/mnt/NAME`."""

    path: Folder
    """The folder."""
    access: Literal["read", "edit"] = "read"
    """edit: rooms may change its contents."""
    tenants: Many[Text] = ()
    """Tenants whose rooms may mount it; if omitted: local."""
    quota_bytes: Bytes = 1024**3
    """Size of its files at which rooms can't write any more."""
    quota_count: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] = 100_000
    """Files and folders at which rooms can't create any more."""


class RoomTemplate(Entry, frozen=True, kw_only=True):
    """The initial settings of a room made by /llm/factory; the fields are those of a room and of its one actor."""

    description: Text | None = None
    """What such a room is for; shown in the list."""
    purpose: Text | None = None
    """The room's purpose."""
    prompt: Text | None = None
    """The first part of its model's system message."""
    model: Text | None = None
    """The model; if omitted: the active one."""
    provider: GroupName | None = None
    """A name from rooms.providers."""
    skills: Many[Text] = ()
    """Skills that the system message lists."""
    access: Literal["read", "edit", "full"] | None = None
    """Tools; if omitted: none."""
    allow: Many[Text] = ()
    """Only these of the tools; globs."""
    deny: Many[Text] = ()
    """None of these tools; globs."""
    mounts: Many[GroupName] = ()
    """Names from rooms.mounts."""
    after_turn: Literal["idle", "sleep", "release"] = "idle"
    """What the room does after an answer."""
    idle_seconds: Seconds | None = None
    """Seconds until an idle room sleeps."""
    bounds: Mapping[Literal["wall_seconds", "model_calls", "tool_calls", "output_tokens"], Count] = {}
    """Limits of each turn."""


class Rooms(Entry, frozen=True, kw_only=True):
    """Rooms below /llm/room. A room may tighten the limits of its turns, never widen them."""

    max_rooms: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] = 1000
    """Rooms that a tenant may have, not counting released ones."""
    idle_seconds: Seconds = 300.0
    """A room sleeps after this many seconds without a message."""
    released_days: Days | None = None
    """Delete a released room, with messages, events and files, after this many days; if omitted: never."""
    turn_seconds: Seconds = 300.0
    """How long a turn may take."""
    turn_model_calls: Count = 16
    """Model calls that a turn may make."""
    turn_tool_calls: Count = 32
    """Tool calls that a turn may make."""
    turn_output_tokens: Tokens = 8192
    """Tokens that the model may write in a turn."""
    turn_retries: Annotated[int, Field(ge=0, le=20), NUMBER] = 3
    """How often in a row to retry a model call that failed temporarily."""
    providers: Mapping[GroupName, ProviderURL] = {}
    """OpenAI-compatible servers that actors may use, as name: base URL; the user needs a secret whose metadata.provider
    is the name."""
    secret_key_file: FilePath | None = None
    """File with the key that encrypts users' secrets; if omitted: the system's keychain."""
    tools: RoomTools = RoomTools()
    """Limits of the model's tools."""
    mounts: Mapping[GroupName, RoomMount] = {}
    """Folders of this machine that rooms may mount as /mnt/NAME, by name."""
    templates: Mapping[GroupName, RoomTemplate] = {}
    """Templates of /llm/factory, by name."""


class MCPServer(Entry, frozen=True, kw_only=True):
    """A tool server that speaks the Model Context Protocol: a command or a URL."""

    command: Command = ()
    """Starts the server, which speaks MCP over stdio."""
    url: ProviderURL | None = None
    """Address of a server that speaks streamable HTTP."""
    env: Mapping[VariableName, SecretText] = {}
    """Variables for the command; write a secret as ${NAME}."""
    pass_env: Many[VariableName] = ()
    """Variables of the gateway to pass to the command besides PATH, HOME and the like."""
    headers: Mapping[HeaderName, SecretText] = {}
    """Headers of the requests to the URL; write a secret as ${NAME}."""
    allow: Many[Text] | None = None
    """Which of its tools to offer, as names or globs; if omitted: all."""
    access: Literal["read", "edit", "full"] | None = None
    """What a policy must grant for its tools; if omitted: read for those that the server marks as read-only, edit for
    all others."""
    start_seconds: Seconds = 30.0
    """How long it may take to start."""
    call_seconds: Seconds = 60.0
    """How long a call may take."""
    idle_seconds: Seconds = 300.0
    """It stops after this time without a call."""
    at_a_time: Annotated[int, Field(ge=1, le=64), NUMBER] = 4
    """Calls at a time."""


class MCP(Entry, frozen=True, kw_only=True):
    """Tool servers that speak the Model Context Protocol."""

    servers: Mapping[MCPName, MCPServer] = {}
    """The servers by name; their tools are called NAME.tool."""


def settle(document: Document, config: Config) -> Config:
    """See `gateway.feature.Feature.settle`."""
    for name, server in config.section(MCP).servers.items():
        at: KeyPath = ("mcp", "servers", name)
        shown = f"mcp.servers.{name}"
        if name in FAMILIES:
            document.problem(
                at, f"mcp.servers: {name} is the name of tools of ctxgate", "choose another name", key=True
            )
        if bool(server.command) == (server.url is not None):
            document.problem(at, f"{shown} needs a command or a url, and not both", "give one of them", key=True)
        for key, needs in (("env", "command"), ("pass_env", "command"), ("headers", "url")):
            if getattr(server, key) and not getattr(server, needs):
                document.problem((*at, key), f"{shown}.{key} belongs to a {needs}", "remove it", key=True)
    return config

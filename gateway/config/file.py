"""The schema of the file after `gateway.config.spelling`: its keys with their types, bounds and descriptions.

`gateway.config.build` copies the values to the frozen classes of `gateway.config.values` by field name. None always
means "not given": the defaults are in those classes. `gateway.config.schema` makes the JSON Schema for editors from
these classes.
"""

# Without `from __future__ import annotations`: pydantic would compile each annotation of each start after an edit.
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gateway.config.fields import (
    NUMBER,
    AllowedHost,
    Argument,
    BaseURL,
    Bytes,
    Capability,
    Command,
    Count,
    Days,
    DriverName,
    ExtraBody,
    FilePath,
    ForceParams,
    GroupName,
    HeaderName,
    Many,
    MCPName,
    Memory,
    ModelName,
    Origin,
    Port,
    ProviderURL,
    Runtime,
    Saving,
    Seconds,
    Secret,
    Section,
    ServedHost,
    Share,
    StripParams,
    Text,
    Tokens,
    ToolCallFormat,
    VariableName,
    Wait,
)
from gateway.config.values import (
    DEFAULT,
    NUMA,
    PLACEHOLDERS,
    CallDeltas,
    Enforcement,
    KVCacheType,
    LogFormat,
    LogLevel,
    Placing,
    Role,
    RopeScaling,
    Tier,
    ToolExample,
    ToolPrompt,
    ToolWording,
    UseCase,
)


class Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=(), defer_build=True)


class RopeEntry(Entry):
    """How llama.cpp stretches a model's context; omitted keys are as in the model's file."""

    scaling: RopeScaling | None = Field(default=None, description="Method.")
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="How many times as long the context becomes."
    )
    base: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Base frequency."
    )
    original_context: Tokens | None = Field(
        default=None, description="Tokens of the context that the model was trained on, for yarn."
    )


class DraftEntry(Entry):
    """Speculation, by a smaller model or by n-grams: exactly one of model and ngram."""

    model: FilePath | None = Field(
        default=None,
        description="Weights of a smaller model with the same vocabulary: a GGUF file or, for MLX, a folder.",
    )
    ngram: bool | None = Field(
        default=None,
        description="llama.cpp: draft the tokens that followed the same ones before; false: no speculation.",
    )
    tokens: Tokens | None = Field(default=None, description="The most tokens to draft.")
    gpu_layers: Annotated[int, Field(ge=0), NUMBER] | None = Field(
        default=None, description="llama.cpp: layers of the smaller model on GPUs; if omitted: as many as fit."
    )


class AdapterEntry(Entry):
    """A LoRA adapter of a model."""

    path: FilePath = Field(description="GGUF file, or a folder for MLX.")
    scale: Annotated[float, Field(allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Weight of the adapter; if omitted: 1."
    )
    alias: ModelName | None = Field(
        default=None,
        description="The model's name with this adapter, for requests; if omitted: every request uses the adapter.",
    )


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
    pass_env: Many[VariableName] | None = Field(
        default=None,
        description="Environment variables to pass to the engine besides the usual ones, such as PATH and CUDA_*.",
    )
    threads: Count | None = Field(default=None, description="CPU threads; if omitted: the physical cores.")
    parallel: Count | None = Field(default=None, description="Requests that the engine serves at a time.")
    gpu_layers: Annotated[int, Field(ge=0), NUMBER] | None = Field(
        default=None, description="llama.cpp, Ollama: layers of the model on GPUs; if omitted: as many as fit."
    )
    main_gpu: Annotated[int, Field(ge=0, le=1023), NUMBER] | None = Field(
        default=None,
        description="llama.cpp, Ollama: the one GPU that gets the model, by the engine's count from 0; if omitted: one "
        "that holds all of it, else all of them.",
    )
    tensor_split: Annotated[Many[Share], Field(min_length=1, max_length=127)] | None = Field(
        default=None,
        description="llama.cpp: shares of the model for each GPU, such as [3, 1]; if omitted: by their free memory.",
    )
    flash_attention: bool | None = Field(
        default=None,
        description="llama.cpp: flash attention; if omitted: on where the engine supports it for the model.",
    )
    kv_cache_type: KVCacheType | None = Field(
        default=None, description="llama.cpp, MLX: type of the numbers in the context's cache; if omitted: f16."
    )
    batch: Tokens | None = Field(
        default=None, description="llama.cpp, MLX, Ollama: prompt tokens to process in one step; if omitted: 512."
    )
    mmap: bool | None = Field(
        default=None, description="llama.cpp, Ollama: map the weights into memory instead of reading the whole file."
    )
    numa: NUMA | None = Field(
        default=None, description="llama.cpp: how to spread threads over the nodes of a NUMA machine."
    )
    rope: Section[RopeEntry] | None = Field(
        default=None, description="llama.cpp: how to stretch the context; if omitted: as in the model's file."
    )
    draft: Section[DraftEntry] | None = Field(
        default=None,
        description="llama.cpp, MLX: speculation, for faster answers; if omitted: by n-grams on llama.cpp.",
    )
    fit: bool | None = Field(
        default=None,
        description="llama.cpp: choose settings that aren't given, such as GPU layers and context, to fit free memory.",
    )
    idle_ttl_seconds: Seconds | None = Field(
        default=None, description="Unload the engine after this many seconds without a request; if omitted: never."
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
        default=None, description="The file in the repository or the wheel; with hub, if omitted: all files."
    )
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="The file's SHA-256, hexadecimal; any other file is refused."
    )


class ScaleEntry(Entry):
    """How many engines of a model a cluster runs."""

    min: Annotated[int, Field(ge=0, le=1000), NUMBER] | None = Field(default=None, description="At least; default 0.")
    max: Annotated[int, Field(ge=1, le=1000), NUMBER] | None = Field(default=None, description="At most; default 1.")


class ModelEntry(RuntimeEntry):
    """One model."""

    runtime: Runtime = Field(
        description="The engine. `openai` is any OpenAI-compatible server; pkg.mod:Class is your own backend."
    )
    aliases: Many[ModelName] | None = Field(default=None, description="Other names that clients may use.")
    service_tier: Tier | dict[ModelName, Tier] | None = Field(
        default=None,
        description="Default of the request field; as a mapping: by the name or alias that the request uses.",
    )
    role: Role | None = Field(
        default=None, description="What the model does: chat, embedding (/v1/embeddings) or rerank (/v1/rerank)."
    )
    path: FilePath | None = Field(
        default=None, description="Weights: a GGUF file, or a folder for MLX. The gateway starts the engine."
    )
    mmproj_path: FilePath | None = Field(default=None, description="Vision projector for the weights.")
    adapters: Many[Section[AdapterEntry]] | None = Field(default=None, description="llama.cpp, MLX: LoRA adapters.")
    base_url: BaseURL | None = Field(
        default=None, description="Server: http://host:port, https://…, or unix:/path/to/socket."
    )
    replicas: ScaleEntry | Literal["once"] | Annotated[Many[BaseURL], Field(min_length=1)] | None = Field(
        default=None,
        description="Base URLs of servers that all have the model, instead of base_url; the least busy one answers. "
        "In a cluster: {min, max} engines, or `once`: exactly one.",
    )
    nodes: dict[Text, Text] | None = Field(
        default=None, description="In a cluster: labels that a node must have to run the model's engines."
    )
    placement: Placing | None = Field(
        default=None, description="In a cluster: spread the engines over the nodes, or pack them onto few."
    )
    ca_file: FilePath | None = Field(
        default=None, description="PEM file of certificate authorities for an https server; if omitted: the system's."
    )
    port: Port | None = Field(
        default=None, description="Port on this machine where the gateway finds the engine, or else starts it."
    )
    model_name: Text | None = Field(default=None, description="The engine's name for the model; if omitted: the key.")
    context_window: Tokens | None = Field(default=None, description="Context length in tokens.")
    tool_call_format: ToolCallFormat | None = Field(
        default=None,
        description="How the model writes tool calls; native_json: the engine parses them itself; auto: detect it from "
        "the model; a mapping defines your own format.",
    )
    tool_prompt: ToolPrompt | None = Field(
        default=None,
        description="Where the prompt lists the tools: in the template, in the system message, or both: in the "
        "template, with the gateway's instructions in the system message. auto: whichever works.",
    )
    tool_wording: ToolWording | None = Field(
        default=None,
        description="How the gateway explains tools in the system message: brief, or with examples of answers with and "
        "without a call, for models that call too often.",
    )
    tool_examples: list[ToolExample] | None = Field(
        default=None,
        description="Example turns that the gateway puts before the conversation, made from the request's own tools, "
        "to show the model when to call; in this order. ask: a question back for a missing value; call: a call; "
        "calls: two at once; hello: a greeting.",
    )
    call_threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NUMBER] | None = Field(
        default=None,
        description="From which probability on that an answer's first token begins a call it calls a tool; below it, "
        "it is words. Only with llama.cpp and a tool_call_format that the gateway reads. Left out: the model decides.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Default of a request's field: whether an answer may have several calls."
    )
    enforcement: Enforcement | None = Field(
        default=None,
        description="What enforces tool_choice and response_format. auto: the engine, a grammar, or the gateway by "
        "checking answers; engine: the engine alone, checked at the end; response_format: the same for "
        "this field alone, which then forces calls, too.",
    )
    call_deltas: CallDeltas | None = Field(
        default=None,
        description="Which calls a stream sends piece by piece. guarded: those that a grammar makes readable, "
        "all others once they are complete; always: all, even if some turn out unreadable; complete: none.",
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
    extra_body: ExtraBody | None = Field(
        default=None, description="More request fields, filled in if the caller leaves them out."
    )
    strip_params: StripParams | None = Field(
        default=None, description="Request fields that callers may not set; the defaults apply instead."
    )
    force_params: ForceParams | None = Field(
        default=None, description="Request fields that the gateway sets, whatever the caller sends."
    )
    retries: Annotated[int, Field(ge=0, le=10), NUMBER] | None = Field(
        default=None,
        description="How often to retry a request after a transient failure before its first byte.",
    )
    fallbacks: Many[Text] | None = Field(
        default=None,
        description="Models to try in turn after this one fails transiently, or if its weights are missing.",
    )
    api_key: Secret | None = Field(default=None, description="The server's key: ${VARIABLE} or keychain:NAME.")
    capabilities: Many[Capability] | None = Field(default=None, description="What the model can do.")
    display_name: Text | None = Field(default=None, description="Name for people.")
    pull: Section[PullEntry] | None = Field(default=None, description="Where `ctxgate pull` gets the weights.")
    connect_timeout: Seconds | None = Field(default=None, description="Seconds for opening a connection to the engine.")
    request_timeout: Seconds | None = Field(default=None, description="Seconds without a byte from the engine.")
    memory: Memory | None = Field(
        default=None,
        description="Memory that the engine needs, such as 6 GB; if omitted: measured, at first estimated.",
    )
    pinned: bool | None = Field(
        default=None, description="Whether its engine, once started, is never evicted for another."
    )
    preload: bool | None = Field(
        default=None, description="Whether the gateway loads the model when it starts, before the first request."
    )
    group: GroupName | None = Field(default=None, description="Its group, one of engines.groups.")


class TlsEntry(Entry):
    """The certificate with which the gateway serves https."""

    cert: FilePath = Field(description="Certificate in PEM, followed by the intermediate authorities.")
    key: FilePath = Field(description="Its private key in PEM, without a passphrase.")


class ServerEntry(Entry):
    """Where the gateway listens."""

    host: Text | None = Field(default=None, description="Address; anything but loopback needs api_keys.")
    port: Annotated[int, Field(ge=0, le=65535), NUMBER] | None = Field(default=None, description="0: any free port.")
    uds: FilePath | None = Field(default=None, description="Unix socket, instead of host and port.")
    tls: TlsEntry | None = Field(default=None, description="Serve https on host and port.")
    api_keys: Many[Secret | None] | None = Field(
        default=None, description="Keys of callers: ${VARIABLE} or keychain:NAME."
    )
    max_body_bytes: Annotated[int, Field(ge=1024), NUMBER] | None = Field(
        default=None, description="Longest request body."
    )
    max_bodies_bytes: Annotated[int, Field(ge=1024), NUMBER] | None = Field(
        default=None, description="All request bodies in memory together; further ones get 503."
    )
    max_connections: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] | None = Field(
        default=None, description="Connections at a time; further ones replace idle ones, or get 503."
    )
    allowed_hosts: Many[ServedHost] | None = Field(
        default=None,
        description='Names that requests may use for the gateway, besides loopback, addresses and host; "*": any.',
    )
    cors_origins: Many[Origin] | None = Field(
        default=None, description='Origins whose web pages may use the gateway, "*" for any; if omitted: none.'
    )
    responses_days: Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Days to keep /v1/responses; 0: store none."
    )
    responses_max_bytes: Bytes | None = Field(
        default=None, description="Total size of a user's stored responses; the oldest are removed first."
    )
    progress_comments: bool | None = Field(
        default=None,
        description="Report in SSE comments what a stream is waiting for: queue, loading, prompt.",
    )
    progress_after_seconds: Seconds | None = Field(
        default=None,
        description="Seconds until the first such comment; an error after it is an event, not an HTTP status.",
    )
    keep_alive_seconds: Seconds | None = Field(
        default=None, description="Seconds of silence in a stream before a keep-alive comment."
    )
    watch: bool | None = Field(default=None, description="Apply changes of this file when it is saved.")
    page: bool | None = Field(default=None, description="Show browsers a page about the running gateway at /.")


class LogEntry(Entry):
    """Logging on standard error, and the record of recent answers."""

    format: LogFormat | None = Field(default=None, description="text, or json: one object per line.")
    level: LogLevel | None = Field(default=None, description="Least severe level to log.")
    requests: Annotated[int, Field(ge=0, le=100_000), NUMBER] | None = Field(
        default=None, description="Recent answers to keep in memory; 0: none."
    )
    usage_days: Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER] | None = Field(
        default=None, description="Days to keep the totals of `ctxgate usage`; 0: keep none."
    )
    bodies: bool | None = Field(default=None, description="Keep prompts and answers too, for `ctxgate replay`.")
    traces: Annotated[str, Field(pattern=r"^https?://[^/\s]+")] | None = Field(
        default=None,
        description="OTLP/HTTP URL that gets an OpenTelemetry span for each request: pip install 'ctxgate[otel]'.",
    )
    trace_content: bool | None = Field(default=None, description="Whether spans contain prompts and answers.")


class PromptsEntry(Entry):
    """Prompts that the gateway's engines have read, saved on disk. The files contain conversations."""

    save: Saving | None = Field(
        default=None,
        description="When to save: on_stop (when an engine stops), each_turn (survives a crash too), or off.",
    )
    max_bytes: Memory | None = Field(
        default=None, description="Size of all files, such as 8 GB; the least recently used are removed first."
    )
    max_age_days: Days | None = Field(
        default=None, description="Delete files that haven't been used for this many days."
    )
    min_tokens: Annotated[int, Field(ge=1), NUMBER] | None = Field(
        default=None, description="The shortest prompt to save."
    )
    cache_ram: Memory | None = Field(
        default=None,
        description="Memory in which an engine may keep prompts besides its slots, such as 1 GB; part of the budget.",
    )
    share: Annotated[str, StringConstraints(pattern=r"^(/|[a-z][a-z0-9+.-]*://)\S+$")] | None = Field(
        default=None,
        description="Absolute path or fsspec URL, such as s3://bucket/prompts, that shares prompts between machines.",
    )


class GroupEntry(Entry):
    """A group of models; a model joins it with its `group`."""

    excludes: Many[GroupName] = Field(
        description="Groups whose models may not be in memory together with this group's; may include itself."
    )


class EnginesEntry(Entry):
    """Settings for all engines that the gateway starts."""

    memory_budget: Memory | None = Field(
        default=None,
        description="Memory that they may use together, such as 12 GB; if omitted: what the machine can spare.",
    )
    gpu_memory_budget: Memory | None = Field(
        default=None, description="GPU memory; if omitted: what nvidia-smi or rocm-smi reports."
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
    swap_after_seconds: Wait | None = Field(
        default=None, description="How long a model in use may keep a request for another model waiting."
    )
    flex_max_wait_seconds: Wait | None = Field(
        default=None, description="How long a request with service tier flex gives way to others."
    )
    groups: dict[GroupName, GroupEntry] | None = Field(
        default=None, description="Groups of models that may not be in memory together."
    )


class CtxModelEntry(Entry):
    """How one model appears in /ctx."""

    object: Annotated[str, StringConstraints(pattern=r"^[^/]+/[^/]+$")] | None = Field(
        default=None,
        description="Its name there, provider/model; if omitted: its maker or its server's host, and its name.",
    )
    session: Literal["none", "socket"] | None = Field(
        default=None, description="socket: it has a .sock for conversations; none: it is only executable."
    )
    driver: dict[UseCase, Annotated[Many[DriverName], Field(min_length=1)]] | None = Field(
        default=None,
        description="Drivers for each use, the preferred one first; if omitted: those that fit the runtime.",
    )
    credential: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")] | None = Field(
        default=None,
        description="NAME of its server's key if there is no api_key: variable NAME_API_KEY, else account default of "
        "service cortexfs:NAME in the keychain.",
    )


class CtxToolsEntry(Entry):
    """Which tools may run: those within `access` that `allow` names and `deny` doesn't."""

    access: Literal["read", "edit", "full"] | None = Field(
        default=None, description="Each level includes those before it."
    )
    allow: Many[Text] | None = Field(default=None, description="Names or globs; if omitted: all.")
    deny: Many[Text] | None = Field(default=None, description="Names or globs.")


class CtxAgentEntry(Entry):
    """An agent of /ctx: a model that runs tools in its caller's folder."""

    model: Text | None = Field(
        default=None, description="An object, an alias in model/, or a model of this file; if omitted: main."
    )
    description: Text | None = Field(default=None, description="What it is for.")
    instructions: Text | None = Field(default=None, description="The system message.")
    tools: CtxToolsEntry | None = Field(default=None, description="Its tools; if omitted: those that only read.")
    turn_seconds: Seconds | None = Field(default=None, description="Time limit of a task.")
    turn_model_calls: Annotated[int, Field(ge=1, le=1000), NUMBER] | None = Field(
        default=None, description="Model calls that a task may make."
    )
    turn_tool_calls: Annotated[int, Field(ge=0, le=1000), NUMBER] | None = Field(
        default=None, description="Tool calls that a task may make."
    )
    turn_output_tokens: Annotated[int, Field(ge=1), NUMBER] | None = Field(
        default=None,
        description="Tokens over all model calls of a task. Limits wider than those of rooms have no effect.",
    )


class CtxEntry(Entry):
    """Models as executable objects in the file system."""

    enabled: bool | None = Field(default=None, description="Maintain the tree and serve its objects.")
    compile: bool | None = Field(
        default=None,
        description="Compile the program that runs objects, if there is a C compiler; else it is Python.",
    )
    root: FilePath | None = Field(
        default=None,
        description="Folder of the tree; $CTX_ROOT overrides it; if omitted: /ctx if writable, else ctx in "
        "$XDG_RUNTIME_DIR.",
    )
    aliases: dict[Text, Text] | None = Field(
        default=None, description="Names in model/ for models of this file, or for objects."
    )
    users: dict[Annotated[str, StringConstraints(pattern=r"^\d+$")], dict[Text, Text]] | None = Field(
        default=None, description='The same in home/UID/model/ for each user, by "UID".'
    )
    session_days: Days | None = Field(
        default=None, description="Delete a session after this many days without a message; if omitted: never."
    )
    models: dict[Text, CtxModelEntry] | None = Field(default=None, description="Settings by model.")
    agents: dict[Text, CtxAgentEntry] | None = Field(default=None, description="Agents by name.")
    tools: CtxToolsEntry | None = Field(
        default=None, description="Which tools in tool/ may be executed; if omitted: all."
    )


class RoomToolsEntry(Entry):
    """Limits of the tools of a room's model."""

    allow_hosts: Many[AllowedHost] | None = Field(
        default=None,
        description="Hosts that curl.* may fetch from even on this machine: host, host:port, host:* or *.domain; "
        "without a port: 80 and 443.",
    )
    public_hosts: bool | None = Field(default=None, description="Let curl.* fetch from any host with a public address.")
    fetch_max_bytes: Bytes | None = Field(default=None, description="Longest response that curl.* accepts.")
    fetch_timeout_seconds: Seconds | None = Field(default=None, description="How long curl.* waits at most.")
    summary_model: Text | None = Field(
        default=None,
        description="Writes the summaries of old turns and of curl.summarize; if omitted: the chat model with the "
        "smallest weights on this machine.",
    )
    max_result_chars: Annotated[int, Field(ge=1000), NUMBER] | None = Field(
        default=None, description="How many characters of a result the model gets."
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


class RoomMountEntry(Entry):
    """A folder of this machine that rooms may mount as /mnt/NAME."""

    path: FilePath = Field(description="The folder.")
    access: Literal["read", "edit"] | None = Field(default=None, description="edit: rooms may change its contents.")
    tenants: Many[Text] | None = Field(default=None, description="Tenants whose rooms may mount it; if omitted: local.")
    quota_bytes: Bytes | None = Field(
        default=None, description="Size of its files at which rooms can't write any more."
    )
    quota_count: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] | None = Field(
        default=None, description="Files and folders at which rooms can't create any more."
    )


class RoomTemplateEntry(Entry):
    """The initial settings of a room made by /llm/factory."""

    description: Text | None = Field(default=None, description="What such a room is for; shown in the list.")
    purpose: Text | None = Field(default=None, description="The room's purpose.")
    prompt: Text | None = Field(default=None, description="The first part of its model's system message.")
    model: Text | None = Field(default=None, description="The model; if omitted: the active one.")
    provider: GroupName | None = Field(default=None, description="A name from rooms.providers.")
    skills: Many[Text] | None = Field(default=None, description="Skills that the system message lists.")
    access: Literal["read", "edit", "full"] | None = Field(default=None, description="Tools; if omitted: none.")
    allow: Many[Text] | None = Field(default=None, description="Only these of the tools; globs.")
    deny: Many[Text] | None = Field(default=None, description="None of these tools; globs.")
    mounts: Many[GroupName] | None = Field(default=None, description="Names from rooms.mounts.")
    after_turn: Literal["idle", "sleep", "release"] | None = Field(
        default=None, description="What the room does after an answer."
    )
    idle_seconds: Seconds | None = Field(default=None, description="Seconds until an idle room sleeps.")
    bounds: dict[Literal["wall_seconds", "model_calls", "tool_calls", "output_tokens"], Count] | None = Field(
        default=None, description="Limits of each turn."
    )


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
        description="Delete a released room, with messages, events and files, after this many days; if omitted: never.",
    )
    turn_seconds: Seconds | None = Field(default=None, description="How long a turn may take.")
    turn_model_calls: Count | None = Field(default=None, description="Model calls that a turn may make.")
    turn_tool_calls: Count | None = Field(default=None, description="Tool calls that a turn may make.")
    turn_output_tokens: Tokens | None = Field(default=None, description="Tokens that the model may write in a turn.")
    turn_retries: Annotated[int, Field(ge=0, le=20), NUMBER] | None = Field(
        default=None, description="How often in a row to retry a model call that failed temporarily."
    )
    providers: dict[GroupName, ProviderURL] | None = Field(
        default=None,
        description="OpenAI-compatible servers that actors may use, as name: base URL; the user needs a secret whose "
        "metadata.provider is the name.",
    )
    secret_key_file: FilePath | None = Field(
        default=None, description="File with the key that encrypts users' secrets; if omitted: the system's keychain."
    )
    tools: RoomToolsEntry | None = Field(default=None, description="Limits of the model's tools.")
    mounts: dict[GroupName, RoomMountEntry] | None = Field(
        default=None, description="Folders of this machine that rooms may mount as /mnt/NAME, by name."
    )
    templates: dict[GroupName, RoomTemplateEntry] | None = Field(
        default=None, description="Templates of /llm/factory, by name."
    )


class BatchesEntry(Entry):
    """Files and batches, below /v1/files and /v1/batches."""

    at_a_time: Annotated[int, Field(ge=1, le=1024), NUMBER] | None = Field(
        default=None, description="Requests of all batches that run at a time."
    )
    max_lines: Annotated[int, Field(ge=1, le=1_000_000), NUMBER] | None = Field(
        default=None, description="Requests in one batch."
    )
    storage_max_bytes: Bytes | None = Field(
        default=None, description="Total size of a user's files; the answers of running batches count, too."
    )
    days: Days | None = Field(default=None, description="Days to keep files and ended batches.")


class MCPServerEntry(Entry):
    """A tool server that speaks the Model Context Protocol: a command or a URL."""

    command: Command | None = Field(default=None, description="Starts the server, which speaks MCP over stdio.")
    url: ProviderURL | None = Field(default=None, description="Address of a server that speaks streamable HTTP.")
    env: dict[VariableName, str] | None = Field(
        default=None, description="Variables for the command; write a secret as ${NAME}."
    )
    pass_env: Many[VariableName] | None = Field(
        default=None, description="Variables of the gateway to pass to the command besides PATH, HOME and the like."
    )
    headers: dict[HeaderName, str] | None = Field(
        default=None, description="Headers of the requests to the URL; write a secret as ${NAME}."
    )
    allow: Many[Text] | None = Field(
        default=None, description="Which of its tools to offer, as names or globs; if omitted: all."
    )
    access: Literal["read", "edit", "full"] | None = Field(
        default=None,
        description="What a policy must grant for its tools; if omitted: read for those that the server marks as "
        "read-only, edit for all others.",
    )
    start_seconds: Seconds | None = Field(default=None, description="How long it may take to start.")
    call_seconds: Seconds | None = Field(default=None, description="How long a call may take.")
    idle_seconds: Seconds | None = Field(default=None, description="It stops after this time without a call.")
    at_a_time: Annotated[int, Field(ge=1, le=64), NUMBER] | None = Field(default=None, description="Calls at a time.")


class MCPEntry(Entry):
    """Tool servers that speak the Model Context Protocol."""

    servers: dict[MCPName, MCPServerEntry] | None = Field(
        default=None, description="The servers by name; their tools are called NAME.tool."
    )


class ClusterTLSEntry(Entry):
    """PEM files for https between engines and gateways."""

    cert_file: FilePath = Field(description="Certificate of the node's engines.")
    key_file: FilePath = Field(description="Its private key.")
    ca_file: FilePath | None = Field(
        default=None, description="Authorities that gateways trust; if omitted: the system's."
    )


class ClusterEntry(Entry):
    """Several machines that share their engines; needs store: postgresql://…"""

    ray: Annotated[str, StringConstraints(pattern=r"^(auto|(ray://)?[^/\s]+:\d+)$")] | None = Field(
        default=None, description="auto: the Ray node of this machine; or host:port, or ray://host:port."
    )
    gateway_url: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = Field(
        default=None, description="Where other machines reach this machine's gateway; {host} is this machine's address."
    )
    host: Text | None = Field(
        default=None, description="This machine's address; if omitted: the one from which it reaches the database."
    )
    weights: FilePath | None = Field(
        default=None, description="Shared folder with weights, by SHA-256; nodes look there before they pull a model."
    )
    idle_seconds: Seconds | None = Field(
        default=None, description="Stop a replica that hasn't been needed for this many seconds."
    )
    tls: ClusterTLSEntry | None = Field(default=None, description="https between gateways and engines.")


class File(Entry):
    """_models/config.yaml of ctxgate"""

    active_model: Text = Field(description=f'The model for requests that name none, or "{DEFAULT}".')
    models_dir: Text | None = Field(
        default=None, description="Folder to which relative paths refer; if omitted: the file's own folder."
    )
    models: dict[ModelName, ModelEntry] = Field(description="The models by name.", min_length=1)
    runtimes: dict[Runtime, Section[RuntimeEntry]] | None = Field(
        default=None, description="Launch settings for all models of a runtime."
    )
    server: Section[ServerEntry] | None = Field(default=None, description="Where the gateway listens.")
    log: Section[LogEntry] | None = Field(default=None, description="Logging, and the record of recent answers.")
    prompts: Section[PromptsEntry] | None = Field(
        default=None, description="Prompts that engines have read, saved on disk across swaps and restarts."
    )
    engines: Section[EnginesEntry] | None = Field(
        default=None, description="Settings for all engines that the gateway starts."
    )
    ctx: Section[CtxEntry] | None = Field(default=None, description="Models as executable objects in the file system.")
    state_dir: FilePath | None = Field(
        default=None, description="The gateway's own folder; if omitted: ctxgate in the user's state folder."
    )
    rooms: Section[RoomsEntry] | None = Field(default=None, description="Rooms, below /llm/room.")
    batches: Section[BatchesEntry] | None = Field(default=None, description="Files and batches, below /v1.")
    mcp: Section[MCPEntry] | None = Field(
        default=None, description="Tool servers that speak the Model Context Protocol."
    )
    cluster: Section[ClusterEntry] | None = Field(
        default=None, description="Several machines that share their engines, which Ray places."
    )
    store: Annotated[str, StringConstraints(pattern=r"^(sqlite:///|postgresql://).+")] | None = Field(
        default=None,
        description="Database of sessions, responses, batches and rooms: sqlite:///file or postgresql://…; if "
        "omitted: an SQLite file in state_dir. Write a password as ${VARIABLE}.",
    )


REQUEST_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "stop", "max_tokens",
)  # fmt: skip
"""Keys of a model that are defaults of request fields."""

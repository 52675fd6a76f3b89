"""OpenAI chat completions on the wire: the request, a streamed chunk, a whole answer.

The gateway decodes only the fields that it acts on. It forwards every other field byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from gateway.errors import ProviderInvalidRequest
from gateway.wire.allowed_tools import ALLOWED_TOOLS, only_allowed
from gateway.wire.body import LONGEST_NAME, Name, Stop, misfit
from gateway.wire.limits import Limits, Standing, Tier
from gateway.wire.nulls import MAX_KEPT_BYTES, read_fields
from gateway.wire.usage import SoundUsage
from gateway.wire.values import MAX_VALUES, check


class _Message(Struct, gc=False):
    role: str


class _Function(Struct, gc=False):
    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    description: str | None = None


class _Tool(Struct, gc=False):
    """name: set in the flat form of the Responses API, which has no `function`."""

    type: str | None = None
    function: _Function | None = None
    name: Any = None


CallDeltas = Literal["guarded", "always", "complete"]
"""Which calls leave piece by piece: those that a grammar makes certain, all, or none. Any other is held until it is
complete."""


class _StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class _Format(Struct, gc=False):
    schema: Raw = Raw(b"null")


class ResponseFormat(Struct, gc=False):
    """schema: the JSON Schema of the type `json_schema`, unread; it may be large."""

    type: Any = None
    json_schema: _Format | None = None

    @property
    def schema(self) -> bytes:
        return bytes(self.json_schema.schema) if self.json_schema is not None else b"null"


_Count = Annotated[int, Meta(ge=0)]
_Tokens = Annotated[int, Meta(ge=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Share = Annotated[float, Meta(ge=0, le=1)]


LONGEST_TOOLS = 2_000_000
"""Bytes of the tools of one request. 58 tools of a coding agent have 100,000."""
UNLIMITED = b"-1"
"""As `max_tokens` of a request of Ollama's API: no limit, whatever the model's defaults say."""


class _Known(Struct, gc=False):
    """The fields whose types the gateway validates before it asks an engine.

    The last ones are rare, and engines drop them silently. A request that has one, or numbers out of the ordinary, is
    read once more, with `gateway.wire.rare`; so they cost any other request nothing but their defaults.
    """

    messages: list[_Message]
    model: Name | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: Raw = Raw(b"null")
    """See `_checked_tools`."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    n: int | None = None
    stop: Stop | list[Stop] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: _Count | None = None
    service_tier: str | None = None
    call_deltas: CallDeltas | None = None
    call_threshold: _Share | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    functions: None = None
    function_call: None = None
    modalities: None = None
    audio: None = None
    web_search_options: None = None
    echo: None = None
    best_of: None = None


class _Loose(_Known, gc=False):
    """The same, for a request whose rare fields are checked afterwards."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    echo: Any = None
    best_of: Any = None


_decode_known = msgspec.json.Decoder(_Known).decode
_decode_loose = msgspec.json.Decoder(_Loose).decode
_decode_tools = msgspec.json.Decoder(list[_Tool] | None).decode
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


def tier_in(fields: Mapping[str, Raw]) -> Wanted | None:
    """The tier that a request's fields name. Raises ProviderInvalidRequest unless it is a string."""
    written = decode(fields["service_tier"]) if "service_tier" in fields else None
    if written is not None and not isinstance(written, str):
        raise ProviderInvalidRequest("service_tier: must be a string", param="service_tier")
    return None if written is None else _KNOWN_TIERS.get(written, "auto")


def with_tier(json: bytes, tier: str) -> bytes:
    """An answer, or a chunk of one, that names its service tier; one that an external server named stays."""
    if json.find(b'"service_tier"') >= 0:  # `in` would try the bytes as a number first, which raises
        answer = decode(json)
        return json if answer.get("service_tier") is not None else encode({**answer, "service_tier": tier})
    return _NAMING[tier] + json.lstrip()[1:]


def compact(json: bytes) -> bytes:
    """The same JSON without white space between its tokens."""
    return msgspec.json.format(json, indent=-1)


# Two: a pattern for both would have no literal to look for first.
_past_tools = re.compile(rb'"(?:tool_calls|tool_call_id|tool)"').search
_past_functions = re.compile(rb'"function(?:_call)?"').search

FREE = ("auto", "none")
"""Values of `tool_choice` that allow an answer in plain text."""


ApiName = Literal[
    "chat", "responses", "messages", "completions", "embeddings", "rerank", "ollama", "rooms", "ctx",
    "audio", "images", "infill", "upstream",
]  # fmt: skip
"""The gateway's API that received a request."""


TIERS: tuple[Tier, ...] = ("priority", "default", "flex")
PRIORITY, DEFAULT, FLEX = 0, 1, 2
"""Ranks of requests, by their tier. The lower goes first when models compete for memory; at one engine, only FLEX waits
for the others."""
_RANKS: dict[str, int] = {"priority": PRIORITY, "flex": FLEX}
Wanted = Tier | Literal["auto"]
"""auto: any; the answer says which."""
_KNOWN_TIERS: dict[str, Tier] = {tier: tier for tier in TIERS}
"""Values that only other servers define are passed on to them, and count as auto."""
_NAMING: dict[str, bytes] = {tier: b'{"service_tier":"%b",' % tier.encode() for tier in TIERS}
"""How a JSON object begins that names a tier."""


def rank_of(tier: str | None) -> int:
    """None, and any other tier: DEFAULT."""
    return _RANKS.get(tier or "", DEFAULT)


class Meter(Protocol):
    """Counts what a caller's key uses of its limits."""

    key: str
    limits: Limits

    def enter(self) -> int:
        """Counts a request in, until `leave`. Returns how many more are left. Raises LimitReached."""
        ...

    def leave(self) -> None:
        """A request that `enter` counted has ended."""
        ...

    def again(self) -> None:
        """Counts a further request in the place of one that `enter` counted. Raises LimitReached."""
        ...

    def stay(self) -> None:
        """The next `leave` is of a request that goes on; another one comes when that has ended."""
        ...

    def standing(self) -> Standing:
        """What is left now."""
        ...

    def lines(self, requests: int) -> bytes:
        """What is left, in OpenAI's words, as lines of an answer's head. requests: as `enter` said."""
        ...

    def answer(self, head: bytes, requests: int, body: bytes) -> bytes:
        """A whole answer with these lines; see `gateway.wire.limits.HeadLines.answer`."""
        ...

    def spend(self, usage: Mapping[str, Any], now: float) -> None:
        """An answer has ended. usage: its counts of tokens. now: by time.monotonic."""
        ...


class Caller:
    """Who sends a request, for usage accounting.

    key: the id of the API key, "" without one. client: the program, as its User-Agent names it. meter: None without
    limits. owner: whose prompts an engine may reuse for it, and nobody else's; "" for the owner of this machine.
    """

    __slots__ = ("client", "key", "meter", "owner")

    def __init__(self, key: str = "", client: str = "", meter: Meter | None = None, owner: str = "") -> None:
        self.key = key
        self.client = client
        self.meter = meter
        self.owner = owner


NOBODY = Caller()
"""The caller of the gateway's own requests, and of those whose caller is unknown."""


CALLING = "calling"
"""The first word of the progress of a call that is held back."""


QUEUED = "queued"
"""The first word of the progress of a request that waits for an engine, or for a place there."""

PUT_ASIDE = "put-aside"
"""The first word of the progress of an answer that gave way in the middle."""


def waiting() -> str:
    """The progress of a request of which nothing else is known."""
    return "waiting"


class Serving(Struct, eq=False):
    """What changes about a request while it is served. All copies of a request share it.

    tier: the service tier that it asks for, `auto` included; once the gateway has its route, the one that it gets. None
    if nobody has said one; then the answer names none. prompt_tokens: the prompt's, and those of them from a cache, if
    the engine tells them before its answer; else zeros. describe: returns the progress, a word, then key=value pairs.
    Each stage that keeps the request waiting sets it with `tell`, and streams send it as comments. Once the answer has
    begun, they send only what begins with `CALLING` or `PUT_ASIDE`.
    """

    tier: Wanted | None = None
    prompt_tokens: tuple[int, int] = (0, 0)
    describe: Callable[[], str] = waiting

    def describe_now(self) -> str:
        """What `describe` returns, whichever it is then."""
        return self.describe()

    def settle(self, tier: Wanted | None) -> None:
        """It gets this tier."""
        self.tier = tier

    def tell(self, describe: Callable[[], str] = waiting) -> None:
        """Its progress from now on."""
        self.describe = describe

    def reads(self, tokens: int, cached: int) -> None:
        """The engine reads a prompt of so many tokens."""
        self.prompt_tokens = tokens, cached


class ChatRequest(Struct, eq=False, frozen=True):
    """A checked request; `parse` makes it. A stage that changes something goes on with a copy.

    fields: every field of the request as JSON bytes, unknown ones included. Each backend gets a copy that it may
    change. tools: the JSON array of tools; None if the request declares none. api: the API that received it. fallback:
    the name of the fallback model that answers; the answer reports it. constrained: the answer may have to meet a
    constraint; see `gateway.request.constraints`. past_calls: `messages` may contain tool calls or their results; a
    false positive only costs time. plain: without tools, past calls and constraint. call_deltas, call_threshold: the
    client's wishes instead of the model's keys of the same name; the engine doesn't see them. functions: the client
    speaks of `functions` and `function_call`, which came before tools. limited: `tool_choice` lists allowed tools. Then
    `tools` are those alone, and `tool_choice` is the choice among them, while `fields` say what the client said. A call
    of any other tool is text, in every format. changes: what was changed in its messages before it came to an engine,
    and how often, by kind. recorded: its bytes are kept, whatever `log.bodies` says. in_words: the gateway wants an
    answer without a call, where the model's engine can be held to that. by_format: have `response_format` force the
    call that it demands. size: bytes of its JSON.
    """

    fields: dict[str, Raw]
    api: ApiName
    model: str | None
    stream: bool
    include_usage: bool
    tools: bytes | None
    parallel_tool_calls: bool
    tool_choice: str | dict[str, Any] | None
    response_format: ResponseFormat | None
    constrained: bool
    past_calls: bool
    plain: bool
    size: int
    caller: Caller
    serving: Serving
    call_deltas: CallDeltas | None = None
    call_threshold: float | None = None
    limited: bool = False
    recorded: bool = False
    functions: bool = False
    fallback: str | None = None
    in_words: bool = False
    by_format: bool = False
    changes: Mapping[str, int] = {}

    @property
    def names_stop(self) -> bool:
        """Whether the answer says which of the client's stop sequences ended it, as Anthropic's do."""
        return self.api == "messages" and "stop" in self.fields

    def limit(self) -> dict[str, Raw]:
        """The fields `tools` and `tool_choice` with the allowed tools alone, in words that every engine knows; {} if
        all are allowed."""
        if not self.limited or self.tools is None:
            return {}
        return {"tools": Raw(self.tools), "tool_choice": Raw(encode(self.tool_choice))}

    def calling_once(self) -> ChatRequest:
        """The request with one call allowed to an answer, unless the client has said how many."""
        if "parallel_tool_calls" in self.fields:
            return self
        return replace(self, fields={**self.fields, "parallel_tool_calls": Raw(b"false")}, parallel_tool_calls=False)

    def continued(self, messages: list[dict[str, Any]], *, by_format: bool = False) -> ChatRequest:
        """A request of its own with more messages at the end, from the same caller."""
        earlier = decode(self.fields["messages"])
        fields = {**self.fields, "messages": Raw(encode([*earlier, *messages]))}
        return replace(self, fields=fields, by_format=by_format, serving=Serving(self.serving.tier))

    @classmethod
    def parse(
        cls,
        body: bytes,
        api: ApiName = "chat",
        caller: Caller = NOBODY,
        *,
        recorded: bool = False,
        functions: bool = False,
        strict: bool = True,
    ) -> ChatRequest:
        """strict: look at rare fields, too. Raises ProviderInvalidRequest, which names the field or limit."""
        try:
            fields, known = _read(body, strict=strict)
        except msgspec.ValidationError as error:
            if strict:
                return cls._unusual(body, api, caller, recorded)
            raise misfit(error) from None
        if not known.messages:
            raise ProviderInvalidRequest("messages: at least one message is required", param="messages")
        given = b"".join((known.tools,))  # bytes() of a Raw costs four times as much
        tools = _tools_of(given, fields) if given != b"null" else None
        options, choice, format = known.stream_options, known.tool_choice, known.response_format
        limited = False
        if tools is not None and isinstance(choice, dict) and choice.get("type") == ALLOWED_TOOLS:
            limited = True
            tools, choice = only_allowed(choice, tools)
        constrained = format is not None or (choice is not None and choice not in FREE)
        past_calls = bool(_past_tools(messages := fields["messages"]) or _past_functions(messages))
        if known.call_deltas is not None or known.call_threshold is not None:
            fields.pop("call_deltas", None)
            fields.pop("call_threshold", None)
        tier = known.service_tier
        return cls(
            fields,
            api,
            known.model,
            known.stream is True,
            options is not None and options.include_usage is True,
            tools,
            known.parallel_tool_calls is not False,
            choice,
            format,
            constrained,
            past_calls,
            tools is None and not constrained and not past_calls,
            len(body),
            caller,
            Serving(None if tier is None else _KNOWN_TIERS.get(tier, "auto")),
            known.call_deltas,
            known.call_threshold,
            limited,
            recorded,
            functions,
        )

    @classmethod
    def _unusual(cls, body: bytes, api: ApiName, caller: Caller, recorded: bool) -> ChatRequest:
        """A request with a rare field, or an invalid one. Raises as `parse`."""
        from gateway.wire import rare

        request = cls.parse(body, api, caller, recorded=recorded, strict=False)
        if (translated := rare.translated(request.fields)) is None:
            return request
        return cls.parse(translated, api, caller, recorded=recorded, functions=True)


def _read(body: bytes, *, strict: bool) -> tuple[dict[str, Raw], _Known]:
    """All fields, and those that the gateway knows. Raises msgspec.ValidationError for a field of another kind than
    expected, ProviderInvalidRequest for what isn't JSON."""
    try:
        if len(body) > MAX_VALUES or not body.isascii():
            check(body)
        fields, body = read_fields(body)
        return fields, _decode_known(body) if strict else _decode_loose(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        raise ProviderInvalidRequest(f"the request body is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise ProviderInvalidRequest("the request body is not valid UTF-8") from None
    except RecursionError:
        raise ProviderInvalidRequest("the request body is not valid: it is nested too deeply") from None


def _tools_of(given: bytes, fields: dict[str, Raw]) -> bytes | None:
    """`_checked_tools`, which replace those of `fields` where they differ."""
    if len(given) > LONGEST_TOOLS:
        raise ProviderInvalidRequest(f"tools: they have over {LONGEST_TOOLS} bytes", param="tools")
    tools = _kept_tools(given) if len(given) <= MAX_KEPT_BYTES else _checked_tools(given)
    if tools is not None and tools != given:
        fields["tools"] = Raw(tools)
    return tools


def _checked_tools(given: bytes) -> bytes | None:
    """The array of tools to send, None for an empty one. Agents repeat the same bytes with every turn.

    Raises ProviderInvalidRequest.
    """
    try:
        tools = _decode_tools(given)
    except msgspec.ValidationError as error:
        raise misfit(error, "tools") from None
    if not tools:
        return None
    _check_tools(tools)
    return given if all(tool.type for tool in tools) else encode([_FUNCTION | tool for tool in decode(given)])


_kept_tools = lru_cache(maxsize=8)(_checked_tools)

_FUNCTION = {"type": "function"}
"""What a tool is that doesn't say it; llama.cpp refuses such a tool."""


def _check_tools(tools: list[_Tool]) -> None:
    """Raises ProviderInvalidRequest for a function without a name."""
    for index, tool in enumerate(tools):
        name = tool.function.name if tool.function is not None else tool.name
        if isinstance(name, str) and (len(name) > LONGEST_NAME or "\0" in name):
            place = f"tools[{index}].function.name"
            fault = f"has over {LONGEST_NAME} characters" if len(name) > LONGEST_NAME else "contains a NUL"
            raise ProviderInvalidRequest(f"{place}: it {fault}, which engines refuse", param=place)
        if tool.function is None and tool.type in (None, "function") and not (tool.name and isinstance(tool.name, str)):
            place = f"tools[{index}].function.name"
            raise ProviderInvalidRequest(f"{place}: a tool needs a function with a name", param=place)


class FunctionDelta(Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCallDelta(Struct, omit_defaults=True):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


LATEST = 1 << 40
"""No answer is made after it, in seconds of Unix time."""

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class Delta(Struct, gc=False):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Logprobs(Struct, gc=False):
    """An object whose fields nobody reads here."""


class ChoiceDelta(Struct, gc=False):
    delta: Delta
    index: Annotated[int, Meta(ge=0)]
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


class Chunk(Struct, gc=False):
    """The fields of a streamed chunk that decide whether the gateway must change it.

    A chunk of another shape has to be repaired first; see `gateway.wire.shape`.
    """

    choices: list[ChoiceDelta]
    usage: Any = None
    error: Any = None


MENDED = ("none", "lexical", "schema", "unmarked", "unmarked, lexical", "unmarked, schema")
"""What an answer's `ctxgate.mended` says: that a call had no marks, and the strongest repair of the calls."""


class _Envelope(Struct, gc=False):
    id: Annotated[str, Meta(min_length=1)]
    object: Literal["chat.completion.chunk"]
    created: Annotated[int, Meta(ge=0, lt=LATEST)]
    model: Annotated[str, Meta(min_length=1)]
    system_fingerprint: str | None = None
    usage: SoundUsage | None = None


check_envelope = msgspec.json.Decoder(_Envelope).decode
"""Raises DecodeError unless the fields around a chunk's choices are as clients expect them."""

decode_chunk = msgspec.json.Decoder(Chunk).decode


class Message(Struct, gc=False):
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(Struct, gc=False):
    message: Message
    index: Annotated[int, Meta(ge=0)]
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


class WholeAnswer(Struct, gc=False):
    """The fields of a whole answer that decide whether the gateway must change it."""

    id: Annotated[str, Meta(min_length=1)]
    object: Literal["chat.completion"]
    created: Annotated[int, Meta(ge=0, lt=LATEST)]
    model: str
    choices: list[Choice]
    usage: dict[str, Any] | None = None
    system_fingerprint: str | None = None
    error: Any = None


decode_answer = msgspec.json.Decoder(WholeAnswer).decode

"""Computes what to send for a request: a pure function of the request, the model's settings and its capabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Self

from msgspec import Raw, Struct
from msgspec.structs import replace as replaced

from gateway.request.call_format import call_format
from gateway.request.checks import Check, Enforced
from gateway.request.constraints import (
    BY_FORMAT,
    NEED_WORDS,
    Constraint,
    Method,
    check_tools,
    constraint,
    measured,
    named_tool,
    refused,
)
from gateway.request.escaped import escape_messages
from gateway.request.grammars import forced_tools, free_text, raw_text
from gateway.request.known_schemas import known_schemas
from gateway.request.past_calls import as_wanted
from gateway.request.past_reasoning import KeepReasoning, keep_as_told
from gateway.request.repair_history import NOTHING, repair_history
from gateway.request.tools_in_prompt import add_to_system, calls_as_text, instructions_prompt, tools_prompt
from gateway.schema.fault import Compile, Measure, Write
from gateway.wire import control_tokens, logprobs
from gateway.wire.chat import UNLIMITED, CallDeltas, ChatRequest, decode, encode
from gateway.wire.control_tokens import ControlTokens
from gateway.wire.engine import NEVER, Decision, Notation, RawText
from gateway.wire.nulls import MAX_KEPT_BYTES
from normalizers import FormatSpec, registry
from normalizers.derive.history import History
from normalizers.write.examples import Example, example_turns
from normalizers.write.instructions import Wording

MAX_KEPT = 8

SYSTEM = ("system", "developer")
"""Roles of the messages that stand before all others."""

ToolsIn = Literal["template", "system", "both"]
"""Where the model reads about its tools: its chat template lists them, our system message does, or the template lists
them and our system message explains how and when to call them."""


class RequestSettings(Struct, frozen=True, eq=False):
    """The settings of config.yaml for a model's requests.

    defaults: fields for requests that leave them out. strip: fields that callers may not set. force: fields that we
    set whatever the caller says. engine_enforces: trust the engine with every constraint. calls_by_format: trust
    it with `response_format`, which then forces calls, too. compile: makes the checkers
    of JSON Schemas. write: writes grammars. measure: bounds the schemas of which engines make grammars; None trusts
    them. call_deltas: for requests that don't say it. keep_reasoning: see `gateway.request.past_reasoning`.
    """

    runtime: str
    defaults: Mapping[str, Raw]
    strip: frozenset[str]
    force: Mapping[str, Raw]
    engine_enforces: bool
    compile: Compile
    write: Write
    call_deltas: CallDeltas = "guarded"
    measure: Measure | None = None
    calls_by_format: bool = False
    keep_reasoning: KeepReasoning = "auto"

    @classmethod
    def of(
        cls,
        runtime: str,
        *,
        defaults: Mapping[str, Any],
        strip: Iterable[str],
        force: Mapping[str, Any],
        engine_enforces: bool,
        compile: Compile,
        write: Write,
        call_deltas: CallDeltas = "guarded",
        measure: Measure | None = None,
        calls_by_format: bool = False,
        keep_reasoning: KeepReasoning = "auto",
    ) -> Self:
        """From plain values as the configuration has them."""
        defaults, force = _raw(defaults), _raw(force)
        strip = _with_twins(strip)
        how = call_deltas, measure, calls_by_format or runtime in BY_FORMAT, keep_reasoning
        return cls(runtime, defaults, strip, force, engine_enforces, compile, write, *how)

    def fields(self, given: Mapping[str, Raw]) -> dict[str, Raw]:
        """The fields for the engine, from those of the caller."""
        fields = {**self.defaults, **given}
        if "max_completion_tokens" in fields and "max_tokens" not in given:
            fields.pop("max_tokens", None)
        if not self.strip and not self.force:
            return fields
        for name in self.strip & fields.keys():
            del fields[name]
        fields |= {name: value for name, value in self.defaults.items() if name in self.strip}
        for name in _with_twins(self.force) & fields.keys():
            del fields[name]
        fields |= self.force
        return fields

    def lift_limit(self, fields: dict[str, Raw], *, prompt: bool = False) -> None:
        """Removes the limit of tokens, unless callers may not set it. prompt: the request has no chat template."""
        names = _with_twins(("max_tokens",))
        if names & (self.strip | self.force.keys()):
            return
        for name in names & fields.keys():
            del fields[name]
        if (without := (NO_LIMIT_OF_PROMPTS if prompt else NO_LIMIT).get(self.runtime)) is not None:
            fields["max_tokens"] = without


NO_LIMIT = {"ollama": Raw(UNLIMITED)}
"""Runtime → the `max_tokens` that says that there is no limit; for the others it is left out. An Ollama model may have
a limit of its own."""
NO_LIMIT_OF_PROMPTS = {**NO_LIMIT, "llama-cpp-python": Raw(b"null"), "openai": Raw(b"null")}
"""The same without a chat template: OpenAI's endpoint for that writes 16 tokens unless told otherwise."""

LONGEST_TOOLS = 16_000
"""Bytes of a request's tools in JSON, above which examples don't stand. Between 5,450 and 5,700 tokens, or 18 kB, of
tools, the probability that Qwen2.5-Coder begins a call falls to 0 with them, whether there are 30 tools or 84. Without
them it calls."""


class ModelCapabilities(Struct, frozen=True, eq=False):
    """What a model can do behind its engine.

    reader: the format in which we read its answers. dialect: the format in which it writes calls, even if the engine
    reads them. notation: that of the grammars to which the engine holds its unread text; None if it gives us none.
    tools_in: where the model reads about its tools. wording: of our part of it. examples: turns that show when to call.
    threshold: see `gateway.wire.engine.Decision`; NEVER: that of a request alone counts. takes_tools: its chat template
    has a place for tools. keeps_calls: the template shows the calls of earlier answers. history: how it wants them.
    control_tokens: keep these out of the request's texts. unread: ask for the unread text if no tools are offered,
    whoever reads calls. opens_escaped: the engine itself cuts an escaped prompt; any other gets broken texts if it
    doesn't give us raw ones.
    """

    reader: FormatSpec
    dialect: FormatSpec
    notation: Notation | None = None
    tools_in: ToolsIn = "template"
    wording: Wording = "brief"
    examples: tuple[Example, ...] = ()
    threshold: float | None = None
    takes_tools: bool = True
    keeps_calls: bool = True
    history: History = History()
    control_tokens: ControlTokens | None = None
    opens_escaped: bool = False
    unread: bool = False

    def without_examples(self) -> ModelCapabilities:
        """The same where they can't stand. The model's threshold was fitted with them, so that it goes, too."""
        return replaced(self, examples=(), threshold=None if self.threshold is None else NEVER)


class Terms(Struct, frozen=True, eq=False):
    """The part of `Prepared` that agents repeat with every turn: it depends on the tools and the constraint alone.

    reader: the format in which to read the answer. raw: ask for the text unread, this way. method, check: how the
    answer's constraint is enforced. replace, drop: fields of the request. system: texts for the system message.
    as_text: past calls and results become text, since the tools do, too. examples: messages of ours, which stand behind
    the system message. guarded, unmarked_guarded: our grammar makes
    it certain that every call that a mark begins can be read, and every call without marks that begins the answer.
    """

    reader: FormatSpec
    raw: RawText | None = None
    method: Method | None = None
    check: Check | None = None
    replace: Mapping[str, Raw] = {}
    drop: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    as_text: bool = False
    examples: Sequence[Mapping[str, Any]] = ()
    guarded: bool = False
    unmarked_guarded: bool = False

    def piecewise(self, wanted: CallDeltas, by_grammar: bool) -> bool:
        """Whether to send calls piece by piece, now that we know whether the engine took our grammar."""
        return wanted == "always" or (wanted == "guarded" and self.guarded and by_grammar)

    def unmarked_piecewise(self, wanted: CallDeltas, by_grammar: bool) -> bool:
        """The same for calls without marks: only a grammar tells early that such a text is one."""
        return wanted != "complete" and self.unmarked_guarded and by_grammar

    def enforced(self, by_grammar: bool) -> Enforced | None:
        """How the constraint is enforced, now that we know whether the engine took our grammar; None without one."""
        if self.method is None:
            return None
        if self.method == "grammar" and not by_grammar:
            return Enforced("checked", self.check)
        certain = self.method == "grammar" and self.check is not None and self.check.constraint.kind == "call"
        return Enforced(self.method, None if certain else self.check)


class Prepared(Struct, frozen=True):
    """One request, ready to send.

    fields: the body to send. raw: `Terms.raw` for this request. repairs: repairs of the past conversation, by kind, and
    the number of `control_tokens` that are kept text. logprobs: how many others each token of the answer gets, as
    `gateway.wire.logprobs` says.
    """

    fields: dict[str, Raw]
    raw: RawText | None
    repairs: Mapping[str, int] = NOTHING
    logprobs: int | None = None


class TermsCache:
    """The terms of a model's last requests, since agents repeat their tools and constraints with every turn."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Terms] = {}

    def get(self, request: ChatRequest, capabilities: ModelCapabilities) -> Terms | None:
        """None if `derive_terms` has to find them."""
        if request.plain and capabilities.control_tokens is None:
            return Terms(capabilities.reader)
        if request.constrained or request.tool_choice is not None:
            return self._kept.get(_key(request, capabilities))
        return self._kept.get((capabilities, request.tools, request.parallel_tool_calls))

    def keep(self, request: ChatRequest, capabilities: ModelCapabilities, terms: Terms) -> None:
        """Forgets the oldest if there are too many. Keeps no long ones, so that all together stay small."""
        key = _key(request, capabilities)
        if sum(len(part) for part in key if isinstance(part, bytes)) <= MAX_KEPT_BYTES:
            self._kept[key] = terms
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]


def _key(request: ChatRequest, capabilities: ModelCapabilities) -> tuple[object, ...]:
    """Everything that terms depend on, for one model."""
    if request.tool_choice is None and request.response_format is None:
        return capabilities, request.tools, request.parallel_tool_calls
    fields = request.fields
    choice, format = fields.get("tool_choice", b""), fields.get("response_format", b"")
    return capabilities, request.tools, request.parallel_tool_calls, bytes(choice), bytes(format), request.by_format


def blocks(request: ChatRequest, capabilities: ModelCapabilities) -> bool:
    """Whether `derive_terms` may call `RequestSettings.write`, which blocks."""
    return request.constrained or (request.tools is not None and capabilities.notation is not None)


def prepare(request: ChatRequest, settings: RequestSettings, capabilities: ModelCapabilities, terms: Terms) -> Prepared:
    """What to send. terms: of `derive_terms`, or kept from a request with the same tools and constraint."""
    edits = settings.defaults or settings.strip or settings.force
    fields = settings.fields(request.fields) if edits else dict(request.fields)
    if request.api == "ollama" and bytes(fields.get("max_tokens", b"")) == UNLIMITED:
        settings.lift_limit(fields)
    if capabilities.control_tokens is not None:
        fields["messages"] = Raw(
            escape_messages(bytes(fields["messages"]), capabilities.control_tokens, capabilities.reader)
        )
    if terms.drop or terms.replace:
        for name in terms.drop:
            fields.pop(name, None)
        fields |= terms.replace
    keep_as_told(fields, settings.keep_reasoning, capabilities.history, past=request.past_calls)
    top = logprobs.wanted(fields) if "logprobs" in fields or "top_logprobs" in fields else None
    repairs = NOTHING
    raw = terms.raw
    if raw is not None and raw.decision is not None:
        raw = replaced(raw, decision=_decision(raw.decision, request, fields))
    if request.past_calls or terms.system or terms.examples:
        repairs = _edit_messages(fields, terms, capabilities, past=request.past_calls)
    if capabilities.control_tokens is not None:
        repairs = {
            **repairs,
            **_escape_fields(
                fields, capabilities.control_tokens, broken=terms.raw is None and not capabilities.opens_escaped
            ),
        }
    return Prepared(fields, raw, repairs, top)


def _decision(decision: Decision, request: ChatRequest, fields: Mapping[str, Raw]) -> Decision | None:
    """With the request's own threshold. None: the model decides."""
    if request.past_calls and _after_result(fields):
        # The threshold was fitted on first answers. What to do with a result is another question.
        return replaced(decision, threshold=NEVER) if request.in_words else None
    own = request.call_threshold
    if own is not None:
        return replaced(decision, threshold=own)
    return decision if decision.threshold != NEVER else None


def _after_result(fields: Mapping[str, Raw]) -> bool:
    messages = decode(fields["messages"])
    return bool(messages) and messages[-1].get("role") == "tool"


def prepare_prompt(request: ChatRequest, settings: RequestSettings, capabilities: ModelCapabilities) -> dict[str, Raw]:
    """The fields that make the request's prompt, for counting its tokens. Constraints add nothing here."""
    fields = {**settings.defaults, **request.fields, **request.limit()}
    if capabilities.control_tokens is not None:
        escaped = escape_messages(bytes(fields["messages"]), capabilities.control_tokens, capabilities.reader)
        fields["messages"] = Raw(escaped)
    if settings.runtime == "llama.cpp":
        fields |= known_schemas(fields)
    keep_as_told(fields, settings.keep_reasoning, capabilities.history, past=request.past_calls)
    messages, repairs = repair_history(decode(fields["messages"]))
    messages, changes = as_wanted(messages, capabilities.history)
    edited = bool(repairs or changes)
    if request.tools is not None and capabilities.tools_in != "template":
        tools = _escaped_tools(bytes(fields["tools"]), capabilities)
        if capabilities.tools_in == "system":
            messages = calls_as_text(messages, capabilities.reader, results=True)
            text = tools_prompt(tools, capabilities.reader, capabilities.wording)
            del fields["tools"]
        else:
            text = instructions_prompt(tools, capabilities.reader, capabilities.wording)
        messages, edited = add_to_system(messages, text), True
    if edited:
        fields["messages"] = Raw(encode(messages))
    if capabilities.control_tokens is not None:
        _escape_fields(
            fields, capabilities.control_tokens, broken=capabilities.notation is None and not capabilities.opens_escaped
        )
    return fields


def _escaped_tools(tools: bytes, capabilities: ModelCapabilities) -> bytes:
    return tools if capabilities.control_tokens is None else capabilities.control_tokens.escape(tools)


def _escape_fields(fields: dict[str, Raw], tokens: ControlTokens, *, broken: bool) -> Mapping[str, int]:
    """Escapes the tools, as the messages are already; the number of texts. broken: for an engine that takes no ids."""
    if "tools" in fields:
        fields["tools"] = Raw(tokens.escape(bytes(fields["tools"])))
    names = [name for name in ("messages", "tools") if name in fields]
    found = control_tokens.count(*(bytes(fields[name]) for name in names))
    if broken:
        fields |= {name: Raw(control_tokens.broken(bytes(fields[name]))) for name in names}
    return {"control_tokens": found} if found else NOTHING


def _edit_messages(
    fields: dict[str, Raw], terms: Terms, capabilities: ModelCapabilities, *, past: bool
) -> Mapping[str, int]:
    """Repairs the past, writes it as text where the template needs that, and extends the system message."""
    write_calls = terms.as_text or (
        (past or bool(terms.examples)) and not terms.reader.untouched and not capabilities.keeps_calls
    )
    messages = decode(fields["messages"])
    repairs = NOTHING
    if past:
        messages, repairs = repair_history(messages)
    if past and not write_calls:
        messages, changes = as_wanted(messages, capabilities.history)
        repairs = {**repairs, **changes}
    if terms.examples:
        start = next((at for at, message in enumerate(messages) if message.get("role") not in SYSTEM), len(messages))
        messages = [*messages[:start], *terms.examples, *messages[start:]]
    if write_calls:
        messages = calls_as_text(messages, terms.reader, results=terms.as_text or not capabilities.takes_tools)
    for text in terms.system:
        messages = add_to_system(messages, text)
    if repairs or write_calls or terms.system or terms.examples:
        fields["messages"] = Raw(encode(messages))
    return repairs


@lru_cache(maxsize=64)
def forced_call(think: tuple[tuple[str, str], ...]) -> FormatSpec:
    """The format of an answer that is a call's JSON alone. think: the model's marks of reasoning."""
    return FormatSpec("forced_call", dialect="json", think=think)


def _by_format(request: ChatRequest, wanted: Constraint | None, settings: RequestSettings) -> Mapping[str, Raw]:
    """The field with which the engine is made to call, if that is the way; else {}."""
    if wanted is None or wanted.kind != "call" or not (settings.calls_by_format or request.by_format):
        return {}
    assert request.tools is not None
    return {"response_format": Raw(call_format(request.tools, wanted.must))}


def _without_the_rest(request: ChatRequest) -> ChatRequest:
    """The request, reduced to what terms may depend on."""
    names = ("tools", "tool_choice", "response_format", "parallel_tool_calls")
    fields = {name: request.fields[name] for name in names if name in request.fields}
    return replaced(
        request,
        fields=fields,
        model=None,
        stream=False,
        past_calls=False,
        plain=request.tools is None and not request.constrained,
        call_deltas=None,
        call_threshold=None,
    )


def derive_terms(request: ChatRequest, settings: RequestSettings, capabilities: ModelCapabilities) -> Terms:
    """How to ask and how to read, from the tools and the constraint of a request.

    Raises ProviderInvalidRequest for constraints that the engine can't enforce.
    """
    request = _without_the_rest(request)
    check_tools(request, settings.runtime)
    if capabilities.examples and request.tools is not None and _longer(request.tools, LONGEST_TOOLS):
        capabilities = capabilities.without_examples()
    wanted = constraint(request) if request.constrained else None
    by_format = _by_format(request, wanted, settings)
    method = "engine" if by_format and settings.calls_by_format else _method(wanted, settings)
    if settings.measure is not None:
        notation = "gbnf" if by_format else capabilities.notation
        measured(request, wanted if method in ("engine", "grammar") else None, notation, settings.measure)
    if by_format:
        # With tools declared, llama.cpp lets the model write anything beside the format.
        capabilities = replaced(capabilities, reader=forced_call(capabilities.reader.think), tools_in="system")
    reader = capabilities.dialect if method == "grammar" else capabilities.reader
    raw = _raw_text(request, wanted, method, settings, capabilities, reader)
    if method == "grammar" and raw is None and settings.runtime in NEED_WORDS:
        method, reader = "checked", capabilities.reader
    replace = _replaced(request, settings, by_format, named=method == "checked" or bool(by_format))
    system: list[str] = []
    drop: list[str] = []
    if wanted is not None and method == "checked" and settings.runtime in NEED_WORDS and wanted.kind != "call":
        # Models that have tools mostly call one; one that doesn't gets the words when we ask again.
        system.append(wanted.words())
        drop.append("response_format")
        if settings.runtime == "llama-cpp-python" and wanted.kind == "json":
            replace["response_format"] = Raw(b'{"type":"json_object"}')
    as_text = request.tools is not None and _show_tools(request, capabilities, reader, replace, system, drop)
    if capabilities.control_tokens is not None and capabilities.notation is not None:
        if request.tools is None or request.tool_choice == "none":
            raw = free_text(reader)
        raw = replaced(raw, escaped=True) if raw is not None else None
    elif capabilities.unread and wanted is None and (request.tools is None or request.tool_choice == "none"):
        reads = (each for each in (reader, capabilities.dialect) if not each.untouched)
        reader = next(reads, None) or registry.get("auto")
        raw = free_text(reader)
    check = Check(wanted, request.tools, settings.compile) if wanted is not None else None
    guarded = raw is not None and (bool(raw.starts) or raw.forced)
    unmarked = raw is not None and raw.unmarked
    shown = tuple(drop), tuple(system), as_text, _examples(request, capabilities) if wanted is None else ()
    return Terms(reader, raw, method, check, replace, *shown, guarded, unmarked)


def _replaced(
    request: ChatRequest, settings: RequestSettings, by_format: Mapping[str, Raw], *, named: bool
) -> dict[str, Raw]:
    """The fields about tools and schemas to send in place of the client's. named: also in place of a choice by name."""
    replace = request.limit()
    if named:
        replace |= named_tool(request)
    replace |= by_format
    if settings.runtime == "llama.cpp":
        replace |= known_schemas({**request.fields, **replace})
    return replace


def _longer(json: bytes, size: int) -> bool:
    """Than `size`, whatever spaces and escapes the client writes."""
    return len(json) > size and len(encode(decode(json))) > size


def _examples(request: ChatRequest, capabilities: ModelCapabilities) -> Sequence[Mapping[str, Any]]:
    """The turns that show when to call one of the request's tools."""
    if not capabilities.examples or request.tools is None or request.tool_choice == "none":
        return ()
    order = [kind for kind in capabilities.examples if kind != "calls" or request.parallel_tool_calls]
    return example_turns(decode(_escaped_tools(bytes(request.tools), capabilities)), order)


def _show_tools(
    request: ChatRequest,
    capabilities: ModelCapabilities,
    reader: FormatSpec,
    replace: dict[str, Raw],
    system: list[str],
    drop: list[str],
) -> bool:
    """Edits what to send so that the model reads about the request's tools where it should.

    Returns whether the system message lists them; past calls then have to become text, too.
    """
    assert request.tools is not None
    if request.tool_choice == "none":
        # Several engines write calls as plain text if they see the tools.
        drop += ["tools", "tool_choice"]
        return False
    if reader.untouched or capabilities.tools_in == "template":
        return False
    tools = _escaped_tools(bytes(replace.get("tools", request.tools)), capabilities)
    must = forced_tools(request)
    if capabilities.tools_in == "both":
        system.append(instructions_prompt(tools, reader, capabilities.wording, must))
        return False
    system.append(tools_prompt(tools, reader, capabilities.wording, must))
    for name in ("tools", "tool_choice"):
        replace.pop(name, None)
    drop += ["tools", "tool_choice", "parallel_tool_calls"]
    return True


def _raw_text(
    request: ChatRequest,
    wanted: Constraint | None,
    method: Method | None,
    settings: RequestSettings,
    capabilities: ModelCapabilities,
    reader: FormatSpec,
) -> RawText | None:
    """How to ask for the unread text; None if nothing in it is ours to read, or a constraint has no grammar."""
    offers_tools = request.tools is not None and request.tool_choice != "none"
    if capabilities.notation is None or (reader.untouched if offers_tools else method != "grammar"):
        return None
    answer = wanted.text_schema if wanted is not None else None
    return raw_text(
        request,
        reader,
        answer=answer,
        write=settings.write,
        notation=capabilities.notation,
        threshold=capabilities.threshold,
    )


def _method(wanted: Constraint | None, settings: RequestSettings) -> Method | None:
    if wanted is None:
        return None
    if settings.engine_enforces:
        return "engine"
    if settings.calls_by_format and wanted.kind == "json":
        return "engine"
    method = wanted.method(settings.runtime)
    if method == "refused":
        raise refused(wanted, settings.runtime)
    return method


def _raw(values: Mapping[str, Any]) -> dict[str, Raw]:
    return {name: Raw(encode(value)) for name, value in values.items()}


def _with_twins(names: Iterable[str]) -> frozenset[str]:
    """`max_tokens` and `max_completion_tokens` are two names of one field."""
    names = frozenset(names)
    twins = frozenset(("max_tokens", "max_completion_tokens"))
    return names | twins if names & twins else names

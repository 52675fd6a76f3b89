"""What we send for a request: one pure function of the request, the model's settings and what its engine can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Self

from msgspec import Raw, Struct

from gateway.request.checks import Check, Enforced
from gateway.request.constraints import NEED_WORDS, Constraint, Method, allowed_tools, constraint, refused
from gateway.request.grammars import forced_tools, raw_text
from gateway.request.repair_history import NOTHING, repair_history
from gateway.request.tools_in_prompt import add_to_system, calls_as_text, tools_prompt
from gateway.schema.fault import Compile
from gateway.wire.chat import MAX_KEPT_BYTES, ChatRequest, decode, encode
from gateway.wire.engine import Notation, RawText
from normalizers import FormatSpec


class Settings(Struct, frozen=True, eq=False):
    """What config.yaml says about a model's requests.

    defaults: fields for requests that leave them out. strip: fields that callers may not set. force: fields that we
    set whatever the caller says. engine_enforces: trust the engine with every constraint. compile: makes the checkers
    of JSON Schemas.
    """

    runtime: str
    defaults: Mapping[str, Raw]
    strip: frozenset[str]
    force: Mapping[str, Raw]
    engine_enforces: bool
    compile: Compile

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
    ) -> Self:
        """From plain values as the configuration has them."""
        return cls(runtime, _raw(defaults), _with_twins(strip), _raw(force), engine_enforces, compile)

    def fields(self, given: Mapping[str, Raw]) -> dict[str, Raw]:
        """The fields that the engine gets for those that the caller gave."""
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


class Capabilities(Struct, frozen=True, eq=False):
    """What a model can do behind its engine.

    reader: the format in which we read its answers. dialect: the format in which it writes calls, even if the engine
    reads them. notation: that of the grammars to which the engine holds its unread text; None if it gives us none.
    tools_in_prompt: the model sees its tools only if we put them into the prompt. takes_tools: its chat template has a
    place for tools. keeps_calls: the template shows the calls of earlier answers.
    """

    reader: FormatSpec
    dialect: FormatSpec
    notation: Notation | None = None
    tools_in_prompt: bool = False
    takes_tools: bool = True
    keeps_calls: bool = True


class Prepared(Struct, frozen=True):
    """One request, ready to send.

    fields: the body to send. reader: the format in which to read the answer. raw: ask for the text unread, this way.
    method, check: how the answer's constraint is enforced. repairs: repairs of the past conversation, by kind.
    """

    fields: dict[str, Raw]
    reader: FormatSpec
    raw: RawText | None = None
    method: Method | None = None
    check: Check | None = None
    repairs: Mapping[str, int] = NOTHING

    def enforced(self, by_grammar: bool) -> Enforced | None:
        """How the constraint is enforced, now that we know whether the engine took our grammar."""
        if self.method is None:
            return None
        if self.method == "grammar" and not by_grammar:
            return Enforced("checked", self.check)
        return Enforced(self.method, self.check if self.method == "checked" else None)


class _Terms(Struct, frozen=True):
    """The part of `Prepared` that agents repeat with every turn: it depends on the tools and the constraint alone.

    replace, drop: fields of the request. system: texts for the system message. as_text: past calls and results become
    text, since the tools do, too.
    """

    reader: FormatSpec
    replace: Mapping[str, Raw] = {}
    drop: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    as_text: bool = False
    raw: RawText | None = None
    method: Method | None = None
    check: Check | None = None


def prepare(request: ChatRequest, settings: Settings, can: Capabilities) -> Prepared:
    """Works out what to send. Raises ProviderInvalidRequest for what the engine couldn't be held to."""
    fields = settings.fields(request.fields)
    if request.plain:
        return Prepared(fields, can.reader)
    tools, choice, format = request.tools or b"", b"", b""
    if request.tool_choice is not None or request.response_format is not None:
        choice, format = _constraint_bytes(request)
    kept = len(tools) + len(choice) + len(format) <= MAX_KEPT_BYTES
    terms = (_terms if kept else _terms.__wrapped__)(settings, can, tools, request.parallel_tool_calls, choice, format)
    if terms.drop or terms.replace:
        for name in terms.drop:
            fields.pop(name, None)
        fields |= terms.replace
    repairs = NOTHING
    if request.past_calls or terms.system:
        repairs = _edit_messages(fields, terms, can, past=request.past_calls)
    return Prepared(fields, terms.reader, terms.raw, terms.method, terms.check, repairs)


def prepare_prompt(request: ChatRequest, settings: Settings, can: Capabilities) -> dict[str, Raw]:
    """The fields that make the request's prompt, for counting its tokens. Constraints add nothing here."""
    fields = {**settings.defaults, **request.fields}
    messages, repairs = repair_history(decode(fields["messages"]))
    if request.tools is not None and can.tools_in_prompt:
        messages = calls_as_text(messages, can.reader, results=True)
        messages = add_to_system(messages, tools_prompt(bytes(fields.pop("tools")), can.reader))
    elif not repairs:
        return fields
    fields["messages"] = Raw(encode(messages))
    return fields


def _edit_messages(fields: dict[str, Raw], terms: _Terms, can: Capabilities, *, past: bool) -> Mapping[str, int]:
    """Repairs the past, writes it as text where the template needs that, and extends the system message."""
    write_calls = terms.as_text or (past and not terms.reader.untouched and not can.keeps_calls)
    messages = decode(fields["messages"])
    repairs = NOTHING
    if past:
        messages, repairs = repair_history(messages)
    if write_calls:
        messages = calls_as_text(messages, terms.reader, results=terms.as_text or not can.takes_tools)
    for text in terms.system:
        messages = add_to_system(messages, text)
    if repairs or write_calls or terms.system:
        fields["messages"] = Raw(encode(messages))
    return repairs


def _constraint_bytes(request: ChatRequest) -> tuple[bytes, bytes]:
    """`tool_choice` and `response_format` as they came, to tell requests apart."""
    choice, format = request.fields.get("tool_choice", b""), request.fields.get("response_format", b"")
    return bytes(choice), bytes(format)


def _same_terms(tools: bytes, parallel: bool, choice: bytes, format: bytes) -> ChatRequest:
    """A request with these fields alone."""
    fields = {b"messages": b'[{"role":"user"}]', b"parallel_tool_calls": b"true" if parallel else b"false"}
    given = {b"tools": tools, b"tool_choice": choice, b"response_format": format}
    fields |= {name: value for name, value in given.items() if value}
    return ChatRequest.parse(b"{%b}" % b",".join(b'"%b":%b' % pair for pair in fields.items()))


@lru_cache(maxsize=64)
def _terms(settings: Settings, can: Capabilities, tools: bytes, parallel: bool, choice: bytes, format: bytes) -> _Terms:
    """tools, choice, format: JSON; b"" for a field that the request leaves out."""
    request = _same_terms(tools, parallel, choice, format)
    wanted = constraint(request) if request.constrained else None
    method = _method(wanted, settings)
    reader = can.dialect if method == "grammar" else can.reader
    raw = _raw_text(request, wanted, method, can, reader)
    if method == "grammar" and raw is None and settings.runtime in NEED_WORDS:
        method, reader = "checked", can.reader
    replace: dict[str, Raw] = {}
    system: list[str] = []
    drop: list[str] = []
    if request.constrained:
        replace = allowed_tools(request, named=method == "checked")
    if wanted is not None and method == "checked" and settings.runtime in NEED_WORDS and wanted.kind != "call":
        # Models that have tools mostly call one; one that doesn't gets the words when we ask again.
        system.append(wanted.words())
        drop.append("response_format")
        if settings.runtime == "llama-cpp-python" and wanted.kind == "json":
            replace["response_format"] = Raw(b'{"type":"json_object"}')
    as_text = False
    if request.tools is not None and request.tool_choice == "none":
        # Several engines write calls as plain text if they see the tools.
        drop += ["tools", "tool_choice"]
    elif request.tools is not None and not reader.untouched and can.tools_in_prompt:
        as_text = True
        system.append(tools_prompt(bytes(replace.pop("tools", request.tools)), reader, forced_tools(request)))
        replace.pop("tool_choice", None)
        drop += ["tools", "tool_choice", "parallel_tool_calls"]
    check = None
    if wanted is not None and method in ("checked", "grammar"):
        check = Check(wanted, request.tools, settings.compile)
    return _Terms(reader, replace, tuple(drop), tuple(system), as_text, raw, method, check)


def _raw_text(
    request: ChatRequest, wanted: Constraint | None, method: Method | None, can: Capabilities, reader: FormatSpec
) -> RawText | None:
    """How to ask for the unread text; None if nothing in it is ours to read, or a constraint has no grammar."""
    offers_tools = request.tools is not None and request.tool_choice != "none"
    if can.notation is None or (reader.untouched if offers_tools else method != "grammar"):
        return None
    answer = wanted.text_schema if wanted is not None else None
    return raw_text(request, reader, answer=answer, notation=can.notation)


def _method(wanted: Constraint | None, settings: Settings) -> Method | None:
    if wanted is None:
        return None
    if settings.engine_enforces:
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

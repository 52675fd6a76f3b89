"""Prepares a chat for one model's engine, and sends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.answer.capture import RecordedAnswer
from gateway.answer.normalize import Answer
from gateway.answer.reading import in_words
from gateway.backends import Backend, Reply
from gateway.backends.context import CONTEXT_LENGTH_EXCEEDED
from gateway.backends.quiet import Quiet
from gateway.backends.template import REFUSED
from gateway.config import Model
from gateway.core.capability import CapabilityFinder
from gateway.core.in_thread import LARGE, in_thread_if_large
from gateway.errors import ProviderInvalidRequest
from gateway.observe.request_log import RequestLog
from gateway.request.checks import Check, Enforced, Uncheckable
from gateway.request.escaped import may_need_escape
from gateway.request.past_reasoning import mentions_reasoning
from gateway.request.prepare import (
    ModelCapabilities,
    Prepared,
    RequestSettings,
    Terms,
    TermsCache,
    blocks,
    derive_terms,
    prepare,
    prepare_prompt,
)
from gateway.request.template_rules import conforming
from gateway.schema.pool import Threads
from gateway.wire.chat import UNLIMITED, Caller, ChatRequest, decode, encode
from gateway.wire.engine import RawText
from gateway.wire.logprobs import LogprobsFixup


class Accepted(Struct, frozen=True):
    """A request that an engine has accepted. answer: reads the reply. enforced: how the request's constraint is; None:
    it has none."""

    reply: Reply
    answer: Answer
    backend: Backend
    enforced: Enforced | None


_Got = TypeVar("_Got")


class Sender:
    """A chat passes these stages in `send`: what the model can do; the terms of its tools and schemas, worked out once;
    the fields for the engine; the engine's reply; who reads it."""

    def __init__(self, model: Model, request_log: RequestLog, schemas: Threads) -> None:
        """schemas: where the work on clients' schemas is done."""
        self.capability = CapabilityFinder(model)
        self.no_repeats = model.call_threshold is not None
        """An answer that repeats a call is asked for again, in words."""
        self._model = model
        self._request_log = request_log
        self._schemas = schemas
        self._settings = RequestSettings.of(
            model.runtime,
            defaults=model.defaults,
            strip=model.strip_params,
            force=model.force_params,
            engine_enforces=model.enforcement == "engine",
            compile=schemas.pool.compile,
            write=schemas.pool.grammar,
            call_deltas=model.call_deltas,
            measure=schemas.pool.measure,
            calls_by_format=model.enforcement == "response_format",
            keep_reasoning=model.keep_reasoning,
        )
        self._several_owners = False
        """Somebody else than the owner of this machine has asked."""
        self._terms = TermsCache()
        self._may_force_calls = model.runtime == "openai" and model.enforcement == "auto"

    async def send(self, request: ChatRequest, backend: Backend) -> Accepted:
        """Returns once the engine has accepted the request. Raises its GatewayError otherwise.

        If the prompt is too long with the model's example turns, sends it once more without them.
        """
        if request.tools is not None and not self._model.parallel_tool_calls:
            request = request.calling_once()
        capabilities = await self._capabilities(request, backend)
        try:
            return await self._send_once(request, backend, capabilities)
        except ProviderInvalidRequest as error:
            if not capabilities.examples or request.tools is None or error.code != CONTEXT_LENGTH_EXCEEDED:
                raise
        return await self._send_once(request, backend, capabilities.without_examples())

    def completion_fields(self, given: Mapping[str, Raw]) -> dict[str, Raw]:
        """The fields of a request for a plain prompt, with the model's settings."""
        sent = self._settings.fields(given)
        if bytes(sent.get("max_tokens", b"")) == UNLIMITED:
            self._settings.lift_limit(sent, prompt=True)
        return sent

    def other_fields(self, given: Mapping[str, Raw]) -> dict[str, Raw]:
        """The fields of a request that is neither chat nor prompt, with the model's settings."""
        return self._settings.fields(given)

    async def count_tokens(self, request: ChatRequest, backend: Backend) -> int | None:
        """The length of the request's prompt in tokens; None if the engine can't tell without answering it."""
        capabilities = await self.capability.find(request, backend)
        if backend.escapes and may_need_escape(request):
            capabilities = await self.capability.escaping(request, backend, capabilities)
        asked = request.size, prepare_prompt, request, self._settings, capabilities
        try:
            return await backend.count_tokens(await in_thread_if_large(*asked))
        except ProviderInvalidRequest as error:
            if error.code != REFUSED:
                raise
            return (await _conform(await in_thread_if_large(*asked), error, backend.count_tokens))[0]

    def as_seen_by(self, reply: Reply, backend: Backend, caller: Caller) -> Reply:
        """The reply as its caller may see it."""
        if caller.owner:
            self._several_owners = True
        return Quiet(reply) if self._several_owners and not backend.separates else reply

    def is_shared(self, caller: Caller) -> bool:
        """Whether the server of the model may have read the prompts of several owners, this caller's among them."""
        self._several_owners = self._several_owners or bool(caller.owner)
        return self._several_owners

    def may_force_calls(self) -> bool:
        """Whether it isn't known yet that `response_format` doesn't force calls of the model."""
        return self._may_force_calls

    def learn_format(self, *, forces: bool) -> None:
        """Notes whether `response_format` has forced a call."""
        if self._may_force_calls:
            self._may_force_calls = False
            self._settings = replace(self._settings, calls_by_format=forces)
            self._terms = TermsCache()

    def forget(self) -> None:
        """Another model answers from now on."""
        self.capability = CapabilityFinder(self._model)

    async def _capabilities(self, request: ChatRequest, backend: Backend) -> ModelCapabilities:
        capability = self.capability
        plain = request.plain and not self._keeps_reasoning(request)
        capabilities = capability.reader_only if plain else capability.known.get((backend, request.past_calls))
        if capabilities is None:
            capabilities = await capability.find(request, backend, plain=plain)
        if request.call_threshold is not None:
            capabilities = capability.deciding(capabilities)
        if backend.escapes and may_need_escape(request):
            capabilities = await capability.escaping(request, backend, capabilities)
        return capabilities

    def _keeps_reasoning(self, request: ChatRequest) -> bool:
        """Whether it is in doubt what the template does with reasoning that a plain request may hold."""
        return self._model.keep_reasoning == "always" and mentions_reasoning(request.fields["messages"])

    async def _send_once(self, request: ChatRequest, backend: Backend, capabilities: ModelCapabilities) -> Accepted:
        terms = self._terms.get(request, capabilities) or await self._work_out(request, capabilities)
        given = request, self._settings, capabilities, terms
        prepared = prepare(*given) if request.size <= LARGE else await in_thread_if_large(request.size, prepare, *given)
        if terms.check is not None and not await _compiles(
            self._schemas, terms.check, trusted=terms.method != "checked"
        ):
            terms = replace(terms, check=None)
        try:
            reply = await _open(backend, request, prepared.raw, prepared.fields)
        except ProviderInvalidRequest as error:
            if error.code != REFUSED:
                raise
            # The backend has changed the fields that it got.
            prepared = await in_thread_if_large(request.size, prepare, *given)
            again = partial(_open, backend, request, prepared.raw)
            reply, sent, changes = await _conform(prepared.fields, error, again)
            prepared = replace(prepared, fields=sent, repairs=Counter(prepared.repairs) + Counter(changes))
        reply = self.as_seen_by(reply, backend, request.caller)
        enforced = None if terms.method is None else terms.enforced(reply.by_grammar)
        return Accepted(reply, self._reader(request, prepared, terms, reply), backend, enforced)

    async def _work_out(self, request: ChatRequest, capabilities: ModelCapabilities) -> Terms:
        if blocks(request, capabilities):
            terms = await self._schemas.run(derive_terms, request, self._settings, capabilities)
        else:
            terms = await in_thread_if_large(request.size, derive_terms, request, self._settings, capabilities)
        self._terms.keep(request, capabilities, terms)
        return terms

    def _reader(self, request: ChatRequest, prepared: Prepared, terms: Terms, reply: Reply) -> Answer:
        """Who reads the reply."""
        kind: Callable[..., Answer] = Answer
        if request.recorded or self._request_log.records:
            kind = partial(RecordedAnswer, sent=prepared.fields)
        reader = terms.reader if reply.decided is None or reply.decided.calls else in_words(terms.reader)
        fixup = reply.fixup if prepared.logprobs is None else LogprobsFixup(prepared.logprobs, reply.fixup)
        healed = {**prepared.repairs, **request.changes} if request.changes else prepared.repairs
        wanted = request.call_deltas or self._settings.call_deltas
        streams_calls = request.stream and request.tools is not None
        guarded = streams_calls and terms.piecewise(wanted, reply.by_grammar)
        guarded = guarded and not (self.no_repeats and request.past_calls)
        answer = kind(
            request,
            reader,
            fixup,
            reasoning_open=reply.reasoning_open,
            guarded=guarded,
            unmarked_guarded=terms.unmarked_piecewise(wanted, reply.by_grammar),
            healed=healed,
            decided=reply.decided,
        )
        if streams_calls and not guarded:
            before = request.serving.describe
            request.serving.tell(lambda: answer.contents.describe_held() if answer.chunks else before())
        return answer


def _open(backend: Backend, request: ChatRequest, raw: RawText | None, fields: dict[str, Raw]) -> Awaitable[Reply]:
    return backend.open(request, fields) if raw is None else backend.open_raw(request, fields, raw)


async def _conform(
    fields: Mapping[str, Raw], refusal: ProviderInvalidRequest, send: Callable[[dict[str, Raw]], Awaitable[_Got]]
) -> tuple[_Got, dict[str, Raw], Mapping[str, int]]:
    """Sends a conversation that the model's template refused in stricter forms, until it takes one.

    fields: what was to be sent. Returns what `send` does, the fields that it got, and the changes by kind. Raises the
    last refusal, any other error at once.
    """
    size = memoryview(fields["messages"]).nbytes
    forms = conforming(await in_thread_if_large(size, decode, fields["messages"]))
    while (form := await in_thread_if_large(size, next, forms, None)) is not None:
        messages, changes = form
        sent = {**fields, "messages": Raw(await in_thread_if_large(size, encode, messages))}
        try:
            return await send(sent), sent, changes
        except ProviderInvalidRequest as error:
            if error.code != REFUSED:
                raise
            refusal = error
    try:
        raise refusal
    finally:
        del refusal  # else it and this frame hold each other, and the conversation, until a collection


async def _compiles(schemas: Threads, check: Check, *, trusted: bool) -> bool:
    """Whether the answer can be checked. Raises ProviderInvalidRequest if it has to be. trusted: the engine enforces
    the constraint, too."""
    try:
        await schemas.run(check.compile)
    except Uncheckable:
        if not trusted:
            raise
        return False
    return True

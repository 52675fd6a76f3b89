"""Answers requests for one model: its engine, its backend, its capabilities."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from msgspec import Raw
from msgspec.structs import replace as replaced

from gateway import backends
from gateway.answer.capture import recorded
from gateway.answer.normalize import Answer, in_words
from gateway.backends import Address, Backend, Endpoint, ReplicaStatus, Reply
from gateway.backends.context import CONTEXT_LENGTH_EXCEEDED
from gateway.backends.template import REFUSED
from gateway.config import Engines, Model
from gateway.core.capability import CapabilityFinder
from gateway.core.checked import CheckedRun
from gateway.core.flex_line import FlexLine, Load
from gateway.core.images import Describes, Images
from gateway.core.passthrough import Passthrough, RequestMeter
from gateway.core.repeated import RepeatedRun
from gateway.core.run import Asked, Run
from gateway.errors import (
    GatewayError,
    ProviderInvalidRequest,
    ProviderModelNotLoaded,
    ProviderUnavailable,
    ProviderUnsupportedContentBlock,
    WeightsMissing,
)
from gateway.observe.request_log import OK, UNSETTLED, RequestLog, Row, outcome_of, repairs
from gateway.request.checks import Check, Uncheckable
from gateway.request.escaped import may_need_escape
from gateway.request.prepare import Capabilities, Settings, Terms, TermsCache, blocks, prepare, prepare_prompt, work_out
from gateway.request.repair_history import NOTHING
from gateway.request.template_rules import conforming
from gateway.schema.pool import Threads
from gateway.upstream import EngineGone
from gateway.wire.chat import (
    NOBODY,
    UNLIMITED,
    ApiName,
    Caller,
    ChatRequest,
    Tier,
    Wanted,
    decode,
    encode,
    rank_of,
    tier_in,
    waiting,
)
from gateway.wire.engine import RawText
from normalizers import FormatSpec

if TYPE_CHECKING:
    from gateway.engines import Engine

_Got = TypeVar("_Got")

READY_SECONDS = 5.0
"""How long an engine may take to say that it is ready."""


class Route:
    """Answers requests for one model.

    A chat passes these stages: `open` counts it and replays it once if the engine is gone; `ask` takes a place at the
    engine; `prepare` computes the fields to send; `_send` sends them. The Run that is returned reads the answer.
    """

    def __init__(
        self,
        model: Model,
        request_log: RequestLog,
        schemas: Threads,
        engine: Engine | None = None,
        limits: Callable[[], Engines] = Engines,
        backend: Backend | None = None,
        describer: Describes | None = None,
    ) -> None:
        """schemas: where the work on clients' schemas is done. engine: the one to use, if the gateway runs it. limits:
        how long, and how many, flex requests wait before a server that it doesn't run. backend: the one to use without
        an engine; None: that of the server which config.yaml names. describer: of images; None: nobody."""
        self.model = model
        self.plain = not (model.tiers or model.retries or model.fallbacks)
        """No setting of the model requires a step before `open`."""
        self.engine = engine
        self.images = Images(model, describer)
        self.capability = CapabilityFinder(model)
        self.runs: set[Run] = set()
        """Answers in progress."""
        self.opening = 0
        """Requests that no engine has accepted yet."""
        self.waiting: dict[ChatRequest, float] = {}
        """Those that wait for their engine, and since when, by time.monotonic."""
        self._request_log = request_log
        self.schemas = schemas
        self._settings = Settings.of(
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
        )
        self._may_force_calls = model.runtime == "openai" and model.enforcement == "auto"
        self._no_repeats = model.call_threshold is not None
        self._terms = TermsCache()
        self._limits = limits
        self.line: FlexLine | None = None
        """The queue of flex requests for an external server; created by the first."""
        self._unused: asyncio.Event | None = None
        self._watch: Callable[[], None] | None = None
        """Called after each request that ends, if something waits for that."""
        self._engine_stays = False
        """Another route has taken over the engine."""
        self._replaced: Backend | None = None
        """This route's former backend, if another route has taken over its engine."""
        self._backend = backend
        """The backend of external servers; an engine of ours has its own."""

    @property
    def spec(self) -> FormatSpec:
        """The format in which we parse the model's answers."""
        return self.capability.reader

    @property
    def evidence(self) -> str:
        """Why `spec` is the model's format; "" before we looked."""
        return self.capability.evidence

    async def look(self) -> None:
        """Detects the format from the model's files; asks no engine."""
        await self.capability.look()

    # A chat, stage by stage

    async def open(self, request: ChatRequest) -> Run:
        """Sends the request; returns once the engine has accepted it. Logs requests that fail before.

        If an engine of ours has died, or dies before it answers, restarts it and sends the request once more.
        """
        began = monotonic()
        self.opening += 1
        try:
            replayed = False
            try:
                asked = await (self.images.ask(self, request) if self.images.text_only else self.ask(request))
            except EngineGone:
                if self.engine is None:
                    raise
                replayed = True
                asked = await self.images.ask(self, request)
            except ProviderUnsupportedContentBlock as error:
                asked = await self.images.ask_again(request, error, self)
        except BaseException as error:
            self.opening -= 1
            self._failed(request, began, error)
            raise
        enforced = asked[-1]
        kind = Run if enforced is None or enforced.check is None else CheckedRun
        if self._no_repeats and request.past_calls and kind is Run:
            kind = RepeatedRun
        run = kind(self, request, asked, began, replayed)
        self.runs.add(run)
        self.opening -= 1
        return run

    async def open_in_turn(self, request: ChatRequest) -> Run:
        """Like `open`, for a request that may have to wait for an external server because of its service tier."""
        if self.engine is not None or request.tier != "flex":
            return await self.open(request)
        async with self._flex_line().place(self._limits(), lambda say: setattr(request, "progress", say)):
            request.progress = waiting
            return await self.open(request)

    def _flex_line(self) -> FlexLine:
        if self.line is None:
            parallel = self.model.engine.parallel
            places = parallel * max(1, len(self.model.replicas)) if parallel is not None else None
            self.line = FlexLine(self.model.name, self._load, places)
            self._watch = self._look
        return self.line

    def _load(self) -> Load:
        assert self.line is not None
        flex = sum(run.flex for run in self.runs)
        return Load(self.opening - self.line.inside + len(self.runs) - flex, self.in_flight)

    def _look(self) -> None:
        """Notifies those that wait for the end of a request."""
        if self._unused is not None and not self.in_flight:
            self._unused.set()
        if self.line is not None and self.line:
            self.line.look()

    def _failed(self, request: ChatRequest, began: float, error: BaseException) -> None:
        """Logs a request that no engine has accepted."""
        recording = None
        if request.recorded or self._request_log.bodies:
            recording = self._request_log.keep(recorded(request.fields, self.spec.name))
        times = began, monotonic(), 0.0
        asked = self.model.name, request.stream, outcome_of(error)
        self._book((*asked, *times, NOTHING, 0, None, recording, request.api, request.caller))

    def ask(self, request: ChatRequest) -> Awaitable[Asked]:
        """Sends the request once. If an engine accepts it, it has a place there until `Engine.leave`."""
        if self.engine is None:
            return self._send(request, self._backend)
        return self._take_place(request, self.engine)

    async def _take_place(self, request: ChatRequest, engine: Engine) -> Asked:
        if (backend := engine.backend) is not None and request.tier != "flex":
            engine.in_flight += 1
        else:
            request.progress = lambda: str(engine.progress(request) or "waiting")
            self.waiting[request] = came = monotonic()
            try:
                backend = await engine.join(request, rank_of(request.tier))
            finally:
                self.waiting.pop(request, None)
            request.progress = waiting
            if request.tier == "flex":
                return await self._sit_down(request, engine, backend, monotonic() - came)
        try:
            return await self._send(request, backend)
        except BaseException as error:
            if isinstance(error, EngineGone):
                engine.lost()
            engine.leave(rank_of(request.tier))
            raise

    async def _sit_down(self, request: ChatRequest, engine: Engine, backend: Backend, waited: float) -> Asked:
        """Like `_take_place`, for a flex request, whose answer may be put aside."""
        from gateway.engines.seat import EngineSeat

        try:
            if (flexible := backend.flexible()) is not None:
                backend, request.plain = flexible, False  # it needs terms of its own
            asked = await self._send(request, backend)
        except BaseException as error:
            if isinstance(error, EngineGone):
                engine.lost()
            engine.leave(rank_of(request.tier))
            raise
        if (reply := asked[0].flexible) is not None:
            engine.hosts(reply, EngineSeat(engine, request, waited))
        return asked

    async def _send(self, request: ChatRequest, backend: Backend | None) -> Asked:
        """backend: None for that of an external server without requests so far."""
        if request.tools is not None and not self.model.parallel_tool_calls:
            request.call_once()
        if backend is None:
            backend = await self.backend()
        can = await self._capabilities(request, backend)
        try:
            return await self._send_by(request, backend, can)
        except ProviderInvalidRequest as error:
            if not can.examples or request.tools is None or error.code != CONTEXT_LENGTH_EXCEEDED:
                raise
        return await self._send_by(request, backend, replaced(can, examples=()))

    async def _capabilities(self, request: ChatRequest, backend: Backend) -> Capabilities:
        capability = self.capability
        can = capability.plain if request.plain else capability.known.get((backend, request.past_calls))
        if can is None:
            can = await capability.find(request, backend)
        if request.call_threshold is not None:
            can = capability.deciding(can)
        if backend.escapes and may_need_escape(request):
            can = await capability.escaping(request, backend, can)
        return can

    async def _send_by(self, request: ChatRequest, backend: Backend, can: Capabilities) -> Asked:
        terms = self._terms.get(request, can) or await self._work_out(request, can)
        prepared = prepare(request, self._settings, can, terms)
        if terms.check is not None and not await _compiles(
            self.schemas, terms.check, trusted=terms.method != "checked"
        ):
            terms = replaced(terms, check=None)
        try:
            reply = await _open(backend, request, prepared.raw, prepared.fields)
        except ProviderInvalidRequest as error:
            prepared = prepare(request, self._settings, can, terms)
            reply, sent, changes = await _conform(
                prepared.fields, error, partial(_open, backend, request, prepared.raw)
            )
            prepared = replaced(prepared, fields=sent, repairs=Counter(prepared.repairs) + Counter(changes))
        healed = {**prepared.repairs, **request.changes} if request.changes else prepared.repairs
        kind: Callable[..., Answer] = self._request_log.plain
        if request.recorded or self._request_log.bodies:
            kind = partial(self._request_log.recorded, sent=prepared.fields)
        reader = terms.reader if reply.decided is None or reply.decided.calls else in_words(terms.reader)
        answer = kind(request, reader, reply.fixup, reasoning_open=reply.reasoning_open, healed=healed)
        answer.decided = reply.decided
        wanted = request.call_deltas or self._settings.call_deltas
        answer.unmarked_guarded = terms.unmarked_piecewise(wanted, reply.by_grammar)
        if request.stream and request.tools is not None:
            held = self._no_repeats and request.past_calls
            answer.guarded = terms.piecewise(wanted, reply.by_grammar) and not held
            if not answer.guarded:
                before = request.progress
                request.progress = lambda: answer.describe_held() if answer.chunks else before()
        enforced = None if terms.method is None else terms.enforced(reply.by_grammar)
        return reply, answer, backend, enforced

    async def _work_out(self, request: ChatRequest, can: Capabilities) -> Terms:
        if blocks(request, can):
            terms = await self.schemas.run(work_out, request, self._settings, can)
        else:
            terms = work_out(request, self._settings, can)
        self._terms.keep(request, can, terms)
        return terms

    def may_force_calls(self) -> bool:
        return self._may_force_calls

    def learn_format(self, *, forces: bool) -> None:
        if self._may_force_calls:
            self._may_force_calls = False
            self._settings = replaced(self._settings, calls_by_format=forces)
            self._terms = TermsCache()

    def ended(self, run: Run) -> None:
        """Logs a closed run."""
        self.runs.discard(run)
        answer = run.answer
        # An answer whose normaliser saw nothing has no repairs.
        mended = repairs(answer, run.outcome) if answer.choices or answer.healed or answer.decided else None
        recording = None
        if answer.recording is not None and (self._request_log.bodies or run.request.recorded):
            recording = self._request_log.keep(answer.recording)  # any other is for a trace
        usage = answer.usage
        if (turn := run.reply.turn) is not None:
            usage = turn.answered(usage, run.began, run.first)
        caller, now = run.caller, monotonic()
        if (meter := caller.meter) is not None:
            usage = usage or run.guessed_usage()
            meter.spend(usage, now)
        # fmt: off
        self._book((
            self.model.name, run.stream, run.outcome, run.began, now, run.first,
            usage, answer.chunks, mended, recording, run.api, caller,
        ))
        # fmt: on

    def _book(self, row: Row) -> None:
        rows = self._request_log.rows
        rows.append(row)
        if len(rows) >= UNSETTLED:
            self._request_log.settle()
        if self._watch is not None:
            self._watch()

    # The backend, and other requests than chats

    async def backend(self) -> Backend:
        """The backend of a running engine; starts the engine if it is ours. Raises what `Engine.join` raises."""
        engine = self.engine
        if engine is not None:
            if engine.accepting is not None:
                return engine.accepting
            backend = await engine.join()
            engine.leave()
            return backend
        if self._backend is None:
            kind = backends.load(self.model.runtime)
            if self.model.replicas:
                from gateway.backends.replicas import replicas

                self._backend = replicas(self.model, kind)
            else:
                self._backend = kind(self.model, address_of(self.model))
        return self._backend

    @asynccontextmanager
    async def use(self, tier: Tier | None = None) -> AsyncIterator[Backend]:
        """The backend of a running engine, for requests that aren't chats; its engine stays up meanwhile.

        Raises what `Engine.join` raises.
        """
        if self.engine is None and tier == "flex":
            async with self._flex_line().place(self._limits()), self._used(rank_of(tier)) as backend:
                yield backend
        else:
            async with self._used(rank_of(tier)) as backend:
                yield backend

    @asynccontextmanager
    async def _used(self, rank: int) -> AsyncIterator[Backend]:
        engine = self.engine
        self.hold()
        try:
            backend = await self.backend() if engine is None else await engine.join(rank=rank)
            try:
                yield backend
            except EngineGone:
                if engine is not None:
                    engine.lost()
                raise
            finally:
                if engine is not None:
                    engine.leave(rank)
        finally:
            self.release()

    @asynccontextmanager
    async def post(
        self,
        endpoint: Endpoint,
        fields: Mapping[str, Raw],
        api: ApiName,
        caller: Caller = NOBODY,
        *,
        asked: str | None = None,
        stream: bool = False,
    ) -> AsyncIterator[Passthrough]:
        """An answer to a request for another endpoint than chat; see `Backend.post`.

        asked: the model name in the request. An error while the answer is read is its outcome. Raises
        ProviderInvalidRequest if the engine has no such endpoint.
        """
        self.check(caller)
        tier = self.tier(caller, asked, tier_in(fields))
        meter = self.count(api, caller, stream=stream)
        try:
            async with self.use(tier) as backend:
                sent = dict(fields)
                if endpoint == "completions":
                    sent = self._settings.fields(fields)
                    if bytes(sent.get("max_tokens", b"")) == UNLIMITED:
                        self._settings.lift_limit(sent, prompt=True)
                reply = await backend.post(endpoint, sent)
                try:
                    yield Passthrough(reply, backend, meter, tier)
                finally:
                    reply.close()
        except BaseException as error:
            meter.end(outcome_of(error))
            raise
        else:
            meter.end(OK)

    def count(self, api: ApiName, caller: Caller = NOBODY, *, stream: bool) -> RequestMeter:
        """Meters a request that isn't a chat. Call its `end`."""
        return RequestMeter(self.model.name, api, stream, self._book, caller)

    def check(self, caller: Caller) -> None:
        """Raises ProviderAuthentication (403) if the caller's key may not use the model."""
        if caller.meter is not None:
            caller.meter.check(self.model.name, *self.model.aliases)

    def tier(self, caller: Caller, asked: str | None, wanted: Wanted | None) -> Tier | None:
        """The service tier of a request: its own, else that of the model name that it uses, else its
        key's. None if none is set. Raises ProviderAuthentication (403)."""
        model, own = self.model, None if wanted == "auto" else wanted
        default = model.tiers.get(asked if asked in model.aliases else model.name)
        tier = own or default if caller.meter is None else caller.meter.tier(own, default)
        return tier or ("default" if wanted is not None else None)

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """The length of the request's prompt in tokens; None if the engine can't tell without answering it."""
        request = self.images.counted(request)
        async with self.use() as backend:
            can = await self.capability.find(request, backend)
            if backend.escapes and may_need_escape(request):
                can = await self.capability.escaping(request, backend, can)
            try:
                return await backend.count_tokens(prepare_prompt(request, self._settings, can))
            except ProviderInvalidRequest as error:
                fields = prepare_prompt(request, self._settings, can)
                return (await _conform(fields, error, backend.count_tokens))[0]

    async def missing(self) -> WeightsMissing | None:
        """Why no request can be answered; see `Engine.missing`. None for the model of an external server."""
        return await self.engine.missing() if self.engine is not None else None

    async def readiness(self) -> GatewayError | None:
        """Why a request would have to wait, or None. Asks the engine, but starts nothing."""
        engine, model = self.engine, self.model
        backend = engine.accepting if engine is not None else await self.backend()
        if backend is None:
            assert engine is not None
            if (error := await engine.missing()) is not None:
                return error
            cure = "the next request starts it" if engine.state == "stopped" else "requests wait for it"
            return engine.failure or ProviderModelNotLoaded(
                f"model {model.name!r}: its engine is {engine.state}; {cure}", retry_after=engine.load_seconds or 1
            )
        try:
            async with asyncio.timeout(READY_SECONDS):
                await backend.ready()
        except TimeoutError:
            return ProviderUnavailable(f"model {model.name!r}: its engine says nothing for {READY_SECONDS:g} s")
        except GatewayError as error:
            return error
        return None

    async def load(self, keep_alive: float | None = None) -> None:
        """Returns once the model is in memory. keep_alive: see `Backend.load`; of an engine of ours, until its end.

        Raises what `Engine.join` raises, and ProviderInvalidRequest if the model's server can't be told.
        """
        if self.engine is None:
            await (await self.backend()).load(keep_alive)
        elif keep_alive == 0:
            await self.engine.unload()
        else:
            await self.engine.join()
            self.engine.keep_alive = keep_alive
            self.engine.leave()

    async def unload(self) -> None:
        """Returns once the model is out of memory, its answers in flight complete. Raises as `load` does."""
        await self.load(0)

    def replicas(self) -> Sequence[ReplicaStatus]:
        """The model's servers, if it has several and one has been asked."""
        return self._backend.replicas() if self._backend is not None else ()

    # The end of a route

    @property
    def in_flight(self) -> int:
        """Requests without a complete answer."""
        return self.opening + len(self.runs)

    def hold(self) -> None:
        """Keeps the route from closing until `release`."""
        self.opening += 1

    def release(self) -> None:
        self.opening -= 1
        if self._watch is not None:
            self._watch()

    def become(self, model: Model) -> Route:
        """A route for the model with other settings and the same engine."""
        assert self.engine is not None
        self._replaced = self.engine.reconfigure(model)
        self._engine_stays = True
        return self.same(model)

    def same(self, model: Model) -> Route:
        """Creates a route with this one's engine."""
        shared = self._request_log, self.schemas, self.engine, self._limits
        return Route(model, *shared, describer=self.images.describer)

    async def retire(self, seconds: float) -> None:
        """Closes the route once its requests have ended, or after `seconds`. No new request may come."""
        self._unused, self._watch = asyncio.Event(), self._look
        if self.in_flight:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._unused.wait(), seconds)
        if self.engine is not None and not self._engine_stays:
            await self.engine.retire()
        await self.aclose()

    async def aclose(self) -> None:
        for backend in (self._backend, self._replaced):
            if backend is not None:
                await backend.aclose()
        if self.engine is not None and not self._engine_stays:
            await self.engine.stop()


def _open(backend: Backend, request: ChatRequest, raw: RawText | None, fields: dict[str, Raw]) -> Awaitable[Reply]:
    return backend.open(request, fields) if raw is None else backend.open_raw(request, fields, raw)


async def _conform(
    fields: Mapping[str, Raw], refusal: ProviderInvalidRequest, send: Callable[[dict[str, Raw]], Awaitable[_Got]]
) -> tuple[_Got, dict[str, Raw], Mapping[str, int]]:
    """Sends a conversation that the model's template refused in stricter forms, until it takes one.

    fields: what was to be sent. Returns what `send` does, the fields that it got, and the changes by kind. Raises the
    last refusal, any other error at once.
    """
    if refusal.code != REFUSED:
        raise refusal
    for messages, changes in conforming(decode(fields["messages"])):
        sent = {**fields, "messages": Raw(encode(messages))}
        try:
            return await send(sent), sent, changes
        except ProviderInvalidRequest as error:
            if error.code != REFUSED:
                raise
            refusal = error
    raise refusal


def address_of(model: Model) -> Address | None:
    """The address of the model's external server, from config.yaml."""
    if model.uds is not None:
        return Address(uds=str(model.uds))
    if model.base_url is None:
        return None
    return Address.parse(model.base_url)


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

"""Answers requests for one model: their place at its engine, their answers, their rows in the request log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Raw
from msgspec.structs import replace

from gateway.answer.capture import recorded
from gateway.backends import Backend, Endpoint
from gateway.config import Engines, Model
from gateway.core.checked import CheckedRun
from gateway.core.flex_line import FlexLine, Load
from gateway.core.images import Describes, Images
from gateway.core.in_flight import InFlight
from gateway.core.model_server import ModelServer
from gateway.core.passthrough import Passthrough, RequestMeter
from gateway.core.permission import check, tier_of
from gateway.core.repeated import RepeatedRun
from gateway.core.run import Run
from gateway.core.sender import Accepted, Sender
from gateway.errors import ProviderUnsupportedContentBlock
from gateway.line import Tell, ignore
from gateway.observe.request_log import OK, UNSETTLED, RequestLog, Row, outcome_of, repairs
from gateway.request.repair_history import NOTHING
from gateway.schema.pool import Threads
from gateway.upstream import EngineGone
from gateway.wire.chat import NOBODY, ApiName, Caller, ChatRequest, rank_of, tier_in
from gateway.wire.limits import Tier

if TYPE_CHECKING:
    from gateway.engines import Engine


class Route:
    """Answers requests for one model. (What leads to an HTTP path is one of `gateway.feature.Routes`.)

    A chat passes these stages: `open` counts it and sends it again if the engine is gone; `ask` takes a place at the
    engine; `Sender.send` prepares and sends it. The Run that is returned reads the answer; `ended` books it.
    """

    def __init__(
        self,
        model: Model,
        request_log: RequestLog,
        schemas: Threads,
        engine: Engine | None = None,
        limits: Callable[[], Engines] = Engines,
        backend: Backend | None = None,
        describer: Callable[[], Describes] | None = None,
    ) -> None:
        """schemas: where the work on clients' schemas is done. engine: the one to use, if the gateway runs it. limits:
        how long, and how many, flex requests wait before a server that it doesn't run. backend: the one to use without
        an engine; None: that of the server which config.yaml names. describer: of images; None: nobody."""
        self.model = model
        self.direct = not (model.tiers or model.retries or model.fallbacks or model.transcribe_with)
        """No setting of the model requires a step before `open`."""
        self.engine = engine
        self.server = ModelServer(model, engine, backend)
        self.sender = Sender(model, request_log, schemas)
        self.images = Images(model, describer)
        self.requests = InFlight()
        self.schemas = schemas
        self.line: FlexLine | None = None
        """The queue of flex requests for an external server; created by the first."""
        self._request_log = request_log
        self._limits = limits
        self._asked: Backend | None = None

    # A chat, stage by stage

    async def open(self, request: ChatRequest) -> Run:
        """Sends the request; returns once the engine has accepted it. Logs a request that fails before that.

        If an engine of ours has died, or dies before it answers, restarts it and sends the request once more.
        """
        began, received = monotonic(), request
        self.requests.hold(received, began)
        try:
            replayed = False
            if self.images.text_only:
                request = await self.images.fitted(request)
            try:
                accepted = await self.ask(request)
            except EngineGone:
                if self.engine is None:
                    raise
                replayed = True
                accepted = await self.ask(request)
            except ProviderUnsupportedContentBlock as error:
                if (fitted := await self.images.refused(request, error, self.server)) is None:
                    raise
                request = fitted
                accepted = await self.ask(request)
        except BaseException as error:
            self.requests.release(received)
            self._failed(received, began, error)
            raise
        enforced = accepted.enforced
        kind = Run if enforced is None or enforced.check is None else CheckedRun
        if self.sender.no_repeats and request.past_calls and kind is Run:
            kind = RepeatedRun
        run = kind(self, request, accepted, began, replayed)
        self.requests.accepted(received, run)
        return run

    async def open_in_turn(self, request: ChatRequest) -> Run:
        """Like `open`, for a request that may have to wait for an external server because of its service tier."""
        if self.engine is not None or request.serving.tier != "flex":
            return await self.open(request)
        async with self._place(request.serving.tell):
            request.serving.tell()
            return await self.open(request)

    def ask(self, request: ChatRequest) -> Awaitable[Accepted]:
        """Sends the request once. If an engine accepts it, it has a place there until `EngineRequests.leave`."""
        if self.engine is None:
            return self._send(request, self.server.external)
        return self._take_place(request, self.engine)

    async def _take_place(self, request: ChatRequest, engine: Engine) -> Accepted:
        if (backend := engine.requests.backend) is not None and request.serving.tier != "flex":
            engine.requests.enter(rank_of(request.serving.tier))
        else:
            request.serving.tell(lambda: str(engine.progress(request) or "waiting"))
            self.requests.waiting[request] = came = monotonic()
            try:
                backend = await engine.requests.join(request, rank_of(request.serving.tier))
            finally:
                self.requests.waiting.pop(request, None)
            request.serving.tell()
        if backend is not self._asked:
            self._asked = backend  # another process, which may be of another file, or the user's own with another model
            self.sender.forget()
        try:
            if request.serving.tier == "flex":
                return await self._open_flexible(request, engine, backend, monotonic() - came)
            return await self._send(request, backend)
        except BaseException as error:
            if isinstance(error, EngineGone):
                engine.lost()
            engine.requests.leave(rank_of(request.serving.tier))
            raise

    async def _open_flexible(self, request: ChatRequest, engine: Engine, backend: Backend, waited: float) -> Accepted:
        """Like `_send`, for an answer that may be put aside. waited: for the place, in seconds."""
        from gateway.engines.seat import EngineSeat

        if (flexible := backend.flexible()) is None:
            accepted = await self._send(request, backend)
        else:
            # Not plain: it needs terms that say how to ask for the raw text.
            accepted = await self._send(replace(request, plain=False), flexible)
        if (reply := accepted.reply.flexible) is not None:
            engine.requests.register_flexible(reply, EngineSeat(engine.requests, request, waited, engine.progress))
        return accepted

    async def _send(self, request: ChatRequest, backend: Backend | None) -> Accepted:
        """backend: None for that of an external server without requests so far."""
        backend = backend or await self.server.backend()
        if (told := backend.told) is not None and self.engine is None and told.is_old and await backend.met_another():
            self.sender.forget()
        return await self.sender.send(request, backend)

    @asynccontextmanager
    async def _place(self, tell: Tell = ignore) -> AsyncIterator[None]:
        """A flex request's place before an external server; see `FlexLine.place`."""
        if self.line is None:
            parallel = self.model.engine.parallel
            places = parallel * max(1, len(self.model.replicas)) if parallel is not None else None
            self.line = line = FlexLine(self.model.name, lambda: self._load(line), places)
            self.requests.on_end(line.admit_next)
        with self.requests.in_line():
            async with self.line.place(self._limits(), tell):
                yield

    def _load(self, line: FlexLine) -> Load:
        requests = self.requests
        return Load(requests.count - line.inside - requests.flex, requests.count)

    # The request log

    def _failed(self, request: ChatRequest, began: float, error: BaseException) -> None:
        """Logs a request that no engine has accepted."""
        recording = None
        if request.recorded or self._request_log.bodies:
            recording = self._request_log.keep(recorded(request.fields, self.sender.capability.reader.name))
        told = NOTHING, 0, None, recording, request.api, request.caller
        self._log((self.model.name, request.stream, outcome_of(error), began, monotonic(), 0.0, *told))

    def ended(self, run: Run) -> None:
        """Books a closed run: with the saved prompts, on its key's limits, as a row of the request log."""
        self.requests.runs.discard(run)
        request, answer = run.request, run.answer
        # An answer whose normaliser saw nothing has no repairs.
        contents, report = answer.contents, answer.report
        mended = repairs(answer, run.outcome) if contents.choices or report.healed or report.decided else None
        recording = None
        if answer.recording is not None and (self._request_log.bodies or request.recorded):
            recording = self._request_log.keep(answer.recording)  # any other is for a trace
        usage = contents.usage
        if (turn := run.reply.turn) is not None:
            usage = turn.answered(usage, run.began, run.first)
        caller, now = request.caller, monotonic()
        if (meter := caller.meter) is not None:
            usage = usage or run.guessed_usage()
            meter.spend(usage, now)
        # fmt: off
        self._log((
            self.model.name, request.stream, run.outcome, run.began, now, run.first,
            usage, contents.chunks, mended, recording, request.api, caller,
        ))
        # fmt: on

    def _log(self, row: Row) -> None:
        rows = self._request_log.rows
        rows.append(row)
        if len(rows) >= UNSETTLED:
            self._request_log.settle()
        self.requests.ended()

    # Other requests than chats

    @asynccontextmanager
    async def use(self, tier: Tier | None = None) -> AsyncIterator[Backend]:
        """The backend of a running engine, for requests that aren't chats; its engine stays up meanwhile.

        Raises what `EngineRequests.join` raises.
        """
        place = self._place() if self.engine is None and tier == "flex" else nullcontext()
        async with place:
            self.requests.hold(key := object(), monotonic())
            try:
                async with self.server.use(rank_of(tier)) as backend:
                    yield backend
            finally:
                self.requests.release(key)

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
        check(self.model, caller)
        tier = tier_of(self.model, caller, asked, tier_in(fields))
        meter = self.count(api, caller, stream=stream)
        try:
            async with self.use(tier) as backend:
                if endpoint == "completions":
                    fields = self.sender.completion_fields(fields)
                reply = await backend.post_for(caller.owner, endpoint, dict(fields))
                reply = self.sender.as_seen_by(reply, backend, caller)
                try:
                    yield Passthrough(reply, backend, meter, tier)
                finally:
                    reply.close()
                    meter.left(reply.turn)
        except BaseException as error:
            meter.end(outcome_of(error))
            raise
        else:
            meter.end(OK)

    def count(self, api: ApiName, caller: Caller = NOBODY, *, stream: bool) -> RequestMeter:
        """Meters a request that isn't a chat. Call its `end`."""
        return RequestMeter(self.model.name, api, stream, self._log, caller)

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """See `Sender.count_tokens`. An image that the model doesn't get counts as what takes its place."""
        request = self.images.counted(request)
        async with self.use() as backend:
            return await self.sender.count_tokens(request, backend)

    # The end of a route

    def pass_on(self, model: Model) -> Engine | None:
        """Its engine, for another route of the model with other settings: it is no longer this one's."""
        self.server.pass_on(model)
        return self.engine

    async def retire(self, seconds: float | None) -> None:
        """Closes the route once its requests have ended, or after `seconds`. No new request may come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.requests.none_left()
                await self.server.retire()
        await self.aclose()

    async def aclose(self) -> None:
        await self.server.aclose()

"""The centre: every face reads one stream of clean payloads from one object, `Gateway`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from random import random
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeGuard

from msgspec import Raw

from gateway import backends
from gateway.backends import (
    Address,
    Backend,
    CountingBackend,
    Endpoint,
    EndpointBackend,
    RawText,
    RawTextBackend,
    Reply,
)
from gateway.backends.about import About, about
from gateway.config import Config, Model, Role
from gateway.config.diff import Difference, difference, launch
from gateway.conformance import ATTEMPTS, Check, Enforced, Held
from gateway.enforcement import UNTOLD, Constraint, Way, constraint, narrow, refused, tell
from gateway.engines import Engine, Residency, for_model
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderModelNotLoaded, ProviderUnavailable
from gateway.estimate import TokenCount, estimate
from gateway.forcing import forced, raw_text
from gateway.history import NOTHING, has_calls, heal
from gateway.ledger import LEFT, OK, UNSETTLED, Ledger, Outcome, Row, outcome_of, repairs
from gateway.normalize import Answer, EngineError
from gateway.prompting import calls_into_text, tools_into_prompt
from gateway.recording import RecordedAnswer
from gateway.upstream import EngineGone
from gateway.wire.chat import ChatRequest, encode, waiting
from normalizers import FormatSpec, detect, registry
from normalizers.base import Mended

if TYPE_CHECKING:
    from gateway.backends.replicas import Replica

log = logging.getLogger("ctxgate")

READY_SECONDS = 5.0
"""For an engine to say that it is ready."""

RETRY_SECONDS, RETRY_SECONDS_MOST = 0.25, 5.0
"""Before the first retry, doubled for each further one; an engine may say how long, up to the most."""

Asked = tuple[Reply, Answer, Backend, Enforced | None]


class Route:
    """How requests for one model are answered."""

    def __init__(self, model: Model, ledger: Ledger, engine: Engine | None = None) -> None:
        """engine: one that runs already for the model."""
        self.model = model
        self.runs: set[Run] = set()
        """The answers on their way."""
        self.opening = 0
        """Requests that no engine has accepted yet."""
        self._ledger = ledger
        self._name = model.name
        self._unused: asyncio.Event | None = None
        self._engine_stays = False
        """It has another route by now."""
        self._replaced: Backend | None = None
        """The engine's backend of this route, where the other one has its own."""
        self.spec = model.custom_format or registry.get(model.tool_call_format)
        self._undetected = self.spec.name == "auto"
        self.evidence = "the engine reads the calls" if self.spec.untouched else "config.yaml"
        """Why the model's format is taken to be `spec`; empty while it wasn't looked for."""
        if self._undetected:
            self.evidence = ""
        self.engine = engine
        self._defaults = {name: Raw(encode(value)) for name, value in model.defaults.items()}
        self._strip = _with_twins(model.strip_params)
        self._force = {name: Raw(encode(value)) for name, value in model.force_params.items()}
        self._filters = bool(self._strip or self._force)
        self._native: FormatSpec | None = None
        self._prompted: tuple[Backend | None, bool] = None, False
        """Whether the model must be told its tools by the prompt, as that backend has said."""
        self._backend: Backend | None = None
        """Of an external server; an engine of ours has its own."""

    async def backend(self) -> Backend:
        """The backend of a running engine; starts the engine if that is ours to do.

        Raises what `Engine.join` raises.
        """
        engine = self.engine
        if engine is not None:
            if engine.backend is not None:
                return engine.backend
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

    async def open(self, request: ChatRequest) -> Run:
        """Sends the request and returns once the engine has accepted it.

        An engine of ours that was gone, or went before it answered, is started anew if need be and asked once more.
        """
        began = monotonic()
        self.opening += 1
        try:
            replayed = False
            try:
                asked = await self.ask(request)
            except EngineGone:
                if self.engine is None:
                    raise
                replayed = True
                asked = await self.ask(request)
            enforced = asked[3]
            kind = Run if enforced is None or enforced.check is None else HeldRun
            run = kind(self, request, asked, began, replayed)
            self.runs.add(run)
            self.opening -= 1
            return run
        except BaseException as error:
            self.opening -= 1
            outcome = outcome_of(error)
            self._book((self._name, request.stream, outcome, began, monotonic(), 0.0, NOTHING, 0, None, None))
            raise

    async def ask(self, request: ChatRequest) -> Asked:
        """Sends the request once. It counts as in flight at its engine from here on: `Engine.leave` ends that."""
        engine = self.engine
        if engine is None:
            backend = self._backend
            if backend is None:
                backend = await self.backend()
        elif (ready := engine.backend) is not None:
            backend = ready
            engine.in_flight += 1
        else:
            request.standing = lambda: str(engine.progress(request) or "waiting")
            backend = await engine.join(request)
            request.standing = waiting
        try:
            if self._undetected:
                await self._detect(backend)
            fields = {**self._defaults, **request.fields}
            if "max_completion_tokens" in fields and "max_tokens" not in request.fields:
                fields.pop("max_tokens", None)
            if self._filters:
                self._filter(fields)
            raw: RawText | None = None
            wish, way, spec = None, None, self.spec
            if request.constrained:
                wish = constraint(request)
                way = self._way(wish)
                if way == "grammar":
                    spec = await self._dialect(backend)
                narrow(fields, request, named=way == "checked")
                if wish is not None and way == "checked" and self.model.runtime in UNTOLD:
                    tell(fields, wish, self.model.runtime)
            healed = heal(fields) if (past := has_calls(fields["messages"])) else NOTHING
            if request.tools is not None:
                if request.tool_choice == "none":
                    # The engine must not be tempted: several write their calls as plain text then.
                    del fields["tools"]
                    fields.pop("tool_choice", None)
                elif not spec.untouched:
                    raw = raw_text(request, spec, answer=wish.text_schema if wish is not None else None)
                    if await self._tools_need_prompt(backend):
                        tools_into_prompt(fields, spec, must=forced(request))
                        past = None
            if past and not spec.untouched and not await backend.keeps_calls():
                calls_into_text(fields, spec, results=not await backend.takes_tools())
            reasoning_open = forced_by_us = False
            if raw is not None and _gives_raw_text(backend):
                reply: Reply = (came := await backend.open_raw(request, fields, raw))
                reasoning_open, forced_by_us = came.reasoning_open, came.by_grammar
            else:
                reply = await backend.open(request, fields)
        except BaseException as error:
            if engine is not None:
                if isinstance(error, EngineGone):
                    engine.lost()
                engine.leave()
            raise
        kind = RecordedAnswer if self._ledger.bodies else Answer
        answer = kind(request, spec, reply.mender, reasoning_open=reasoning_open, healed=healed)
        if wish is None or way is None:
            return reply, answer, backend, None
        if way == "engine" or (way == "grammar" and forced_by_us):
            return reply, answer, backend, Enforced(way)
        return reply, answer, backend, Enforced("checked", Check(wish, request))

    def _way(self, wish: Constraint | None) -> Way | None:
        """How answers are held to a constraint. Raises ProviderInvalidRequest where they can't be."""
        if wish is None:
            return None
        if self.model.enforcement == "engine":
            return "engine"
        way = wish.way(self.model.runtime)
        if way == "refused":
            raise refused(wish, self.model.runtime)
        return way

    async def _dialect(self, backend: Backend) -> FormatSpec:
        """What the model writes its calls in, also where the engine reads them; `spec` where nobody can tell."""
        if self._native is None:
            self._native = self.spec
            if self.spec.untouched:
                known = await backend.about()
                found = detect(
                    special_tokens=known.tokens, chat_template=known.template or "", architecture=known.architecture
                )
                self._native = registry.get(found.format) if found is not None else self.spec
        return self._native

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Backend]:
        """The backend of a running engine, for what isn't a chat; its engine isn't ended meanwhile.

        Raises what `Engine.join` raises.
        """
        engine = self.engine
        self.hold()
        try:
            backend = await self.backend() if engine is None else await engine.join()
            try:
                yield backend
            except EngineGone:
                if engine is not None:
                    engine.lost()
                raise
            finally:
                if engine is not None:
                    engine.leave()
        finally:
            self.release()

    def hold(self) -> None:
        """Somebody uses the route: it isn't taken apart until `release`."""
        self.opening += 1

    def release(self) -> None:
        self.opening -= 1
        if self._unused is not None and not self.in_flight:
            self._unused.set()

    @asynccontextmanager
    async def post(self, endpoint: Endpoint, fields: Mapping[str, Raw]) -> AsyncIterator[tuple[Reply, Backend]]:
        """An answer to a request for another endpoint than the chat one; see `EndpointBackend`.

        Raises ProviderInvalidRequest for an engine that has no other.
        """
        async with self.use() as backend:
            if not _has_endpoints(backend):
                message = f"model {self.model.name!r}: the runtime {self.model.runtime} serves no {endpoint}"
                raise ProviderInvalidRequest(message, code="unsupported_endpoint", param="model")
            defaults = self._defaults if endpoint == "completions" else {}
            reply = await backend.post(endpoint, {**defaults, **fields})
            try:
                yield reply, backend
            finally:
                reply.close()

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """How many tokens the request's prompt has; None where the engine doesn't tell without answering it."""
        async with self.use() as backend:
            if not _counts_tokens(backend):
                return None
            fields = {**self._defaults, **request.fields}
            heal(fields)
            if request.tools is not None and not self.spec.untouched and await self._tools_need_prompt(backend):
                tools_into_prompt(fields, self.spec)
            return await backend.count_tokens(fields)

    async def readiness(self) -> GatewayError | None:
        """Why a request would not be answered at once; None where it would be. Starts nothing, and asks the engine."""
        engine, model = self.engine, self.model
        backend = engine.backend if engine is not None else await self.backend()
        if backend is None:
            assert engine is not None
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

    async def look(self) -> None:
        """Finds out the format from the model's files; no engine is asked."""
        if self._undetected and not self.evidence:
            self._found(await asyncio.to_thread(about, self.model.path))

    async def _detect(self, backend: Backend) -> None:
        self._found(await backend.about())
        # What no one can tell beforehand shows in each answer: the first known marker counts.
        self._undetected = False

    def _found(self, known: About) -> None:
        found = detect(special_tokens=known.tokens, chat_template=known.template or "", architecture=known.architecture)
        if found is None:
            self.evidence = "not seen yet: the first known marker in an answer counts"
            return
        self.spec = registry.get(found.format)
        marks = ", ".join(found.evidence)
        self.evidence = f"{found.source} {marks} ({known.source})"
        self._undetected = False

    @property
    def replicas(self) -> list[Replica]:
        """The model's servers, where it has several and one has been asked."""
        backend: object = self._backend
        found: list[Replica] = getattr(backend, "replicas", [])
        return found

    @property
    def in_flight(self) -> int:
        """Requests that are not answered to their end."""
        return self.opening + len(self.runs)

    def ended(self, run: Run) -> None:
        """An answer has been closed."""
        self.runs.discard(run)
        answer = run.answer
        # A normaliser that never was asked has mended nothing.
        mended = repairs(answer) if answer.choices or answer.healed else None
        recording = self._ledger.record(answer) if self._ledger.bodies else None
        times = run.began, monotonic(), run.first
        self._book((self._name, run.stream, run.outcome, *times, answer.usage, answer.chunks, mended, recording))

    def _book(self, row: Row) -> None:
        rows = self._ledger.rows
        rows.append(row)
        if len(rows) >= UNSETTLED:
            self._ledger.settle()
        if self._unused is not None and not self.in_flight:
            self._unused.set()

    def become(self, model: Model) -> Route:
        """The route of the model with other settings, and the same engine."""
        assert self.engine is not None
        self._replaced = self.engine.reconfigure(model)
        self._engine_stays = True
        return Route(model, self._ledger, self.engine)

    async def retire(self, seconds: float) -> None:
        """No request comes any more: those on their way end, within `seconds`, and then what they used does."""
        self._unused = asyncio.Event()
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

    def _filter(self, fields: dict[str, Raw]) -> None:
        """Brings a request's fields, defaults filled in, to what config.yaml lets callers set."""
        for name in self._strip & fields.keys():
            del fields[name]
        fields |= {name: value for name, value in self._defaults.items() if name in self._strip}
        for name in _with_twins(self._force) & fields.keys():
            del fields[name]
        fields |= self._force

    async def _tools_need_prompt(self, backend: Backend) -> bool:
        if self.model.tool_prompt != "auto":
            return self.model.tool_prompt == "system"
        asked, needed = self._prompted
        if asked is not backend:
            needed = not await backend.takes_tools()
            self._prompted = backend, needed
        return needed


class Run:
    """One answer on its way. Read it with `whole` or `payloads` as the request asked, then `close` it.

    began, first, outcome: as in `gateway.stats.Ended`.
    """

    __slots__ = (
        "_backend",
        "_closed",
        "_ended",
        "_failed",
        "_first",
        "_handed",
        "_in_flight",
        "_replayed",
        "_reply",
        "_request",
        "_route",
        "_whole",
        "answer",
        "began",
        "enforced",
        "first",
        "is_fallback",
        "outcome",
        "stream",
    )

    def __init__(self, route: Route, request: ChatRequest, asked: Asked, began: float, replayed: bool) -> None:
        self.stream = request.stream
        self.began = began
        self.first = 0.0
        self.outcome: Outcome = LEFT
        self._route = route
        self._request = request
        self._reply, self.answer, self._backend, self.enforced = asked
        self._in_flight = True
        self._replayed = replayed
        self._handed = False
        """Something of the answer was handed out."""
        self._failed: GatewayError | None = None
        self._ended = False
        self._closed = False
        self.is_fallback = False
        """Another model answers than the one that was asked."""
        self._first: list[bytes] = []
        self._whole: bytes | None = None

    @property
    def model(self) -> Model:
        """Which model answers."""
        return self._route.model

    async def whole(self) -> bytes:
        """The clean JSON body."""
        if self._whole is not None:
            return self._whole
        while True:
            try:
                clean = self.answer.whole(await self._reply.whole())
            except EngineError as error:
                failure = self._backend.error(500, error.payload)
                self.outcome = failure.category
                raise failure from None
            except GatewayError as error:
                if not await self._again(error):
                    raise
            else:
                self.outcome = OK
                return clean

    @property
    def enforced_by(self) -> str:
        """How the answer is held to what the request constrains it to; "" where that is nothing."""
        return "" if self.enforced is None else self.enforced.way

    @property
    def mended(self) -> Mended:
        """How far the calls of a whole answer had to be mended: not at all, their spelling, or against a schema."""
        return self.answer.mended

    @property
    def healed(self) -> Mapping[str, int]:
        """What was mended in the messages that the client replayed, counted by its kind; see `gateway.history`."""
        return self.answer.healed

    async def begin(self) -> None:
        """Returns once the first byte of the answer is there, for `whole` or `payloads` to hand it out.

        Raises what they would raise before it.
        """
        if self.stream:
            self._first = await self.payloads()
            self._handed = False
        else:
            self._whole = await self.whole()

    async def payloads(self) -> list[bytes]:
        """The clean `chat.completion.chunk` payloads that are next, at least one; [] at the end.

        If the engine fails, what had come before is handed out first, and the next call raises.
        """
        if self._first:
            first, self._first = self._first, []
            self._handed = True
            return first
        while not self._ended:
            if self._failed is not None:
                raise self._failed
            clean: list[bytes] = []
            try:
                came = await self._reply.payloads()
                if not self.first:
                    self.first = monotonic()
                if came:
                    self.answer.feed(came, clean)
                else:
                    self._ended = True
                    clean = self.answer.finish(done=self._reply.done)
                    self.outcome = OK
            except EngineError as error:
                self._failed = self._backend.error(500, error.payload)
                self.outcome = self._failed.category
                clean += self.answer.rest()
            except GatewayError as error:
                if await self._again(error):
                    continue
                self._failed = error
                self._ended = False
                clean += self.answer.rest()
            if clean:
                self._handed = True
                return clean
        return []

    async def _again(self, error: GatewayError) -> bool:
        """Asks anew where the engine has gone and nothing of its answer was handed out; once. Raises what `ask` raises.

        False: `error` stands.
        """
        self.outcome = error.category
        engine = self._route.engine
        if engine is None or not isinstance(error, ProviderUnavailable):
            return False
        engine.lost()
        if self._handed or self._replayed or error.status != 502:
            # 502: it went away, by the connection's end or by an answer without one.
            return False
        self._replayed = True
        await self._ask(self._request)
        return True

    async def _ask(self, request: ChatRequest) -> None:
        """Puts another answer in the place of this one. Raises what `Route.ask` raises."""
        self._reply.close()
        self._in_flight = False
        if (engine := self._route.engine) is not None:
            engine.leave()
        self._reply, self.answer, self._backend, self.enforced = await self._route.ask(request)
        self._in_flight = True
        self._ended = False
        self.outcome = LEFT

    def tap(self, client: Tap) -> None:
        """Sends payloads to the client as they arrive, while `payloads` waits: it then returns only the rest."""
        self._reply.tap(_Taker(self.answer, client))

    def close(self) -> None:
        """Ends the run; an unfinished one is cancelled in the engine. Idempotent, never blocks."""
        self._reply.close()
        if not self._closed:
            self._closed = True
            if self._in_flight and (engine := self._route.engine) is not None:
                engine.leave()
            self._route.ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.outcome in (OK, LEFT):
            self.outcome = outcome_of(error)
        self.close()


class HeldRun(Run):
    """A run that hands its answer out once it conforms; the model is asked until it does, `ATTEMPTS` times in all.

    Then StructuredOutputInvalid is raised, or ProviderInvalidRequest where no tool was called.
    """

    __slots__ = ("_attempt", "_given", "_original")

    def __init__(self, route: Route, request: ChatRequest, asked: Asked, began: float, replayed: bool) -> None:
        super().__init__(route, request, asked, began, replayed)
        self._attempt = 1
        self._given = False
        self._original = request

    @property
    def enforced_by(self) -> str:
        by = super().enforced_by
        return by if self._attempt == 1 else f"{by}; attempts={self._attempt}"

    async def whole(self) -> bytes:
        while True:
            body = await super().whole()
            enforced = self.enforced
            if enforced is None or enforced.check is None:
                return body
            judged = enforced.check.whole(body, enforced.told(self._attempt))
            if isinstance(judged, bytes):
                return judged
            await self._once_more(enforced.check, *judged)

    async def payloads(self) -> list[bytes]:
        while not self._given:
            held = Held()
            while payloads := await super().payloads():
                held.add(payloads)
            enforced = self.enforced
            if enforced is None or enforced.check is None:
                self._given = True
                return held.payloads
            judged = enforced.check.stream(held.payloads, enforced.told(self._attempt))
            if isinstance(judged, list):
                self._given = True
                return judged
            await self._once_more(enforced.check, *judged)
        return []

    async def _once_more(self, check: Check, said: Mapping[str, object], fault: str) -> None:
        if self._attempt == ATTEMPTS:
            error = check.unmet(fault)
            self.outcome = error.category
            raise error
        self._attempt += 1
        attempt, original = self._attempt, self._original
        self._request = again = original.continued(check.again(said, fault))
        original.standing = lambda: f"asking-again attempt={attempt} of={ATTEMPTS} {again.standing()}"
        await self._ask(again)

    def tap(self, client: Tap) -> None:
        """Nothing is handed out before all has come."""


class Tap(Protocol):
    """A client that takes payloads at once; `ready` is false while it lags."""

    def ready(self) -> bool: ...

    def push(self, payloads: list[bytes]) -> None: ...


class _Taker:
    __slots__ = ("_answer", "_client", "ready")

    def __init__(self, answer: Answer, client: Tap) -> None:
        self._answer = answer
        self._client = client
        self.ready = client.ready

    def take(self, payloads: list[bytes]) -> None:
        clean: list[bytes] = []
        try:
            self._answer.feed(payloads, clean)
        finally:
            if clean:
                self._client.push(clean)


class Gateway:
    """All configured models behind one door. Use as an async context manager, or `aclose` it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ledger = Ledger(config.log.requests, bodies=config.log.bodies)
        self.leaving: dict[asyncio.Task[None], Route] = {}
        """Routes that a change of the configuration has ended, while answers are on their way."""
        self._watchers: list[Callable[[], None]] = []
        self.residency = Residency(config.engines, state_dir=config.state_dir)
        """Of the engines that the gateway starts."""
        self.routes: Mapping[str, Route] = {
            name: Route(model, self.ledger, for_model(model, self.residency)) for name, model in config.models.items()
        }

    def apply(self, config: Config) -> Difference:
        """Requests from now on are answered as `config` says. Returns what that changes.

        An engine whose launch did not change goes on, with its process and cache. The others' answers on their way end
        first, then their engines do.
        """
        found = difference(self.config, config)
        before, routes = self.routes, dict[str, Route]()
        for name, model in config.models.items():
            old = before.get(name)
            if old is None or (old.model != model and (old.engine is None or launch(old.model) != launch(model))):
                routes[name] = Route(model, self.ledger, for_model(model, self.residency))
            else:
                routes[name] = old if old.model == model else old.become(model)
        self.config, self.routes = config, routes
        self.ledger.configure(config.log.requests, bodies=config.log.bodies)
        self.residency.limits = config.engines
        self.residency.schedule()
        for name, route in before.items():
            if routes.get(name) is not route:
                leaving = asyncio.create_task(route.retire(config.engines.drain_timeout_seconds), name=f"retire {name}")
                self.leaving[leaving] = route
                leaving.add_done_callback(self._left)
        for watcher in self._watchers:
            watcher()
        return found

    def _left(self, leaving: asyncio.Task[None]) -> None:
        route = self.leaving.pop(leaving)
        if not leaving.cancelled() and (error := leaving.exception()) is not None:
            log.error("the former engine of model %s did not end: %s", route.model.name, error, exc_info=error)

    def on_change(self, watcher: Callable[[], None]) -> None:
        """`watcher` is called after each change of the configuration. It must not wait or raise."""
        self._watchers.append(watcher)

    def route(self, name: str | None, role: Role | None = None) -> Route:
        """The route of a model; None, "" and "default" mean the active one, or the first that has the role.

        Raises what `Config.resolve` raises.
        """
        return self.routes[self.config.resolve(name, role).name]

    def models(self) -> list[Model]:
        """The configured models, in the file's order; no engine is asked."""
        return list(self.config.models.values())

    async def ready(self, name: str | None = None) -> None:
        """Returns if the next chat with the model is expected to succeed; starts its engine if need be."""
        route = self.route(name)
        engine = route.engine
        if engine is None:
            await (await route.backend()).ready()
            return
        backend = await engine.join()
        try:
            await backend.ready()
        finally:
            engine.leave()

    def chat(self, request: ChatRequest) -> Awaitable[Run]:
        """Opens an answer; awaiting raises a GatewayError until the engine has accepted the request."""
        route = self.route(request.model, "chat")
        if route.model.retries or route.model.fallbacks:
            return self._insist(request)
        return route.open(request)

    async def _insist(self, request: ChatRequest) -> Run:
        """As `chat`, with the model's retries and then its fallbacks, as long as what fails may pass.

        Returns once the first byte of the answer is there: what comes before it can still be asked elsewhere.
        """
        asked = self.route(request.model, "chat").model
        last: GatewayError | None = None
        for name in (asked.name, *asked.fallbacks):
            for attempt in range(1 + asked.retries):
                if attempt and last is not None:
                    pause = last.retry_after or RETRY_SECONDS * 2 ** (attempt - 1)
                    await asyncio.sleep(min(pause, RETRY_SECONDS_MOST) * (0.75 + random() / 2))  # noqa: S311
                # A change of the configuration may have replaced or ended it meanwhile.
                if (route := self.routes.get(name)) is None:
                    break
                try:
                    run = await route.open(request)
                    try:
                        await run.begin()
                    except BaseException as error:
                        run.__exit__(type(error), error, None)
                        raise
                    run.is_fallback = name != asked.name
                    return run
                except GatewayError as error:
                    if not error.transient:
                        raise
                    last = error
        if last is None:
            raise ProviderModelNotLoaded(f"model {asked.name!r} has just been taken away", retry_after=1)
        raise last

    async def count_tokens(self, request: ChatRequest) -> TokenCount:
        """How long the request's prompt is; an estimate where no engine tells it."""
        found = await self.route(request.model).count_tokens(request)
        return TokenCount(found, True) if found is not None else TokenCount(estimate(request), False)

    async def aclose(self) -> None:
        """Closes every connection and stops every engine that the gateway started."""
        routes = [*self.routes.values(), *self.leaving.values()]
        for leaving in self.leaving:
            leaving.cancel()
        results = await asyncio.gather(*(route.aclose() for route in routes), return_exceptions=True)
        self.residency.close()
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise BaseExceptionGroup("while closing", failures)

    async def __aenter__(self) -> Self:
        await self.residency.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _gives_raw_text(backend: Backend) -> TypeGuard[RawTextBackend]:
    return hasattr(backend, "open_raw")  # isinstance looks at every member of the protocol


def _has_endpoints(backend: Backend) -> TypeGuard[EndpointBackend]:
    return hasattr(backend, "post")


def _counts_tokens(backend: Backend) -> TypeGuard[CountingBackend]:
    return hasattr(backend, "count_tokens")


def _with_twins(names: Iterable[str]) -> frozenset[str]:
    """`max_tokens` and `max_completion_tokens` are two names of one field."""
    names = frozenset(names)
    twins = frozenset(("max_tokens", "max_completion_tokens"))
    return names | twins if names & twins else names


def address_of(model: Model) -> Address | None:
    """Where an external server of the model listens, as its configuration says."""
    if model.uds is not None:
        return Address(uds=str(model.uds))
    if model.base_url is None:
        return None
    return Address.parse(model.base_url)

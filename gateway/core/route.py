"""How requests for one model are answered: its engine, its backend, its format."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, TypeGuard

from msgspec import Raw

from gateway import backends
from gateway.answer.capture import RecordedAnswer
from gateway.answer.normalize import Answer
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
from gateway.config import Model
from gateway.core.passthrough import Passthrough, RequestMeter
from gateway.core.run import Asked, CheckedRun, Run
from gateway.engines import Engine
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderModelNotLoaded, ProviderUnavailable
from gateway.observe.request_log import OK, UNSETTLED, RequestLog, Row, outcome_of, repairs
from gateway.request.checks import Check, Enforced
from gateway.request.constraints import UNTOLD, Constraint, Way, constraint, keep_allowed_tools, refused, tell
from gateway.request.grammars import forced, raw_text
from gateway.request.repair_history import NOTHING, has_calls, repair_history
from gateway.request.tools_in_prompt import calls_into_text, tools_into_prompt
from gateway.upstream import EngineGone
from gateway.wire.chat import ApiName, ChatRequest, encode, waiting
from normalizers import Detection, FormatSpec, detect, registry

if TYPE_CHECKING:
    from gateway.backends.replicas import Replica

READY_SECONDS = 5.0
"""For an engine to say that it is ready."""


class Route:
    """How requests for one model are answered."""

    def __init__(self, model: Model, request_log: RequestLog, engine: Engine | None = None) -> None:
        """engine: one that runs already for the model."""
        self.model = model
        self.runs: set[Run] = set()
        """The answers on their way."""
        self.opening = 0
        """Requests that no engine has accepted yet."""
        self._request_log = request_log
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
            kind = Run if enforced is None or enforced.check is None else CheckedRun
            run = kind(self, request, asked, began, replayed)
            self.runs.add(run)
            self.opening -= 1
            return run
        except BaseException as error:
            self.opening -= 1
            outcome = outcome_of(error)
            times = began, monotonic(), 0.0
            self._book((self._name, request.stream, outcome, *times, NOTHING, 0, None, None, request.face))
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
            check: Check | None = None
            if request.constrained:
                wish = constraint(request)
                way = self._way(wish)
                if wish is not None and way == "checked":
                    check = Check(wish, request)
                elif way == "grammar":
                    spec = await self._dialect(backend)
                keep_allowed_tools(fields, request, named=way == "checked")
                if wish is not None and way == "checked" and self.model.runtime in UNTOLD:
                    tell(fields, wish, self.model.runtime)
            healed = repair_history(fields) if (past := has_calls(fields["messages"])) else NOTHING
            if request.tools is not None:
                if request.tool_choice == "none":
                    # The engine must not be tempted: several write their calls as plain text then.
                    del fields["tools"]
                    fields.pop("tool_choice", None)
                elif not spec.untouched:
                    must = forced(request)
                    if _gives_raw_text(backend):
                        raw = raw_text(request, spec, answer=wish.text_schema if wish is not None else None)
                    asked, needed = self._prompted
                    if asked is not backend:
                        needed = await self._tools_need_prompt(backend)
                    if needed:
                        tools_into_prompt(fields, spec, must=must)
                        past = None
            if past and not spec.untouched and not await backend.keeps_calls():
                calls_into_text(fields, spec, results=not await backend.takes_tools())
            reasoning_open = forced_by_us = False
            if raw is not None and _gives_raw_text(backend):
                reply: Reply = (came := await backend.open_raw(request, fields, raw))
                reasoning_open, forced_by_us = came.reasoning_open, came.by_grammar
            else:
                reply = await backend.open(request, fields)
            if wish is not None and way == "grammar" and not forced_by_us:
                try:
                    way, check = "checked", Check(wish, request)
                except BaseException:
                    reply.close()
                    raise
        except BaseException as error:
            if engine is not None:
                if isinstance(error, EngineGone):
                    engine.lost()
                engine.leave()
            raise
        kind = RecordedAnswer if self._request_log.bodies else Answer
        answer = kind(request, spec, reply.fixup, reasoning_open=reasoning_open, healed=healed)
        return reply, answer, backend, None if way is None else Enforced(way, check)

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
            found = _detected(await backend.about()) if self.spec.untouched else None
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
    async def post(
        self, endpoint: Endpoint, fields: Mapping[str, Raw], face: ApiName, *, stream: bool = False
    ) -> AsyncIterator[Passthrough]:
        """An answer to a request for another endpoint than the chat one; see `EndpointBackend`.

        What is raised while it is read is its outcome. Raises ProviderInvalidRequest for an engine that has no other.
        """
        count = self.count(face, stream=stream)
        try:
            async with self.use() as backend:
                if not _has_endpoints(backend):
                    message = f"model {self.model.name!r}: the runtime {self.model.runtime} serves no {endpoint}"
                    raise ProviderInvalidRequest(message, code="unsupported_endpoint", param="model")
                defaults = self._defaults if endpoint == "completions" else {}
                reply = await backend.post(endpoint, {**defaults, **fields})
                try:
                    yield Passthrough(reply, backend, count)
                finally:
                    reply.close()
        except BaseException as error:
            count.end(outcome_of(error))
            raise
        else:
            count.end(OK)

    def count(self, face: ApiName, *, stream: bool) -> RequestMeter:
        """For the request log: a request that isn't a chat has come. Its `end` is to be called."""
        return RequestMeter(self._name, face, stream, self._book)

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """How many tokens the request's prompt has; None where the engine doesn't tell without answering it."""
        async with self.use() as backend:
            if not _counts_tokens(backend):
                return None
            fields = {**self._defaults, **request.fields}
            repair_history(fields)
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
        found = _detected(known)
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
        recording = self._request_log.record(answer) if self._request_log.bodies else None
        row = (
            self._name,
            run.stream,
            run.outcome,
            run.began,
            monotonic(),
            run.first,
            answer.usage,
            answer.chunks,
            mended,
            recording,
            run.face,
        )
        self._book(row)

    def _book(self, row: Row) -> None:
        rows = self._request_log.rows
        rows.append(row)
        if len(rows) >= UNSETTLED:
            self._request_log.settle()
        if self._unused is not None and not self.in_flight:
            self._unused.set()

    def become(self, model: Model) -> Route:
        """The route of the model with other settings, and the same engine."""
        assert self.engine is not None
        self._replaced = self.engine.reconfigure(model)
        self._engine_stays = True
        return Route(model, self._request_log, self.engine)

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
        asked, needed = self._prompted
        if asked is not backend:
            way = self.model.tool_prompt
            needed = way == "system" if way != "auto" else not await backend.takes_tools()
            self._prompted = backend, needed
        return needed


def _detected(known: About) -> Detection | None:
    return detect(special_tokens=known.tokens, chat_template=known.template or "", architecture=known.architecture)


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

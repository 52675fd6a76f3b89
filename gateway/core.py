"""The centre: every face reads one stream of clean payloads from one object, `Gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from types import TracebackType
from typing import Protocol, Self, TypeGuard

from msgspec import Raw

from gateway import backends
from gateway.backends import Address, Backend, RawText, RawTextBackend, Reply
from gateway.backends.about import About, about
from gateway.config import Config, Model
from gateway.engines import Engine, for_model
from gateway.errors import GatewayError, ProviderUnavailable
from gateway.forcing import forced, raw_text
from gateway.history import NOTHING, has_calls, heal
from gateway.normalize import Answer, EngineError
from gateway.prompting import calls_into_text, tools_into_prompt
from gateway.upstream import EngineGone, NotConnected
from gateway.wire.chat import ChatRequest, encode
from normalizers import detect, registry
from normalizers.base import Mended


class Route:
    """How requests for one model are answered."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.spec = model.custom_format or registry.get(model.tool_call_format)
        self._undetected = self.spec.name == "auto"
        self.evidence = "the engine reads the calls" if self.spec.untouched else "config.yaml"
        """Why the model's format is taken to be `spec`; empty while it wasn't looked for."""
        if self._undetected:
            self.evidence = ""
        self.engine: Engine | None = for_model(model)
        self._defaults = {name: Raw(encode(value)) for name, value in model.defaults.items()}
        self._backend: Backend | None = None
        self._address: Address | None = None

    async def backend(self) -> Backend:
        """The backend of a running engine; starts the engine if that is ours to do.

        Raises what `Engine.ensure` raises.
        """
        engine = self.engine
        if engine is None:
            if self._backend is None:
                self._backend = backends.load(self.model.runtime)(self.model, address_of(self.model))
            return self._backend
        address = engine.address or await engine.ensure()
        if self._backend is None or self._address != address:
            old, self._backend = self._backend, backends.load(self.model.runtime)(self.model, address)
            self._address = address
            if old is not None:
                await old.aclose()
        return self._backend

    async def open(self, request: ChatRequest, *, again: bool = False) -> Run:
        """Sends the request and returns once the engine has accepted it.

        An engine that took no connection is looked for, started anew if need be, and asked once more.
        """
        backend = self._backend
        if backend is None or (self.engine is not None and self.engine.address != self._address):
            backend = await self.backend()
        if self._undetected:
            await self._detect(backend)
        fields = {**self._defaults, **request.fields}
        if "max_completion_tokens" in fields and "max_tokens" not in request.fields:
            fields.pop("max_tokens", None)
        raw: RawText | None = None
        healed = heal(fields) if (past := has_calls(fields["messages"])) else NOTHING
        if request.tools is not None:
            if request.tool_choice == "none":
                # The engine must not be tempted: several write their calls as plain text then.
                del fields["tools"]
                fields.pop("tool_choice", None)
            elif not self.spec.untouched:
                raw = raw_text(request, self.spec)
                if await self._tools_need_prompt(backend):
                    tools_into_prompt(fields, self.spec, must=forced(request))
                    past = None
        if past and not self.spec.untouched and not await backend.keeps_calls():
            calls_into_text(fields, self.spec, results=not await backend.takes_tools())
        reasoning_open = False
        try:
            if raw is not None and _gives_raw_text(backend):
                reply: Reply = (came := await backend.open_raw(request, fields, raw))
                reasoning_open = came.reasoning_open
            else:
                reply = await backend.open(request, fields)
        except EngineGone as error:
            if self.engine is None:
                raise
            self.engine.lost()
            if again or not isinstance(error, NotConnected):
                raise
            return await self.open(request, again=True)
        answer = Answer(request, self.spec, reply.mender, reasoning_open=reasoning_open, healed=healed)
        return Run(self.model, reply, answer, backend, self.engine)

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

    async def aclose(self) -> None:
        if self._backend is not None:
            await self._backend.aclose()
        if self.engine is not None:
            await self.engine.stop()

    async def _tools_need_prompt(self, backend: Backend) -> bool:
        if self.model.tool_prompt == "auto":
            return not await backend.takes_tools()
        return self.model.tool_prompt == "system"


class Run:
    """One answer on its way. Read it with `whole` or `payloads` as the request asked, then `close` it."""

    __slots__ = ("_answer", "_backend", "_ended", "_engine", "_failed", "_reply", "model")

    def __init__(
        self, model: Model, reply: Reply, answer: Answer, backend: Backend, engine: Engine | None = None
    ) -> None:
        self.model = model
        self._engine = engine
        self._reply = reply
        self._answer = answer
        self._backend = backend
        self._failed: GatewayError | None = None
        self._ended = False

    async def whole(self) -> bytes:
        """The clean JSON body."""
        try:
            return self._answer.whole(await self._reply.whole())
        except EngineError as error:
            raise self._backend.error(500, error.payload) from None
        except ProviderUnavailable:
            self._doubt()
            raise

    @property
    def mended(self) -> Mended:
        """How far the calls of a whole answer had to be mended: not at all, their spelling, or against a schema."""
        return self._answer.mended

    @property
    def healed(self) -> Mapping[str, int]:
        """What was mended in the messages that the client replayed, counted by its kind; see `gateway.history`."""
        return self._answer.healed

    async def payloads(self) -> list[bytes]:
        """The clean `chat.completion.chunk` payloads that are next, at least one; [] at the end.

        If the engine fails, what had come before is handed out first, and the next call raises.
        """
        while not self._ended:
            if self._failed is not None:
                raise self._failed
            clean: list[bytes] = []
            try:
                came = await self._reply.payloads()
                if came:
                    self._answer.feed(came, clean)
                else:
                    self._ended = True
                    clean = self._answer.finish(done=self._reply.done)
            except EngineError as error:
                self._failed = self._backend.error(500, error.payload)
                clean += self._answer.rest()
            except GatewayError as error:
                if isinstance(error, ProviderUnavailable):
                    self._doubt()
                self._failed = error
                self._ended = False
                clean += self._answer.rest()
            if clean:
                return clean
        return []

    def _doubt(self) -> None:
        if self._engine is not None:
            self._engine.lost()

    def tap(self, client: Tap) -> None:
        """Sends payloads to the client as they arrive, while `payloads` waits: it then returns only the rest."""
        self._reply.tap(_Taker(self._answer, client))

    def close(self) -> None:
        """Ends the run; an unfinished one is cancelled in the engine. Idempotent, never blocks."""
        self._reply.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        self.routes: Mapping[str, Route] = {name: Route(model) for name, model in config.models.items()}

    def route(self, name: str | None) -> Route:
        """The route of a model; None, "" and "default" mean the active one. Raises ProviderInvalidModel."""
        return self.routes[self.config.resolve(name).name]

    def models(self) -> list[Model]:
        """The configured models, in the file's order; no engine is asked."""
        return list(self.config.models.values())

    async def ready(self, name: str | None = None) -> None:
        """Returns if the next chat with the model is expected to succeed; starts its engine if need be."""
        backend = await self.route(name).backend()
        await backend.ready()

    def chat(self, request: ChatRequest) -> Awaitable[Run]:
        """Opens an answer; awaiting raises a GatewayError until the engine has accepted the request."""
        return self.route(request.model).open(request)

    async def aclose(self) -> None:
        """Closes every connection and stops every engine that the gateway started."""
        results = await asyncio.gather(*(route.aclose() for route in self.routes.values()), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise BaseExceptionGroup("while closing", failures)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _gives_raw_text(backend: Backend) -> TypeGuard[RawTextBackend]:
    return hasattr(backend, "open_raw")  # isinstance looks at every member of the protocol


def address_of(model: Model) -> Address | None:
    """Where an external server of the model listens, as its configuration says."""
    if model.uds is not None:
        return Address(uds=str(model.uds))
    if model.base_url is None:
        return None
    return Address.parse(model.base_url)

"""One answer on its way from an engine to whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gateway.answer.normalize import Answer, EngineError
from gateway.backends import (
    Backend,
    Reply,
)
from gateway.config import Model
from gateway.errors import GatewayError, ProviderUnavailable
from gateway.observe.request_log import LEFT, OK, Outcome, outcome_of
from gateway.request.checks import ATTEMPTS, AnswerBuffer, Check, Enforced
from gateway.wire.chat import ChatRequest
from gateway.wire.sse import events

if TYPE_CHECKING:
    from gateway.core.route import Route

Asked = tuple[Reply, Answer, Backend, Enforced | None]


class Run:
    """One answer on its way. Read it with `whole` or `payloads` as the request asked, then `close` it.

    began, face, first, outcome: as in `gateway.observe.request_log.Ended`.
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
        "face",
        "fallback",
        "first",
        "outcome",
        "stream",
    )

    def __init__(self, route: Route, request: ChatRequest, asked: Asked, began: float, replayed: bool) -> None:
        self.stream = request.stream
        self.face = request.face
        self.fallback = request.fallback
        """Which model answers, where it isn't the one that was asked."""
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


class CheckedRun(Run):
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
        if self._whole is not None:
            return self._whole
        while True:
            body = await super().whole()
            enforced = self.enforced
            if enforced is None or enforced.check is None:
                return body
            # In a thread: a client's schema may make much work.
            judged = await asyncio.to_thread(enforced.check.whole, body, enforced.told(self._attempt))
            if isinstance(judged, bytes):
                return judged
            await self._once_more(enforced.check, *judged)

    async def payloads(self) -> list[bytes]:
        while not self._given:
            held = AnswerBuffer()
            while payloads := await super().payloads():
                held.add(payloads)
            enforced = self.enforced
            if enforced is None or enforced.check is None:
                self._given = True
                return held.payloads
            judged = await asyncio.to_thread(enforced.check.stream, held.payloads, enforced.told(self._attempt))
            if isinstance(judged, list):
                self._given = True
                return judged
            await self._once_more(enforced.check, *judged)
        return await super().payloads()  # what `begin` has taken, then the end

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
    """A client that takes a stream's events at once; `ready` is false while it lags."""

    def ready(self) -> bool: ...

    def push(self, data: bytes) -> None:
        """data: server-sent events."""
        ...


class _Taker:
    __slots__ = ("_answer", "_client", "ready")

    def __init__(self, answer: Answer, client: Tap) -> None:
        self._answer = answer
        self._client = client
        self.ready = client.ready

    def take(self, payload: bytes, event: bytes) -> None:
        clean: list[bytes] = []
        try:
            passes = self._answer.passes(payload, clean)
        finally:
            if clean:
                self._client.push(events(clean))
        if passes:
            self._client.push(event)

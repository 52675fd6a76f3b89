"""One answer in transit from an engine to a client."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gateway.answer.contents import HEAVY
from gateway.answer.errors import EngineError
from gateway.config import Model
from gateway.core.in_thread import in_thread, in_thread_if
from gateway.core.sender import Accepted, Sender
from gateway.core.shortcut import Shortcut
from gateway.errors import GatewayError, ProviderUnavailable
from gateway.observe.request_log import LEFT, OK, Outcome, outcome_of
from gateway.request.token_estimate import estimate
from gateway.schema.pool import Threads
from gateway.wire.chat import ChatRequest, rank_of
from gateway.wire.sse import Sink

if TYPE_CHECKING:
    from gateway.engines import Engine


class Asker(Protocol):
    """What a run needs from its route."""

    model: Model
    engine: Engine | None
    schemas: Threads
    sender: Sender

    def ask(self, request: ChatRequest) -> Awaitable[Accepted]:
        """Sends the request once more."""
        ...

    def ended(self, run: Run) -> None:
        """Books a closed run."""
        ...


class Run:
    """A request that an engine has accepted, until its end: `reply` is what the engine sends, `answer` cleans it.

    Read it with `whole` or `payloads`, as the request asked, then `close` it.

    began, first, outcome: see `gateway.observe.request_log.Ended`. replayed: the request was sent twice already.
    """

    __slots__ = (
        *("_backend", "_closed", "_ended", "_failed", "_handed_out", "_in_flight", "_read_ahead", "_replays", "_route"),
        *("answer", "began", "enforced", "first", "outcome", "reply", "request"),
    )

    def __init__(self, route: Asker, request: ChatRequest, accepted: Accepted, began: float, replayed: bool) -> None:
        self.request = request
        """The one that was last sent to the model."""
        self.began = began
        self.first = 0.0
        self.outcome: Outcome = LEFT
        self._route = route
        self.reply, self.answer = accepted.reply, accepted.answer
        self._backend, self.enforced = accepted.backend, accepted.enforced
        self._in_flight = True
        self._replays = int(replayed)
        self._handed_out = False
        """The client has received part of the answer."""
        self._failed: GatewayError | None = None
        self._ended = False
        self._closed = False
        self._read_ahead: list[bytes] = []
        """What `begin` has read: the first payloads, or the whole body."""

    @property
    def model(self) -> Model:
        """The model that answers."""
        return self._route.model

    @property
    def flex(self) -> bool:
        return self.request.serving.tier == "flex"

    @property
    def enforced_by(self) -> str:
        """How the answer's constraint is enforced; "" if it has none."""
        return "" if self.enforced is None else self.enforced.method

    def guessed_usage(self) -> dict[str, int]:
        """An estimate of the usage if the engine hasn't reported it, as when the client left."""
        return {"prompt_tokens": estimate(self.request), "completion_tokens": self.answer.chunks}

    async def begin(self) -> None:
        """Returns once the answer's first byte is there; `whole` or `payloads` returns it later.

        Raises what they would raise before it.
        """
        self._read_ahead = await self.payloads() if self.request.stream else [await self.whole()]

    async def whole(self) -> bytes:
        """The clean JSON body."""
        if self._read_ahead:
            return self._read_ahead[0]
        while True:
            try:
                payload = await self.reply.whole()
                clean = await in_thread_if(len(payload) > HEAVY, self.answer.whole, payload)
            except EngineError as error:
                failure = self._backend.fault(500, error.payload)
                self.outcome = outcome_of(failure)
                raise failure from None
            except GatewayError as error:
                if not await self._replay(error):
                    raise
            else:
                self.outcome = OK
                return clean

    async def payloads(self) -> list[bytes]:
        """The next clean `chat.completion.chunk` payloads, at least one; [] at the end.

        If the engine fails, this returns what came before; the next call raises.
        """
        if self._read_ahead:
            first, self._read_ahead = self._read_ahead, []
            self._handed_out = True
            return first
        while not self._ended:
            if self._failed is not None:
                raise self._failed
            if clean := await self._next():
                self._handed_out = True
                return clean
        return []

    async def _next(self) -> list[bytes]:
        """The clean payloads for the engine's next ones; [] if there are none yet."""
        clean: list[bytes] = []
        try:
            came = await self.reply.payloads()
            if not self.first:
                self.first = monotonic()
            large = self.answer.contents.heavy or sum(map(len, came)) > HEAVY
            if not came:
                self._ended = True
                clean = await in_thread_if(large, partial(self.answer.finish, done=self.reply.done))
                self.outcome = OK
            elif large:
                await in_thread(self.answer.feed, came, clean)
            else:
                self.answer.feed(came, clean)
        except EngineError as error:
            self._failed = self._backend.fault(500, error.payload)
            self.outcome = outcome_of(self._failed)
            clean += await in_thread_if(self.answer.contents.heavy, self.answer.remaining)
        except GatewayError as error:
            if not await self._replay(error):
                self._failed = error
                self._ended = False
                clean += await in_thread_if(self.answer.contents.heavy, self.answer.remaining)
        return clean

    async def _replay(self, error: GatewayError) -> bool:
        """Sends the request again if the engine went away before the client got anything: once to an engine of ours,
        `Backend.replays` times where several servers answer.

        Raises what `Asker.ask` raises. False: `error` stands.
        """
        self.outcome = outcome_of(error)
        engine = self._route.engine
        if not isinstance(error, ProviderUnavailable):
            return False
        if engine is not None:
            engine.lost()
        maximum = 1 if engine is not None else self._backend.replays
        # 502: it died, with its connection or in the middle of an answer.
        if self._handed_out or self._replays >= maximum or error.status != 502:
            return False
        self._replays += 1
        await self._ask(self.request)
        return True

    async def _ask(self, request: ChatRequest) -> None:
        """Replaces this answer by a new one. Raises what `Asker.ask` raises."""
        self._leave()
        accepted = await self._route.ask(request)
        self.reply, self.answer = accepted.reply, accepted.answer
        self._backend, self.enforced = accepted.backend, accepted.enforced
        self._in_flight = True
        self._ended = False
        self.outcome = LEFT

    def _leave(self) -> None:
        self.reply.close()
        # Its progress knows the answer, which knows the request: Python's collector would find all three much later.
        self.request.serving.tell()
        if self._in_flight and (engine := self._route.engine) is not None:
            engine.requests.leave(rank_of(self.request.serving.tier))
        self._in_flight = False

    def push_to(self, sink: Sink) -> None:
        """Lets events take the shortcut to the client while `payloads` waits, if the reply and the client allow it."""
        if (direct := self.reply.direct()) is not None:
            direct.attach(Shortcut(direct, self.answer, sink).offer)

    def close(self) -> None:
        """Ends the run and cancels unfinished work in the engine. Idempotent, never blocks."""
        if not self._closed:
            self._closed = True
            self._leave()
            self._route.ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.outcome in (OK, LEFT):
            self.outcome = outcome_of(error)
        self.close()

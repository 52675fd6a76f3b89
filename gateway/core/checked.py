"""A run that holds its answer back until it conforms to the request's constraint."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.run import Asked, Asker, Run
from gateway.observe.request_log import outcome_of
from gateway.request.checks import ATTEMPTS, AnswerBuffer, Check
from gateway.wire.chat import ChatRequest
from gateway.wire.sse import Sink


class CheckedRun(Run):
    """Releases its answer once it conforms; until then, asks the model again, up to `ATTEMPTS` times in all.

    After that it raises StructuredOutputInvalid, or ProviderInvalidRequest if the model called no tool.
    """

    __slots__ = ("_attempt", "_given", "_original")

    def __init__(self, route: Asker, request: ChatRequest, asked: Asked, began: float, replayed: bool) -> None:
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
            judged = await self._route.schemas.run(enforced.check.whole, body, enforced.report(self._attempt))
            if isinstance(judged, bytes):
                return judged
            await self._ask_again(enforced.check, *judged)

    async def payloads(self) -> list[bytes]:
        while not self._given:
            buffer = AnswerBuffer()
            while payloads := await super().payloads():
                buffer.add(payloads)
            enforced = self.enforced
            if enforced is None or enforced.check is None:
                self._given = True
                return buffer.payloads
            judged = await self._route.schemas.run(
                enforced.check.stream, buffer.payloads, enforced.report(self._attempt)
            )
            if isinstance(judged, list):
                self._given = True
                return judged
            await self._ask_again(enforced.check, *judged)
        return await super().payloads()  # what `begin` took, then the end

    async def _ask_again(self, check: Check, message: Mapping[str, object], fault: str) -> None:
        if self._attempt == ATTEMPTS:
            error = check.unmet(fault)
            self.outcome = outcome_of(error)
            raise error
        self._attempt += 1
        attempt, original = self._attempt, self._original
        self._request = again = original.continued(check.again(message, fault))
        original.progress = lambda: f"asking-again attempt={attempt} of={ATTEMPTS} {again.progress()}"
        await self._ask(again)

    def push_to(self, sink: Sink) -> None:
        """Does nothing: nothing is sent before the whole answer has arrived."""

"""A run whose answer is checked against the request's constraint."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from gateway.core.run import Asker, Run
from gateway.core.sender import Accepted
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.observe.request_log import outcome_of
from gateway.request.checks import ATTEMPTS, AnswerBuffer, Check, ends
from gateway.wire.chat import ChatRequest
from gateway.wire.engine import BROKEN_OFF
from gateway.wire.sse import Sink


class CheckedRun(Run):
    """Releases its answer once it conforms; until then, asks the model again, up to `ATTEMPTS` times in all.

    After that it raises StructuredOutputInvalid, or ProviderInvalidRequest if the model called no tool. A stream of an
    engine that enforces the constraint isn't held back if it begins as it should: then the same errors may end it.
    """

    __slots__ = ("_attempt", "_given", "_original", "_seen", "_tail")

    def __init__(self, route: Asker, request: ChatRequest, accepted: Accepted, began: float, replayed: bool) -> None:
        super().__init__(route, request, accepted, began, replayed)
        self._attempt = 1
        self._given = False
        self._original = request
        self._seen: AnswerBuffer | None = None
        """What has passed of a stream that isn't held back."""
        self._tail: list[bytes] = []
        """The end of that stream, which waits for the check."""

    @property
    def enforced_by(self) -> str:
        by = super().enforced_by
        return by if self._attempt == 1 else f"{by}; attempts={self._attempt}"

    @property
    def _broken_off(self) -> bool:
        return any(warning["code"] == BROKEN_OFF for warning in self.answer.warnings())

    async def whole(self) -> bytes:
        if self._read_ahead:
            return self._read_ahead[0]
        while True:
            body = await super().whole()
            enforced = self.enforced
            if enforced is None or enforced.check is None:
                return body
            check = partial(enforced.check.whole, broken_off=self._broken_off)
            judged = await self._route.schemas.run(check, body, enforced.report(self._attempt))
            if isinstance(judged, bytes):
                self._conforms()
                return judged
            await self._ask_again(enforced.check, *judged)

    async def payloads(self) -> list[bytes]:
        if self._read_ahead:
            return await super().payloads()
        while not self._given:
            buffer = AnswerBuffer()
            begun: bool | None = None
            while payloads := await super().payloads():
                buffer.add(payloads)
                enforced = self.enforced
                if begun is None and enforced is not None and enforced.check is not None and enforced.trusted:
                    begun = enforced.check.begins(payloads)
                    if begun:
                        self._given, self._seen = True, buffer
                        return self._before_end(buffer.payloads) or await self.payloads()
            enforced = self.enforced
            if enforced is None or enforced.check is None:
                self._given = True
                return buffer.payloads
            check = partial(enforced.check.stream, broken_off=self._broken_off)
            judged = await self._route.schemas.run(check, buffer.payloads, enforced.report(self._attempt))
            if isinstance(judged, list):
                self._conforms()
                return judged
            await self._ask_again(enforced.check, *judged)
        return await super().payloads() if self._seen is None else await self._passed(self._seen)

    async def _passed(self, seen: AnswerBuffer) -> list[bytes]:
        """The next payloads of a stream that isn't held back; those of its end once it conforms."""
        while payloads := await super().payloads():
            seen.add(payloads)
            if passed := self._before_end(payloads):
                return passed
        tail, self._tail = self._tail, []
        if not tail:
            return []
        enforced = self.enforced
        assert enforced is not None
        assert enforced.check is not None
        report = enforced.report(self._attempt)
        judged = await self._route.schemas.run(
            partial(enforced.check.stream, broken_off=self._broken_off), seen.payloads, report
        )
        if isinstance(judged, tuple):
            raise self._unmet(enforced.check, judged[1])
        self._conforms()
        # The last payloads of `judged` are these, with the report.
        return judged[-len(tail) :] if report is not None else tail

    def _before_end(self, payloads: list[bytes]) -> list[bytes]:
        """The payloads without the chunk that ends a choice, and what follows it."""
        at = 0 if self._tail else next((at for at, one in enumerate(payloads) if ends(one)), len(payloads))
        self._tail += payloads[at:]
        return payloads[:at]

    async def _ask_again(self, check: Check, message: Mapping[str, object], fault: str) -> None:
        if self._attempt == ATTEMPTS:
            raise self._unmet(check, fault)
        self._attempt += 1
        attempt, original = self._attempt, self._original
        if self.request.by_format:
            self._route.sender.learn_format(forces=False)
        by_format = check.constraint.kind == "call" and self._route.sender.may_force_calls()
        again = self.request = original.continued(check.again(message, fault), by_format=by_format)
        asks = again.serving
        original.serving.tell(lambda: f"asking-again attempt={attempt} of={ATTEMPTS} {asks.describe()}")
        try:
            await self._ask(again)
        except ProviderInvalidRequest:
            if not by_format:
                raise
            # A server that doesn't know the field.
            self._route.sender.learn_format(forces=False)
            self.request = replace(again, by_format=False)
            await self._ask(self.request)

    def _conforms(self) -> None:
        self._given = True
        # Unmarked: the call stood in the text, as the format wants it.
        if self.request.by_format and "unmarked" in self.answer.mended:
            self._route.sender.learn_format(forces=True)

    def _unmet(self, check: Check, fault: str) -> GatewayError:
        error = check.unmet(fault, self._attempt)
        self.outcome = outcome_of(error)
        return error

    def push_to(self, sink: Sink) -> None:
        """Does nothing: every payload has to pass through here."""

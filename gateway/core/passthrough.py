"""Requests that aren't chats: their entry in the request log, and the answers of an engine's other endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from gateway.backends import Backend, Reply
from gateway.core.in_thread import LARGE, in_thread_if_large
from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.observe.request_log import Outcome, Row
from gateway.wire.chat import NOBODY, ApiName, Caller, encode
from gateway.wire.lenient import BROKEN, LenientReader
from gateway.wire.limits import Tier
from gateway.wire.sse import Sink
from gateway.wire.usage import read_usage
from gateway.wire.values import MAX_TOKENS, exceeds

if TYPE_CHECKING:
    from gateway.prompts.protocols import PromptPlace
    from gateway.prompts.told import ToldTurn


class RequestMeter:
    """Meters one request for the request log. The reader of its answer sets first, usage and chunks, see
    `request_log.Ended`, and calls `end` once."""

    def __init__(
        self, model: str, api: ApiName, stream: bool, log: Callable[[Row], None], caller: Caller = NOBODY
    ) -> None:
        self.first = 0.0
        self.usage: Mapping[str, Any] = {}
        self.chunks = 0
        self._began = monotonic()
        self._asked = model, stream
        self._api: ApiName = api
        self._caller = caller
        self._log = log

    def came(self, payloads: int) -> None:
        """Counts payloads of a stream."""
        self.first = self.first or monotonic()
        self.chunks += payloads

    def uses(self, units: Mapping[str, float]) -> None:
        """Counts what isn't tokens; see `gateway.wire.usage.UNITS`."""
        self.usage = {**self.usage, **units}

    def left(self, turn: PromptPlace | ToldTurn | None) -> None:
        """The answer has left its place in the engine."""
        if turn is not None:
            self.usage = turn.answered(self.usage, self._began, self.first)

    def end(self, outcome: Outcome) -> None:
        now = monotonic()
        if self._caller.meter is not None:
            self._caller.meter.spend(self.usage, now)
        times = self._began, now, self.first
        self._log((*self._asked, outcome, *times, self.usage, self.chunks, None, None, self._api, self._caller))


class Passthrough:
    """An engine's answer, whole or streamed as the request asked, with its payloads unchanged."""

    def __init__(self, reply: Reply, backend: Backend, count: RequestMeter, tier: Tier | None = None) -> None:
        self.tier = tier
        """The service tier of the request; None if nothing has set one."""
        self._reply = reply
        self._backend = backend
        self._count = count
        self._last = b""

    async def whole(self) -> bytes:
        """Raises the error that a 200 contains, or ProviderInvalidResponse for a body that no client could read."""
        body = await self._reply.whole()
        if len(body) > LARGE:
            await in_thread_if_large(len(body), self._inspect, body)
        else:
            self._inspect(body)
        return body

    async def payloads(self) -> list[bytes]:
        """The next payloads, at least one; [] at the end. Raises as `whole`, and ProviderUnavailable for an answer that
        breaks off."""
        payloads = await self._reply.payloads()
        if payloads:
            if not self._last:
                await in_thread_if_large(len(payloads[0]), self._inspect, payloads[0])
            self._last = payloads[-1]
            if b'"error"' in self._last:
                await in_thread_if_large(len(self._last), self._inspect, self._last)
            self._count.came(len(payloads))
            return payloads
        if not self._reply.done:
            raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
        if self._last:
            await in_thread_if_large(len(self._last), self._inspect, self._last)
        return []

    def push_to(self, sink: Sink) -> None:
        """Does nothing: every payload has to pass through here."""

    def _inspect(self, payload: bytes) -> None:
        try:
            found = _decode(payload)
            usage = read_usage(bytes(found.usage))
        except BROKEN as error:
            # A vector, a score, and what is no object at all: nothing there can be repaired.
            if isinstance(error, msgspec.ValidationError) or (body := _completion(payload)) is None:
                raise ProviderInvalidResponse(f"the engine's answer can't be read: {error}") from error
            found, usage = _Known(Raw(encode(body.get("error")))), body.get("usage")
        if bytes(found.error) not in _NO_ERROR:
            raise self._backend.fault(500, payload)
        if isinstance(usage, dict):
            self._count.usage = usage


_NO_ERROR = (b"null", b"false", b"{}", b"[]", b'""', b"0")


class _Known(Struct):
    error: Raw = Raw(b"null")
    usage: Raw = Raw(b"null")


_decode = msgspec.json.Decoder(_Known).decode


def _completion(payload: bytes) -> dict[str, Any] | None:
    """A text completion that its reader will repair. Nothing else is: numbers of a vector can't be left out."""
    if b'"choices"' not in payload or exceeds(payload, MAX_TOKENS):
        return None
    try:
        body = LenientReader().read(payload, last=True)
    except BROKEN:
        return None
    return body if isinstance(body, dict) and "choices" in body else None

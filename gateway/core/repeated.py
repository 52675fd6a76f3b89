"""A run whose answer may repeat a call that was answered already: then the model is asked for words instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gateway.core.run import Asker, Run
from gateway.core.sender import Accepted
from gateway.request.repeats import answered, calls_in
from gateway.wire.chat import ChatRequest, decode
from gateway.wire.sse import Sink


class RepeatedRun(Run):
    """Asks once more, without calls, if the first thing that the answer does is to repeat a call.

    An answer that begins with text or reasoning passes at once. Calls of a stream come complete here: `Sender` holds
    them back.
    """

    __slots__ = ("_answered", "_judged")

    def __init__(self, route: Asker, request: ChatRequest, accepted: Accepted, began: float, replayed: bool) -> None:
        super().__init__(route, request, accepted, began, replayed)
        self._answered = answered(request)
        self._judged = False

    async def whole(self) -> bytes:
        if self._read_ahead:
            return self._read_ahead[0]
        body = await super().whole()
        if not self._judged:
            self._judged = True
            choices = decode(body).get("choices") or [{}]
            if self._repeats(choices[0].get("message")):
                await self._ask_for_words()
                return await super().whole()
        return body

    async def payloads(self) -> list[bytes]:
        clean = await super().payloads()
        held: list[bytes] = []
        while clean and not self._judged:
            held += clean
            deltas = [choice.get("delta") for chunk in map(decode, clean) for choice in chunk.get("choices") or ()]
            self._judged = any(_says(delta) for delta in deltas)
            if any(self._repeats(delta) for delta in deltas):
                await self._ask_for_words()
                return await super().payloads()
            if self._judged:
                return held
            self._handed_out = False
            clean = await super().payloads()
        return held + clean

    async def _ask_for_words(self) -> None:
        self.request = replace(self.request, in_words=True)
        await self._ask(self.request)
        self.answer.report.heal("repeated_calls")

    def _repeats(self, message: Any) -> bool:
        return isinstance(message, Mapping) and any(call in self._answered for call in calls_in(message))

    def push_to(self, sink: Sink) -> None:
        """Does nothing until the answer is known not to repeat a call."""
        if self._judged:
            super().push_to(sink)


def _says(delta: Any) -> bool:
    return isinstance(delta, Mapping) and any(delta.get(key) for key in ("content", "tool_calls", "reasoning"))

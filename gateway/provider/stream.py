"""A streamed answer: deltas as they arrive, then the same Response as for a whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Generic, TypeVar

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.provider.deltas import Delta
from gateway.provider.mapping.call import Call
from gateway.provider.observe import Observation
from gateway.provider.response import Response
from gateway.wire.sse import EventTooLarge, SSEReader

ParsedT = TypeVar("ParsedT")


class Stream(Generic[ParsedT]):
    """Yields each Delta as it arrives, and last the Response. Use it in `async with`: leaving early ends the call.

    Reading raises the same errors as `complete()`: an answer that breaks off is provider_unavailable.
    """

    def __init__(
        self,
        events: AsyncGenerator[Delta | Response[Any], None],
        close: Callable[[], Awaitable[None]],
        observation: Observation | None = None,
    ) -> None:
        self._events = events
        self._close = close
        self._observation = observation
        self._response: Response[ParsedT] | None = None

    def __aiter__(self) -> AsyncIterator[Delta | Response[ParsedT]]:
        return self

    async def __anext__(self) -> Delta | Response[ParsedT]:
        try:
            event = await anext(self._events)
            if self._observation is not None and not isinstance(event, Response):
                self._observation.delta(event)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._end(error)
            raise
        if isinstance(event, Response):
            self._response = event
            self._end(event)
        return event

    async def response(self) -> Response[ParsedT]:
        """Reads the rest of the stream and returns the Response."""
        async for _ in self:
            pass
        if self._response is None:
            raise ProviderUnavailable("the stream was closed before its answer was complete")
        return self._response

    async def aclose(self) -> None:
        self._end(GeneratorExit())
        await self._events.aclose()
        await self._close()

    def _end(self, outcome: object) -> None:
        observation, self._observation = self._observation, None
        if observation is not None:
            observation.end(outcome)

    async def __aenter__(self) -> Stream[ParsedT]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def read_events(pieces: AsyncGenerator[bytes, None], call: Call) -> AsyncGenerator[Delta | Response[Any], None]:
    """Yields the events of an SSE body, which `pieces` may split anywhere. Closes `pieces` at its end."""
    reader, answer = SSEReader(), call.reader()
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                for delta in answer.feed(reader.feed(piece)):
                    yield delta
                if answer.done:
                    break
            else:
                for delta in answer.feed(reader.finish()):
                    yield delta
    except EventTooLarge as error:
        raise ProviderInvalidResponse(str(error)) from error
    yield await asyncio.to_thread(call.response, answer.body())  # checking a schema may take long

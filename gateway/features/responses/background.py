"""Responses with `background`: tasks that write them, and their events, which clients can follow."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gateway.api.streaming import write_events
from gateway.errors import GatewayError, ProviderRateLimit
from gateway.observe.shares import has_share
from gateway.server.principal import Principal
from gateway.services import Services
from gateway.wire.chat import Meter

MAXIMUM = 64
"""The most background responses at a time; the same number of finished ones can still be streamed."""
MAX_BYTES = 128 * 1024 * 1024
"""Of the events of finished ones."""
PIECE = 256 * 1024
"""Bytes of events that a follower gets at a time, unless one event has more."""

log = logging.getLogger("ctxgate")


class Background:
    """One response: its events so far, and the task that adds more."""

    def __init__(
        self,
        principal: Principal,
        meter: Meter | None,
        save: Callable[[], Awaitable[None]],
        work: Callable[[Background], Awaitable[None]],
    ) -> None:
        """work: begins once `save` has stored the response; not at all if it can't."""
        self.principal = principal
        self.stopping = False
        """Whether its task ends with the gateway, and not because the client cancels it."""
        self.unsaved: dict[str, Any] | None = None
        """The ended response, if the store couldn't take it."""
        self._saving = asyncio.ensure_future(save())
        self.size = 0
        """Bytes of its events."""
        self._events: list[bytes] = []
        self._numbers: list[int] = []
        self._more = asyncio.Condition()
        self._task = asyncio.create_task(self._run(work), name="background response")
        if meter is not None:
            meter.stay()  # its own request ends at once
            self._task.add_done_callback(lambda _: meter.leave())
        self._waking: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def saved(self) -> None:
        """Returns once the response is stored, and goes on if nobody waits for it. Raises what the store raises."""
        await asyncio.shield(self._saving)

    def add(self, events: list[dict[str, Any]]) -> None:
        # As bytes: a later change of what it shows changes nothing, and no collector looks into it.
        for event in events:
            self._events.append(write_events([event]))
            self._numbers.append(event["sequence_number"])
            self.size += len(self._events[-1])
        if events and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._wake())

    async def hear(self, events: list[dict[str, Any]]) -> None:
        self.add(events)

    async def events(self, after: int) -> AsyncIterator[bytes]:
        """The events after number `after`, up to the last, as they come."""
        at = bisect_right(self._numbers, after)

        def more() -> bool:
            return len(self._events) > at or self.ended

        while True:
            ended = self.ended
            if at < len(self._events):
                end, size = at + 1, len(self._events[at])
                while end < len(self._events) and (size := size + len(self._events[end])) <= PIECE:
                    end += 1
                piece = b"".join(self._events[at:end])
                at = end
                yield piece
            elif ended:
                return
            else:
                async with self._more:
                    await self._more.wait_for(more)

    def keep(self, response: dict[str, Any]) -> None:
        self.unsaved = response

    async def stop(self) -> None:
        """Ends the response with the gateway; returns once the task has ended."""
        self.stopping = True
        await self.cancel()

    async def cancel(self) -> None:
        """Returns once the task has ended."""
        if (
            not self._task.cancelling()
        ):  # a second cancellation would interrupt the writes that the task does after the first
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self, work: Callable[[Background], Awaitable[None]]) -> None:
        try:
            await self.saved()
        except GatewayError:
            return  # `saved` tells the client
        try:
            await work(self)
        except Exception:
            log.exception("a background response broke")
        finally:
            self._last = asyncio.get_running_loop().create_task(self._wake())

    async def _wake(self) -> None:
        async with self._more:
            self._more.notify_all()


class Backgrounds:
    """The background responses of this process. Use `services.shared(Backgrounds)`."""

    def __init__(self, services: Services) -> None:
        self._by_id: dict[str, Background] = {}

    def start(
        self,
        id: str,
        principal: Principal,
        meter: Meter | None,
        save: Callable[[], Awaitable[None]],
        work: Callable[[Background], Awaitable[None]],
    ) -> Background:
        """meter: counts the request until the response has ended. save, work: see `Background`.

        Raises ProviderRateLimit while MAXIMUM responses run, or too many of the principal's tenant.
        """
        running = sum(not one.ended for one in self._by_id.values())
        mine = sum(not one.ended and one.principal.tenant == principal.tenant for one in self._by_id.values())
        if not has_share(principal.tenant, mine + 1, running + 1, MAXIMUM):
            message = f"{running} background responses are running already, {mine} of them this tenant's"
            raise ProviderRateLimit(message, retry_after=10)
        self._forget_some(lambda _: 1, MAXIMUM - 1)
        self._forget_some(lambda one: one.size, MAX_BYTES)
        one = self._by_id[id] = Background(principal, meter, save, work)
        return one

    def get(self, id: str, principal: Principal) -> Background | None:
        """As the store, shows each user only their own responses, whichever of their keys they use."""
        one = self._by_id.get(id)
        mine = one is not None and (one.principal.tenant, one.principal.user) == (principal.tenant, principal.user)
        return one if mine else None

    async def forget(self, id: str, principal: Principal) -> None:
        """Cancels the response and returns once its task has ended."""
        if (one := self.get(id, principal)) is not None:
            await one.cancel()
            self._by_id.pop(id, None)

    def _forget_some(self, weight: Callable[[Background], int], maximum: int) -> None:
        """Leaves `maximum` of the finished ones: the oldest goes of the tenant that has most."""
        ended = {id: one for id, one in self._by_id.items() if one.ended}
        held: Counter[str] = Counter()
        for one in ended.values():
            held[one.principal.tenant] += weight(one)
        while held.total() > maximum:
            (most, _), *_ = held.most_common(1)
            id = next(id for id, one in ended.items() if one.principal.tenant == most)
            held[most] -= weight(ended.pop(id))
            del self._by_id[id]

    async def aclose(self) -> None:
        for one in [*self._by_id.values()]:
            await one.stop()

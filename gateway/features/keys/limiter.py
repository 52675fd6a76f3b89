"""The meters of all API keys with limits. Counts are this process's own, and what other gateways of a cluster tell; the
day's tokens begin with those in the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from gateway.features.keys.ledger import MINUTE
from gateway.features.keys.meter import KeyMeter
from gateway.server.principal import Principal
from gateway.wire.limits import Used

if TYPE_CHECKING:
    from gateway.services import Services


class Limiter:
    """The meters of all keys that have limits. used_today: the tokens of a key that the store knows of today."""

    def __init__(self, used_today: Callable[[str], Awaitable[int]]) -> None:
        self._used_today = used_today
        self._meters: dict[str, KeyMeter] = {}
        self._used: list[KeyMeter] = []
        """Meters that need ticks."""
        self._untold: dict[KeyMeter, None] = {}
        """Meters that were used since `unreported_usage` found nothing new, or are in use."""
        self._told: dict[str, Used] = {}
        """The total usage of each key at the last call of `unreported_usage`."""
        self._running: dict[str, dict[str, int]] = {}
        """Requests at a time of each key at each other gateway."""
        self._early: dict[str, deque[tuple[float, str, Used]]] = {}
        """Usage that other gateways reported in the last minute for keys unused here: time, gateway, usage."""
        self._remembering: dict[str, asyncio.Task[None]] = {}
        """By key; a finished one has succeeded."""

    async def meter(self, principal: Principal) -> KeyMeter:
        """The meter of a principal with limits. Raises what `used_today` raises: without it nobody knows what is
        left."""
        limits, key = principal.limits, principal.key
        assert limits is not None
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = KeyMeter(key, limits, self._wake)
            for at, gateway, used in self._early.pop(key, ()):
                self._heard(meter, gateway, used, at)
        elif meter.limits is not limits:
            meter.change(limits)
        if not meter.remembers and limits.tokens_per_day is not None:
            await self._remembered(meter)
        return meter

    def unreported_usage(self, *, whole: bool) -> dict[str, Used]:
        """What was used here and other gateways don't know yet, by key. whole: with all requests at a time."""
        found: dict[str, Used] = {}
        for meter in [*self._untold]:
            before, used = self._told.get(meter.key, (0, 0, 0)), meter.used()
            self._told[meter.key] = used
            unreported = used[0] - before[0], used[1] - before[1], used[2]
            if unreported != (0, 0, before[2]) or (whole and used[2]):
                found[meter.key] = unreported
            elif not used[2]:
                del self._untold[meter]
        return found

    def add_remote_usage(self, gateway: str, used: Mapping[str, Used], *, whole: bool) -> None:
        """Counts what another gateway reported. whole: it works on no request of any other key."""
        now = monotonic()
        for key, one in used.items():
            if (meter := self._meters.get(key)) is not None:
                self._heard(meter, gateway, one, now)
                continue
            early = self._early.setdefault(key, deque())
            early.append((now, gateway, one))
            while early[0][0] <= now - MINUTE:
                early.popleft()
        for key, meter in self._meters.items() if whole else ():
            if key not in used and gateway in self._running.get(key, ()):
                self._heard(meter, gateway, (0, 0, 0), now)

    def _heard(self, meter: KeyMeter, gateway: str, used: Used, at: float) -> None:
        requests, tokens, running = used
        there = self._running.setdefault(meter.key, {})
        there[gateway] = running
        if not running:
            del there[gateway]
        meter.used_elsewhere(requests, tokens, sum(there.values()), at)

    async def aclose(self) -> None:
        for task in self._remembering.values():
            task.cancel()
        await asyncio.gather(*self._remembering.values(), return_exceptions=True)

    def _wake(self, meter: KeyMeter) -> None:
        self._untold[meter] = None
        if not self._used:
            asyncio.get_running_loop().call_later(1.0, self._tick)
        self._used.append(meter)

    def _tick(self) -> None:
        self._used = [meter for meter in self._used if meter.tick()]
        if self._used:
            asyncio.get_running_loop().call_later(1.0, self._tick)

    async def _remembered(self, meter: KeyMeter) -> None:
        task = self._remembering.get(meter.key)
        if task is None:
            task = self._remembering[meter.key] = asyncio.create_task(self._remember(meter), name="tokens of today")
        if not task.done():
            # A caller that gives up must not cancel this for the others.
            await asyncio.shield(task)
        task.result()

    async def _remember(self, meter: KeyMeter) -> None:
        try:
            meter.remember(await self._used_today(meter.key))
        except BaseException:
            self._remembering.pop(meter.key, None)
            raise


def limiter(services: Services) -> Limiter:
    """See `Services.shared`."""
    return Limiter(services.tokens_today)

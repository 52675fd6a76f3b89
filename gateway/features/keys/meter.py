"""Counts what one key uses while it is used: a few plain integers between two looks at its ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from time import monotonic, time
from typing import Any

from gateway.features.keys.ledger import Ledger
from gateway.wire.limits import HeadLines, LimitReached, Limits, Standing, Used
from gateway.wire.usage import spent

UNLIMITED = 10**12


class Countdown:
    """How many requests and tokens may still come. It reads no clock, so what falls out of a minute isn't seen before
    `allow` is called again."""

    __slots__ = (
        *("_beyond", "_booked", "_ended", "_entered", "_free", "_granted", "_last", "_parallel", "_seen"),
        *("stale", "tokens"),
    )

    def __init__(self) -> None:
        self.stale = True
        """Whether `allow` comes before the next request."""
        self.tokens = self._seen = UNLIMITED
        """What is left now, and what was when `take` was called last."""
        self._parallel = UNLIMITED
        self._granted = self._free = 0
        """Requests that the last grant allows, and how many of them are left."""
        self._entered = self._booked = self._ended = 0
        """Requests until the last grant; those that `take` has reported; those that have ended."""
        self._last = self._beyond = 0
        """The request count at which the limit on requests is reached, and how much of it isn't granted yet."""

    @property
    def running(self) -> int:
        """Requests at a time."""
        return self._entered + self._granted - self._free - self._ended

    @property
    def crowded(self) -> bool:
        """Whether as many run as may at a time."""
        return self.running >= self._parallel

    def enter(self) -> int:
        """Counts a request in. Returns how many more may come in this minute; -1: none, and it isn't counted."""
        if self._free <= 0:
            if self.stale:
                return -1
            self._grant()
            if self._free <= 0:
                return -1
        self._free = free = self._free - 1
        return self._beyond + free

    def leave(self) -> None:
        self._ended += 1

    def stay(self) -> None:
        self._ended -= 1

    def spend(self, tokens: int) -> None:
        self.tokens = left = self.tokens - tokens
        if left <= 0:
            self._grant()

    def allow(self, standing: Standing) -> None:
        """standing: what is left; `take` was called just before."""
        requests, tokens = standing.requests, standing.tokens
        self._last = self._entered + (requests.remaining if requests is not None else UNLIMITED)
        self.tokens = self._seen = tokens.remaining if tokens is not None else UNLIMITED
        self.stale = False
        self._grant()

    def limit(self, parallel: int) -> None:
        """parallel: requests at a time."""
        self._parallel = parallel

    def take(self) -> tuple[int, int]:
        """The requests and tokens since this was called last. None may come until `allow` is called."""
        self._entered += self._granted - self._free
        self._granted = self._free = 0
        self.stale = True
        requests, tokens = self._entered - self._booked, self._seen - self.tokens
        self._booked, self._seen = self._entered, self.tokens
        return requests, tokens

    def _grant(self) -> None:
        self._entered += self._granted - self._free
        left = self._last - self._entered
        free = min(left, self._parallel - self._entered + self._ended) if self.tokens > 0 else 0
        self._granted = self._free = max(0, free)
        self._beyond = left - self._free


class KeyMeter:
    """See `gateway.wire.chat.Meter`.

    Usage is entered into the ledger whenever it is read, and at each `tick`, once a second: so a second late at most.
    wake: requests ticks; they stop once `tick` returns False.
    """

    __slots__ = (
        *("_awake", "_clock", "_count", "_elsewhere", "_fresh", "_head", "_ledger", "_now", "_requests", "_tokens"),
        *("_wake", "key", "leave", "limits", "remembers"),
    )

    def __init__(
        self,
        key: str,
        limits: Limits,
        wake: Callable[[KeyMeter], None],
        now: Callable[[], float] = monotonic,
        clock: Callable[[], float] = time,
    ) -> None:
        self.key, self.limits = key, limits
        self.remembers = False
        """The day's tokens: those in the store plus those of this process."""
        self._wake = wake
        self._now, self._clock = now, clock
        self._count = counter = Countdown()
        self.leave: Callable[[], None] = counter.leave
        self._ledger, self._head = Ledger(limits, clock()), HeadLines(limits)
        self._requests = self._tokens = 0
        """In the ledger, from this process, all in all."""
        self._elsewhere = 0
        """Requests at a time at other gateways."""
        self._awake = False
        self._fresh = True
        """Whether no tokens were used since the last look."""
        self._limit_parallel()

    def change(self, limits: Limits) -> None:
        """If they are other limits, those of a minute count anew."""
        if limits != self.limits:
            self._count_usage(self._now())
            self._ledger.limit(limits)
            self._head = HeadLines(limits)
        self.limits = limits
        self._limit_parallel()

    def remember(self, tokens: int) -> None:
        """tokens: of today, in the store."""
        self._count_usage(self._now())
        self._ledger.begin(tokens, self._clock())
        self.remembers = True

    def used_elsewhere(self, requests: int, tokens: int, running: int, at: float) -> None:
        """What other gateways of the cluster told: requests and tokens at a time `at`, and how many requests are
        running there, all in all."""
        self._count_usage(self._now())
        self._ledger.add(requests, tokens, at, self._clock())
        self._elsewhere = running
        self._limit_parallel()

    def used(self) -> Used:
        """Requests and tokens in this process, all in all, and requests at a time."""
        self._count_usage(self._now())
        return self._requests, self._tokens, self._count.running

    @property
    def running(self) -> int:
        """Requests at a time, at this gateway."""
        return self._count.running

    def enter(self) -> int:
        left = self._count.enter()
        return left if left >= 0 else self._admit()

    def stay(self) -> None:
        self._count.stay()

    def again(self) -> None:
        self.leave()
        try:
            self.enter()
        except LimitReached:
            self.stay()
            raise

    def standing(self) -> Standing:
        return self._standing(self._now())

    def lines(self, requests: int) -> bytes:
        tokens = self._count.tokens  # answers that ended meanwhile may have taken it below 0
        return self._head.lines(requests, tokens if tokens > 0 else 0)

    def answer(self, head: bytes, requests: int, body: bytes) -> bytes:
        tokens = self._count.tokens
        return self._head.answer(head, requests, tokens if tokens > 0 else 0, body)

    def spend(self, usage: Mapping[str, Any], now: float) -> None:
        if self._fresh:
            if not self._awake:
                self._standing(now)
            self._head.spent()
            self._fresh = False
        self._count.spend(spent(usage))

    def tick(self) -> bool:
        """A second has passed. Returns whether anything has been used in it."""
        self._awake = self._count_usage(self._now())
        if not self._awake:
            self._fresh = True
        return self._awake

    def _admit(self) -> int:
        """Looks into the ledger for a request to which the countdown said no. Raises LimitReached."""
        now = self._now()
        standing, clock = self._standing(now), self._clock()
        if (left := self._count.enter()) >= 0:
            return left
        if self._count.crowded:
            why, wait = f"{self.limits.parallel} requests at a time", 1.0
        else:
            why, wait = self._ledger.reached(now, clock)
        message = f"key {self.key}: {why} are its limit; try again in {max(1, ceil(wait))} s"
        raise LimitReached(message, wait, standing)

    def _standing(self, now: float) -> Standing:
        self._count_usage(now)
        standing, of_the_day = self._ledger.standing(now, self._clock())
        self._head.show(standing.tokens, of_the_day=of_the_day)
        self._fresh = True
        self._count.allow(standing)
        if not self._awake:
            self._awake = True
            self._wake(self)
        return standing

    def _limit_parallel(self) -> None:
        parallel = self.limits.parallel
        self._count.limit(parallel - self._elsewhere if parallel is not None else UNLIMITED)

    def _count_usage(self, now: float) -> bool:
        """Enters what has been used since the last time, as if it were used now. Returns whether anything was."""
        requests, tokens = self._count.take()
        self._requests += requests
        self._tokens += tokens
        self._ledger.add(requests, tokens, now, self._clock())
        return bool(requests or tokens)

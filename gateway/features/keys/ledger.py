"""What a key has used in the last minute and today. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from math import floor

from gateway.wire.limits import Left, Limits, Standing

MINUTE, DAY = 60, 86400


class Window:
    """At most `limit` in any `seconds`, as whole seconds count: what comes within one counts from its end."""

    def __init__(self, limit: int, seconds: int = MINUTE) -> None:
        self.limit = limit
        self._seconds = seconds
        self._amounts: deque[list[int]] = deque()
        """[second from which it counts, amount], at most one for each second."""
        self._used = 0

    def add(self, amount: int, now: float) -> None:
        second = floor(now) + 1
        self._used += amount
        if self._amounts and self._amounts[-1][0] == second:
            self._amounts[-1][1] += amount
        else:
            self._amounts.append([second, amount])

    def left(self, now: float) -> Left:
        amounts = self._amounts
        if amounts and amounts[0][0] + self._seconds <= now:
            self._forget(now)
        remaining = self.limit - self._used
        reset = amounts[-1][0] + self._seconds - now if amounts else 0.0
        return Left(self.limit, remaining if remaining > 0 else 0, reset)

    def wait(self, now: float) -> float:
        """Seconds until one more is allowed; 0 if it is."""
        if self._used < self.limit:
            return 0.0
        self._forget(now)
        over = self._used - self.limit + 1
        for second, amount in self._amounts:
            if over <= 0:
                break
            over -= amount
            if over <= 0:
                return second + self._seconds - now
        return 0.0

    def _forget(self, now: float) -> None:
        while self._amounts and self._amounts[0][0] + self._seconds <= now:
            self._used -= self._amounts.popleft()[1]


class Ledger:
    """What a key has used, beside its limits. Each `now` is monotonic, each `clock` counts seconds since 1970."""

    __slots__ = ("_day", "_day_tokens", "_per_day", "_requests", "_tokens")

    def __init__(self, limits: Limits, clock: float) -> None:
        self._day = clock // DAY
        self._day_tokens = 0
        self.limit(limits)

    def limit(self, limits: Limits) -> None:
        """Other limits; those of a minute count anew."""
        self._requests, self._tokens = (
            Window(limit) if limit is not None else None
            for limit in (limits.requests_per_minute, limits.tokens_per_minute)
        )
        self._per_day = limits.tokens_per_day

    def begin(self, tokens: int, clock: float) -> None:
        """tokens: of today, in the store."""
        self._roll(clock)
        self._day_tokens = tokens

    def add(self, requests: int, tokens: int, now: float, clock: float) -> None:
        self._roll(clock)
        self._day_tokens += tokens
        if requests and self._requests is not None:
            self._requests.add(requests, now)
        if tokens and self._tokens is not None:
            self._tokens.add(tokens, now)

    def standing(self, now: float, clock: float) -> tuple[Standing, bool]:
        """What is left; of two limits on tokens, of the one with less left, and whether that is the day's."""
        self._roll(clock)
        requests = self._requests.left(now) if self._requests is not None else None
        tokens = self._tokens.left(now) if self._tokens is not None else None
        if (maximum := self._per_day) is not None:
            remaining = max(0, maximum - self._day_tokens)
            if tokens is None or remaining < tokens.remaining:
                return Standing(requests, Left(maximum, remaining, DAY - clock % DAY)), True
        return Standing(requests, tokens), False

    def reached(self, now: float, clock: float) -> tuple[str, float]:
        """The limit that the key has reached, and the seconds until a request may come."""
        for what, window in (("requests", self._requests), ("tokens", self._tokens)):
            if window is not None and (wait := window.wait(now)) > 0:
                return f"{window.limit} {what} a minute", wait
        return f"{self._per_day} tokens a day", DAY - clock % DAY

    def _roll(self, clock: float) -> None:
        if (today := clock // DAY) != self._day:
            self._day, self._day_tokens = today, 0

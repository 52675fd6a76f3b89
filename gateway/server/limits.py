"""The limits of API keys: requests and tokens in a time, requests at a time, models. Counts are this process's own, and
what other gateways of a cluster tell; the day's tokens begin with those in the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from math import ceil, floor
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from gateway.errors import ProviderAuthentication, ProviderInvalidRequest, ProviderRateLimit
from gateway.server.principal import Limits, Principal
from gateway.wire.chat import TIERS, Tier
from gateway.wire.limits import FULL, Headers, Left, Standing, Used, duration, openai_lines
from gateway.wire.usage import FEW, spent

if TYPE_CHECKING:
    from gateway.services import Services

MINUTE, DAY = 60, 86400
MOST = 10**12

NAMES = {
    "requests/minute": "requests_per_minute",
    "tokens/minute": "tokens_per_minute",
    "tokens/day": "tokens_per_day",
    "parallel": "parallel",
    "models": "models",
    "tiers": "tiers",
    "tier": "tier",
}
"""How a command line names the fields of `Limits`."""


class LimitReached(ProviderRateLimit):
    """more: the API's headers that say what is left."""

    def __init__(self, message: str, retry_after: float, more: Headers) -> None:
        super().__init__(message, retry_after=retry_after)
        self._more = more

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), *self._more]


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


class KeyMeter:
    """Counts what one key uses; a `gateway.wire.chat.Meter`.

    It only counts down plain integers, and reads no clock: what windows and days say is looked up after each `tick`,
    which comes once a second. wake: called when ticks shall come; no more are wanted once `tick` has returned False.
    """

    __slots__ = (
        *("_answer", "_awake", "_beyond", "_booked", "_clock", "_day", "_day_lines", "_day_tokens"),
        *("_elsewhere", "_entered", "_spent", "_told"),
        *("_free", "_fresh", "_granted", "_last", "_lines", "_lines_if_used", "_minute_lines", "_models", "_most"),
        *("_now", "_requests", "_stale", "_tokens", "_tokens_left", "_tokens_seen", "_wake"),
        *("ended", "key", "limits", "remembers", "restricted"),
    )  # fmt: skip

    def __init__(
        self,
        key: str,
        limits: Limits,
        wake: Callable[[KeyMeter], None],
        now: Callable[[], float] = monotonic,
        clock: Callable[[], float] = time,
    ) -> None:
        self.key = key
        self.ended = 0
        self.remembers = False
        """The day's tokens: those in the store plus those of this process."""
        self._wake = wake
        self._awake = False
        self._now = now
        self._clock = clock
        self._day = clock() // DAY
        self._day_tokens = 0
        self._spent = 0
        """Tokens that the window has, all in all."""
        self._told: Used = (0, 0, 0)
        """The totals when `news` was asked last."""
        self._elsewhere: dict[str, int] = {}
        """Other gateways of the cluster, with their requests at a time."""
        self._stale = True
        """Whether to recompute before the next request."""
        self._granted = self._free = 0
        """How many requests could come at the last grant without another one, and how many still can."""
        self._entered = self._booked = 0
        """Requests until the last grant, and those of them that the window has."""
        self._last = self._beyond = 0
        """Up to which of them the limit on requests goes, and by how many that is more than was granted."""
        self._tokens_seen = self._tokens_left = MOST
        """What was left at the last computation, and what is left now."""
        self._fresh = True
        """Whether no tokens were used since the last computation."""
        self._lines = self._lines_if_used = b""
        """What `lines` returns, now and once more tokens are used; `%` takes the requests and tokens that are left."""
        self._answer = b""
        """The same for `answer`, between the head, the body's length and the body."""
        self.change(limits)

    @property
    def running(self) -> int:
        """Requests at a time, at this gateway."""
        return self._entered + self._granted - self._free - self.ended

    def change(self, limits: Limits) -> None:
        """Other limits; those of a minute count anew."""
        self._requests = self._tokens = None
        self._book(0.0)
        self.limits = limits
        self.restricted = bool(limits.models or limits.tiers or limits.tier)
        self._minute_lines, self._day_lines = (
            openai_lines(limits.requests_per_minute, tokens)
            for tokens in (limits.tokens_per_minute, limits.tokens_per_day)
        )
        self._models = frozenset(limits.models)
        self._limit_parallel()
        self._requests = Window(limits.requests_per_minute) if limits.requests_per_minute is not None else None
        self._tokens = Window(limits.tokens_per_minute) if limits.tokens_per_minute is not None else None

    def remember(self, tokens: int) -> None:
        """tokens: of today, in the store."""
        self._book(self._now())
        self._roll(self._clock())
        self._day_tokens = tokens
        self.remembers = True

    def elsewhere(self, gateway: str, used: Used, now: float) -> None:
        """What another gateway of the cluster told. now: when it did, by this meter's time."""
        requests, tokens, running = used
        self._book(self._now())
        self._roll(self._clock())
        self._day_tokens += tokens
        if requests and self._requests is not None:
            self._requests.add(requests, now)
        if tokens and self._tokens is not None:
            self._tokens.add(tokens, now)
        if running:
            self._elsewhere[gateway] = running
        else:
            self._elsewhere.pop(gateway, None)
        self._limit_parallel()

    def news(self, *, whole: bool) -> Used | None:
        """What other gateways don't know yet; None if they know all. whole: requests at a time are always news."""
        self._book(self._now())
        (requests, tokens, running), self._told = self._told, (self._entered, self._spent, self.running)
        used = self._entered - requests, self._spent - tokens, self.running
        return used if used != (0, 0, running) or (whole and running) else None

    def enter(self, headers: Callable[[Standing, float], Headers]) -> int:
        """See `gateway.wire.chat.Meter`. Raises LimitReached."""
        if self._free <= 0:
            self._admit(headers)
        self._free = free = self._free - 1
        return self._beyond + free

    def is_used_by(self, gateway: str) -> bool:
        """Whether another gateway works on requests of the key."""
        return gateway in self._elsewhere

    def standing(self) -> Standing:
        return self._look(self._now())

    def lines(self, requests: int) -> bytes:
        """See `gateway.wire.chat.Meter`."""
        tokens = self._tokens_left  # answers that ended meanwhile may have taken it below 0
        return self._lines % (requests, tokens if tokens > 0 else 0)

    def answer(self, head: bytes, requests: int, body: bytes) -> bytes:
        """See `gateway.wire.chat.Meter`."""
        tokens = self._tokens_left
        return self._answer % (head, requests, tokens if tokens > 0 else 0, len(body), body)

    def spend(self, usage: Mapping[str, Any], now: float) -> None:
        """See `gateway.wire.chat.Meter`."""
        if self._fresh:
            self._first_spent(now)
        try:  # as `spent` does, which would cost a call
            prompt = usage["prompt_tokens"]
            tokens = prompt + usage["completion_tokens"]
            if type(tokens) is not int or not 0 <= prompt <= tokens <= FEW:
                tokens = spent(usage)
        except (KeyError, TypeError):
            tokens = spent(usage)
        self._tokens_left = left = self._tokens_left - tokens
        if left <= 0:
            self._grant()

    def _first_spent(self, now: float) -> None:
        """Tokens are about to be used, the first since the last look."""
        if not self._awake:
            self._look(now)
        self._write(self._lines_if_used)
        self._fresh = False

    def tick(self) -> bool:
        """A second has passed. Returns whether anything has been used in it."""
        self._awake = self._book(self._now())
        if not self._awake:
            self._fresh = True
        return self._awake

    def check(self, *names: str) -> None:
        """names: the model's name and aliases."""
        if self._models and self._models.isdisjoint(names):
            allowed = ", ".join(self.limits.models)
            message = f"key {self.key} may not use the model {names[0]!r}; it may use: {allowed}"
            raise ProviderAuthentication(message, code="model_not_allowed", param="model", status=403)

    def tier(self, wanted: Tier | None, default: Tier | None) -> Tier | None:
        """See `gateway.wire.chat.Meter`. Of the defaults, the model's comes first."""
        limits = self.limits
        allowed = limits.tiers
        if wanted is not None:
            if allowed and wanted not in allowed:
                message = f"key {self.key} may not ask for service_tier {wanted!r}, only for: {', '.join(allowed)}"
                raise ProviderAuthentication(message, code="tier_not_allowed", param="service_tier", status=403)
            return wanted
        if default is not None and (not allowed or default in allowed):
            return default
        return limits.tier or (allowed[-1] if allowed and "default" not in allowed else None)

    def _admit(self, headers: Callable[[Standing, float], Headers]) -> None:
        """Lets requests in. Raises LimitReached."""
        if not self._stale:
            self._grant()
            if self._free > 0:
                return
        now = self._now()
        standing, clock = self._look(now), self._clock()
        if self._free <= 0:
            why, wait = self._reached(now, clock)
            message = f"key {self.key}: {why} are its limit; try again in {max(1, ceil(wait))} s"
            raise LimitReached(message, wait, headers(standing, clock))

    def _reached(self, now: float, clock: float) -> tuple[str, float]:
        """The limit that the key has reached, and the seconds until a request may come."""
        if self.running >= self._most:
            return f"{self.limits.parallel} requests at a time", 1.0
        for what, window in (("requests", self._requests), ("tokens", self._tokens)):
            if window is not None and (wait := window.wait(now)) > 0:
                return f"{window.limit} {what} a minute", wait
        return f"{self.limits.tokens_per_day} tokens a day", DAY - clock % DAY

    def _look(self, now: float) -> Standing:
        """Computes what is left. Of two limits on tokens, uses the one with less left."""
        self._book(now)
        clock = self._clock()
        self._roll(clock)
        requests = self._requests.left(now) if self._requests is not None else None
        tokens = self._tokens.left(now) if self._tokens is not None else None
        lines, used = self._minute_lines, FULL
        if (most := self.limits.tokens_per_day) is not None:
            remaining = most - self._day_tokens
            if tokens is None or remaining < tokens.remaining:
                tokens = Left(most, remaining if remaining > 0 else 0, DAY - clock % DAY)
                lines, used = self._day_lines, duration(tokens.reset).encode()
        self._last = self._entered + (requests.remaining if requests is not None else MOST)
        self._tokens_seen = self._tokens_left = tokens.remaining if tokens is not None else MOST
        unused = self._lines_if_used = lines
        if tokens is not None:
            unused = b"%b%b\r\n" % (lines, duration(tokens.reset).encode())
            self._lines_if_used = b"%b%b\r\n" % (lines, used)
        self._write(unused)
        self._fresh = True
        self._stale = False
        self._grant()
        if not self._awake:
            self._awake = True
            self._wake(self)
        return Standing(requests, tokens)

    def _write(self, lines: bytes) -> None:
        self._lines, self._answer = lines, b"%%b%bcontent-length: %%d\r\n\r\n%%b" % lines

    def _grant(self) -> None:
        """Computes how many requests may come before the next computation."""
        self._entered += self._granted - self._free
        left = self._last - self._entered
        free = min(left, self._most - self._entered + self.ended) if self._tokens_left > 0 else 0
        self._granted = self._free = max(0, free)
        self._beyond = left - self._free

    def _book(self, now: float) -> bool:
        """Counts what has been used since the last time: as if it were used now, which is a second too late at most.
        Returns whether anything was."""
        self._entered += self._granted - self._free
        self._granted = self._free = 0
        self._stale = True
        requests, tokens = self._entered - self._booked, self._tokens_seen - self._tokens_left
        self._booked, self._tokens_seen = self._entered, self._tokens_left
        self._day_tokens += tokens
        self._spent += tokens
        if requests and self._requests is not None:
            self._requests.add(requests, now)
        if tokens and self._tokens is not None:
            self._tokens.add(tokens, now)
        return bool(requests or tokens)

    def _roll(self, clock: float) -> None:
        if (today := clock // DAY) != self._day:
            self._day, self._day_tokens = today, 0

    def _limit_parallel(self) -> None:
        most = self.limits.parallel
        self._most = most - sum(self._elsewhere.values()) if most is not None else MOST


class Limiter:
    """The meters of all keys that have limits. used_today: the tokens of a key that the store knows of today."""

    def __init__(self, used_today: Callable[[str], Awaitable[int]]) -> None:
        self._used_today = used_today
        self._meters: dict[str, KeyMeter] = {}
        self._used: list[KeyMeter] = []
        """Those that want ticks."""
        self._untold: dict[KeyMeter, None] = {}
        """Those that were used since `news` found none, or still are."""
        self._early: dict[str, deque[tuple[float, str, Used]]] = {}
        """What other gateways told in the last minute of keys that were never used here: when, who, and what."""
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
                meter.elsewhere(gateway, used, at)
        elif meter.limits is not limits:
            if meter.limits != limits:
                meter.change(limits)
            meter.limits = limits
        if not meter.remembers and limits.tokens_per_day is not None:
            await self._remembered(meter)
        return meter

    def news(self, *, whole: bool) -> dict[str, Used]:
        """What was used here and other gateways don't know yet, by key. whole: with all requests at a time."""
        found: dict[str, Used] = {}
        for meter in [*self._untold]:
            if (used := meter.news(whole=whole)) is not None:
                found[meter.key] = used
            elif not meter.running:
                del self._untold[meter]
        return found

    def elsewhere(self, gateway: str, used: Mapping[str, Used], *, whole: bool) -> None:
        """What another gateway told. whole: it works on no request of any other key."""
        now = monotonic()
        for key, one in used.items():
            if (meter := self._meters.get(key)) is not None:
                meter.elsewhere(gateway, one, now)
                continue
            early = self._early.setdefault(key, deque())
            early.append((now, gateway, one))
            while early[0][0] <= now - MINUTE:
                early.popleft()
        for key, meter in self._meters.items() if whole else ():
            if key not in used and meter.is_used_by(gateway):
                meter.elsewhere(gateway, (0, 0, 0), now)

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


def parse(given: tuple[str, ...]) -> Limits | None:
    """Limits as a command line writes them: `requests/minute=60`, `models=a,b`. Raises ProviderInvalidRequest."""
    found: dict[str, int | str | tuple[str, ...]] = {}
    for each in given:
        name, _, value = each.partition("=")
        if name not in NAMES:
            raise ProviderInvalidRequest(f"{name!r} is not a limit; the limits are: {', '.join(NAMES)}")
        found[NAMES[name]] = _value(name, value)
    return Limits(**found) if found else None  # type: ignore[arg-type]  # `_value` has the types


def written(limits: Limits | None) -> str:
    """As `parse` reads them, with spaces in between; `-` for none."""
    if limits is None:
        return "-"
    given = [(name, getattr(limits, field)) for name, field in NAMES.items()]
    return " ".join(f"{name}={','.join(v) if isinstance(v, tuple) else v}" for name, v in given if v not in (None, ()))


def _value(name: str, value: str) -> int | str | tuple[str, ...]:
    if name == "models" or name == "tiers":
        values = tuple(filter(None, value.split(",")))
        if not values:
            raise ProviderInvalidRequest(f"{name}={value}: name at least one, such as {name}=a,b")
        for each in values if name == "tiers" else ():
            _check_tier(name, each)
        return values
    if name == "tier":
        _check_tier(name, value)
        return value
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:20]) <= MOST:
        raise ProviderInvalidRequest(f"{name}={value}: must be a whole number from 1")
    return int(value)


def _check_tier(name: str, tier: str) -> None:
    if tier not in TIERS:
        raise ProviderInvalidRequest(f"{name}: {tier!r} is not a service tier; the tiers are: {', '.join(TIERS)}")

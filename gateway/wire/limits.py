"""The limits of a key, and the headers in which APIs report what is left of them: OpenAI's, and Anthropic's own. No
I/O."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

from msgspec import Struct

from gateway.errors import ProviderRateLimit

Tier = Literal["priority", "default", "flex"]
"""OpenAI's `service_tier`: who goes first where requests wait for one engine or its memory."""

Headers = Sequence[tuple[bytes, bytes]]

Used = tuple[int, int, int]
"""What a gateway of a cluster tells the others of a key: requests and tokens since it told the last time, and requests
at a time."""


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of a key. None: any number; (): all."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    parallel: int | None = None
    """Requests at a time."""
    models: tuple[str, ...] = ()
    """Names or aliases."""
    tiers: tuple[Tier, ...] = ()
    """Values of `service_tier` that it may ask for."""
    tier: Tier | None = None
    """Its default."""

    @property
    def restricted(self) -> bool:
        """Whether they name models or tiers."""
        return bool(self.models or self.tiers or self.tier)


class Left(Struct, frozen=True):
    """What is left of one limit. reset: seconds until all of it is free again."""

    limit: int
    remaining: int
    reset: float


class Standing(Struct, frozen=True):
    """None: no such limit."""

    requests: Left | None = None
    tokens: Left | None = None

    def rows(self) -> list[tuple[str, Left]]:
        return [(name, left) for name, left in (("requests", self.requests), ("tokens", self.tokens)) if left]


class LimitReached(ProviderRateLimit):
    """standing: what is left, for the API's own headers."""

    def __init__(self, message: str, retry_after: float, standing: Standing) -> None:
        super().__init__(message, retry_after=retry_after)
        self.standing = standing


def openai_headers(standing: Standing, now: float) -> Headers:
    """`x-ratelimit-…`; resets are durations. now: seconds since 1970."""
    headers = []
    for name, left in standing.rows():
        values = {"limit": str(left.limit), "remaining": str(left.remaining), "reset": duration(left.reset)}
        headers += [(f"x-ratelimit-{what}-{name}".encode(), value.encode()) for what, value in values.items()]
    return headers


class HeadLines:
    """The same as lines of an answer's head. They are made once for many answers: only the numbers of requests and
    tokens that are left are filled in."""

    __slots__ = ("_day", "_head", "_if_spent", "_minute", "_whole")

    def __init__(self, limits: Limits) -> None:
        self._minute, self._day = (
            _template(limits.requests_per_minute, tokens)
            for tokens in (limits.tokens_per_minute, limits.tokens_per_day)
        )
        self._write(b"")

    def show(self, tokens: Left | None, *, of_the_day: bool) -> None:
        """tokens: what is left; None without a limit. of_the_day: the limit on a day's tokens is the tighter one."""
        if tokens is None:
            self._if_spent = self._minute
            self._write(self._minute)
            return
        lines, reset = self._day if of_the_day else self._minute, duration(tokens.reset).encode()
        self._if_spent = b"%b%b\r\n" % (lines, reset if of_the_day else FULL)
        self._write(b"%b%b\r\n" % (lines, reset))

    def spent(self) -> None:
        """Tokens are used, the first since `show`: a minute's limit is whole again a minute from now."""
        self._write(self._if_spent)

    def lines(self, requests: int, tokens: int) -> bytes:
        return self._head % (requests, tokens)

    def answer(self, head: bytes, requests: int, tokens: int, body: bytes) -> bytes:
        """A whole answer: `head`, `lines`, the length of the body, and the body. To write the numbers along with the
        rest costs less than half."""
        return self._whole % (head, requests, tokens, len(body), body)

    def _write(self, lines: bytes) -> None:
        self._head, self._whole = lines, b"%%b%bcontent-length: %%d\r\n\r\n%%b" % lines


def _template(requests: int | None, tokens: int | None) -> bytes:
    """Header lines as a template for `%`: requests left, tokens left. The caller appends the token reset and CRLF."""
    lines = b"%b%b\r\n" % (_LEFT % (b"requests", requests, b"requests", b"requests"), FULL) if requests else b"%.0a"
    return lines + (_LEFT % (b"tokens", tokens, b"tokens", b"tokens") if tokens else b"%.0a")


_LEFT = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: "
FULL = b"1m1s"
"""The reset of a minute's limit to which something has just been counted."""


def anthropic_headers(standing: Standing, now: float) -> Headers:
    """`anthropic-ratelimit-…`; resets are times. now: seconds since 1970."""
    from datetime import UTC, datetime, timedelta  # the start needn't wait for it

    headers = []
    for name, left in standing.rows():
        at = datetime.fromtimestamp(now, UTC) + timedelta(seconds=ceil(left.reset))
        reset = at.isoformat(timespec="seconds").replace("+00:00", "Z")
        values = {"limit": str(left.limit), "remaining": str(left.remaining), "reset": reset}
        headers += [(f"anthropic-ratelimit-{name}-{what}".encode(), value.encode()) for what, value in values.items()]
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes one: `1h2m3s`."""
    whole = max(0, ceil(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if hours or minutes else "", f"{rest}s"]
    return "".join(parts)

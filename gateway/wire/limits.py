"""The headers in which APIs report what is left of a key's limits: OpenAI's, and Anthropic's own. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

Headers = Sequence[tuple[bytes, bytes]]

Used = tuple[int, int, int]
"""What a gateway of a cluster tells the others of a key: requests and tokens since it told the last time, and requests
at a time."""


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


def openai_headers(standing: Standing, now: float) -> Headers:
    """`x-ratelimit-…`; resets are durations. now: seconds since 1970."""
    headers = []
    for name, left in standing.rows():
        values = {"limit": str(left.limit), "remaining": str(left.remaining), "reset": duration(left.reset)}
        headers += [(f"x-ratelimit-{what}-{name}".encode(), value.encode()) for what, value in values.items()]
    return headers


def openai_lines(requests: int | None, tokens: int | None) -> bytes:
    """The same as lines of an answer's head, for `%`: requests left, tokens left. Of tokens, their reset and the line's
    end are missing. requests, tokens: the limits; None for none."""
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

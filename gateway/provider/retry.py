"""Retries, above the contract: a provider itself never retries (OpenArmature §5, §7 retry classification)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import Backoff, GatewayError
from gateway.provider.response import Response

ResultT = TypeVar("ResultT")

BASE = 1.0
CAP = 30.0


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later: unavailable, rate limit, model not loaded."""
    return isinstance(error, GatewayError) and error.transient


def full_jitter(attempt: int, base: float = BASE, cap: float = CAP) -> float:
    """Seconds to wait after failed attempt `attempt` (0 is the first): anything up to base · 2^attempt, at most cap."""
    return Backoff(base, cap, jitter=1.0).delay(attempt + 1)


async def retry(
    call: Callable[[], Awaitable[ResultT]],
    *,
    max_attempts: int = 4,
    transient: Callable[[Exception], bool] = is_transient,
    backoff: Callable[[int], float] = full_jitter,
    max_wait: float = CAP,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> ResultT:
    """Repeats a call until it succeeds or fails for good, max_attempts times: `retry(lambda: p.complete(messages))`.

    A Response with finish_reason `error` is transient too; after the last attempt it is returned as it is. Waits at
    least as long as the server's Retry-After says; one beyond max_wait seconds ends the attempts, since the server
    would refuse earlier ones. Never retries a cancellation. Retries only the opening of a Stream: its deltas can't be
    taken back.

    Raises the last attempt's error, and ValueError for max_attempts below 1.
    """
    if max_attempts < 1:
        raise ValueError("max_attempts must be at least 1")
    for attempt in range(max_attempts - 1):
        asked = 0.0
        try:
            result = await call()
            if not (isinstance(result, Response) and result.finish_reason == "error"):
                return result
        except Exception as error:
            asked = getattr(error, "retry_after", None) or 0.0
            if not transient(error) or asked > max_wait:
                raise
        await sleep(max(asked, backoff(attempt)))
    return await call()

"""Retry, above the contract: a provider itself never retries (OpenArmature §5, §7 retry classification)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import GatewayError
from gateway.provider.response import Response

ResultT = TypeVar("ResultT")

BASE = 1.0
CAP = 30.0


def is_transient(error: Exception) -> bool:
    """The categories for which the same request may succeed later: unavailable, rate limit, model not loaded."""
    return isinstance(error, GatewayError) and error.transient


def full_jitter(attempt: int, base: float = BASE, cap: float = CAP) -> float:
    """Seconds to wait after failed attempt `attempt` (0 is the first): anything up to base · 2^attempt, at most cap."""
    return random.uniform(0.0, min(cap, base * 2.0 ** min(attempt, 64)))  # noqa: S311 - spreads load, guards nothing


async def retry(
    call: Callable[[], Awaitable[ResultT]],
    *,
    max_attempts: int = 4,
    transient: Callable[[Exception], bool] = is_transient,
    backoff: Callable[[int], float] = full_jitter,
    max_wait: float = CAP,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> ResultT:
    """Calls until one call succeeds, fails for good, or max_attempts are made: `retry(lambda: p.complete(messages))`.

    A Response whose finish_reason is `error` is transient too; the last one is returned as it is. A server's
    Retry-After lengthens the wait; one beyond max_wait seconds ends the attempts, since earlier ones would
    be refused. Cancellation is never retried. Of a Stream only the opening is: what was shown can't be unsaid.

    Raises the last attempt's error, ValueError for max_attempts below 1.
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

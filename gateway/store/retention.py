"""Prunes expired rows while the store is open. Never opens the store just for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.errors import GatewayError
from gateway.feature import imported

if TYPE_CHECKING:
    from gateway.store import Store

FIRST_SECONDS, EVERY_SECONDS = 60.0, 3600.0

Prune = Callable[["Store", Config, float], Awaitable[int]]
"""(store, configuration, now in seconds since 1970) → how many things were deleted. Writes are short."""

log = logging.getLogger("ctxgate")


async def prune_all(store: Store, config: Config, prunes: Sequence[str], now: float) -> int:
    """Runs every prune; returns how many things were deleted. prunes: import strings of `Prune`.

    A failure goes to the log and doesn't stop the others.
    """
    deleted = 0
    for name in prunes:
        prune: Prune = imported(name)
        try:
            deleted += await prune(store, config, now)
        except Exception as error:
            log.warning("can't delete expired rows: %s", error, exc_info=not isinstance(error, GatewayError | OSError))
    return deleted


async def keep_pruned(store: Store, config: Callable[[], Config], prunes: Sequence[str]) -> None:
    """Runs until cancelled: a minute after the start, then every hour."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await prune_all(store, config(), prunes, store.clock.now())
        await asyncio.sleep(EVERY_SECONDS)

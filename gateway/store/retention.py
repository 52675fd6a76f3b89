"""What is too old leaves the store, while it is open anyway: nothing opens it for this."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.store import Store

FIRST_SECONDS, EVERY_SECONDS = 60.0, 3600.0

Prune = Callable[["Store", Config, float], Awaitable[int]]
"""The store, how long things are kept, and what time it is (seconds since 1970) → how many of them went. Each of its
writes is short."""

log = logging.getLogger("ctxgate")


async def prune_all(store: Store, config: Config, prunes: Sequence[str], now: float) -> int:
    """prunes: import strings of `Prune`. One that fails is told in the log, and keeps no other from its work."""
    gone = 0
    for name in prunes:
        module, _, attribute = name.partition(":")
        prune: Prune = getattr(import_module(module), attribute)
        try:
            gone += await prune(store, config, now)
        except (GatewayError, OSError) as error:
            log.warning("what is too old can't be removed: %s", error)
    return gone


async def keep_pruned(
    store: Store, config: Callable[[], Config], prunes: Sequence[str], clock: Callable[[], float] = time.time
) -> None:
    """For ever: a minute after the start, then each hour."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await prune_all(store, config(), prunes, clock())
        await asyncio.sleep(EVERY_SECONDS)

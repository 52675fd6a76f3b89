"""Work that takes longer the more a client sends runs beside the event loop, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from gateway.observe.shares import Workers

LARGE = 256 * 1024
"""Bytes. Work on less takes a few milliseconds, and no thread."""

Result = TypeVar("Result")


@cache
def _executor() -> Workers:
    """One thread: of several, each could make the event loop wait for its turn. `gateway.wire.values` bounds how long a
    piece of work takes; `server.max_bodies_bytes` how many can wait."""
    return Workers(1, name="large bodies")


async def in_thread_if_large(size: int, work: Callable[..., Result], *arguments: object) -> Result:
    """Returns and raises what `work` does. It must touch nothing that changes meanwhile.

    size: bytes of JSON, about, that it works on.
    """
    return await in_thread_if(size > LARGE, work, *arguments)


async def in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """As `in_thread_if_large`, however little there is to work on."""
    return await asyncio.get_running_loop().run_in_executor(_executor(), work, *arguments)


async def in_thread_if(large: bool, work: Callable[..., Result], *arguments: object) -> Result:
    """As `in_thread` if there is much to work on, else at once."""
    return await in_thread(work, *arguments) if large else work(*arguments)

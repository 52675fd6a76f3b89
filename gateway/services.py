"""The services that the composition root passes to the APIs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from gateway.core import Gateway
from gateway.core.reload import Reloader
from gateway.errors import GatewayError
from gateway.feature import offered
from gateway.observe.vitals import Vitals

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.observe.request_log import Total, UsageKey
    from gateway.store import Store


log = logging.getLogger("ctxgate")

USAGE_SECONDS = 60.0
"""How often usage is written to the store; a kill may lose this much."""


class Closing(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=Closing)


class Services:
    """The gateway; the store, which opens on first use; and the objects that requests share."""

    def __init__(self, gateway: Gateway, reloader: Reloader | None = None, prunes: Sequence[str] = ()) -> None:
        """reloader: None for a gateway that wasn't started from a file. prunes: see `gateway.store.retention`."""
        self.gateway = gateway
        self.reloader = reloader
        self.vitals = Vitals()
        self.ending = asyncio.Event()
        """Set once the server takes no more requests: endless streams end then."""
        self._opening: asyncio.Task[Store] | None = None
        self._prunes = prunes
        self._pruning: asyncio.Task[None] | None = None
        self._shared: dict[object, Closing] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None

    def shared(self, make: Callable[[Services], T]) -> T:
        """The one object of its kind in this process, made on first use."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return cast(T, self._shared[make])

    async def close_shared(self) -> None:
        """Closes every shared object, also after one of them failed to close."""
        async with AsyncExitStack() as stack:
            for shared in self._shared.values():
                stack.push_async_callback(shared.aclose)

    async def store(self) -> Store:
        """The one store of this process, with its tables. Raises ProviderUnavailable if it can't be opened."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="open the store")
        opening = self._opening
        try:
            # A caller that gives up must not cancel the opening for the others.
            return await asyncio.shield(opening)
        except BaseException:
            failed = opening.done() and (opening.cancelled() or opening.exception() is not None)
            if failed and self._opening is opening:
                self._opening = None
            raise

    def keep_usage(self) -> None:
        """Saves the usage every USAGE_SECONDS, and once more when the services close."""
        self._keeping = asyncio.create_task(self._keep_usage(), name="keep usage")

    async def save_usage(self) -> None:
        """Adds the usage since the last call to the store. Raises what the store raises; nothing is lost then."""
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_usage(), name="save usage")
        # A caller that gives up must not leave a write whose outcome nobody learns.
        await asyncio.shield(self._saving)

    async def tokens_today(self, key: str) -> int:
        """Tokens that a key used today (UTC), also before this process started. Raises what the store raises."""
        if not self.gateway.config.log.usage_days:
            return 0
        tokens: Callable[[Store, str], Awaitable[int]] = offered("tokens_today")
        await self.save_usage()
        return await tokens(await self.store(), key)

    async def _keep_usage(self) -> None:
        while True:
            await asyncio.sleep(USAGE_SECONDS)
            await self._save_or_warn()

    async def _save_or_warn(self) -> None:
        try:
            await self.save_usage()
        except (GatewayError, OSError) as error:
            log.warning("can't save the usage of models: %s", error)

    async def _save_usage(self) -> None:
        request_log = self.gateway.request_log
        request_log.settle()
        totals = request_log.usage.take()
        if not totals or not self.gateway.config.log.usage_days:
            return
        try:
            add: Callable[[Store, Mapping[UsageKey, Total]], Awaitable[None]] = offered("add_usage")
            await add(await self.store(), totals)
        except BaseException:
            request_log.usage.put_back(totals)
            raise

    async def _open(self) -> Store:
        from gateway.store import Store
        from gateway.store.retention import keep_pruned

        store = await Store.open(store_url(self.gateway.config))
        pool = self.gateway.pool
        store.holder = pool.address if pool is not None else None
        pruning = keep_pruned(store, lambda: self.gateway.config, self._prunes)
        self._pruning = asyncio.create_task(pruning, name="prune the store")
        return store

    async def aclose(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            if self._saving is not None:
                await asyncio.wait({self._saving})
            await self._save_or_warn()
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.wait({self._pruning})
        if self._opening is not None:
            opening, self._opening = self._opening, None
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().aclose()


def store_url(config: Config) -> str:
    """The store's URL for SQLAlchemy."""
    return config.store or f"sqlite:///{config.state_dir / 'ctxgate.db'}"

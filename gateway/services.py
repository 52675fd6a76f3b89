"""What the composition root hands to the APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from gateway.core import Gateway
from gateway.core.reload import Reloader
from gateway.observe.vitals import Vitals

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.store import Store


class Closing(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=Closing)


class Services:
    """The gateway, the store, which opens on first use, and what several requests share."""

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

    async def _open(self) -> Store:
        from gateway.store import Store
        from gateway.store.retention import keep_pruned

        store = await Store.open(store_url(self.gateway.config))
        pruning = keep_pruned(store, lambda: self.gateway.config, self._prunes)
        self._pruning = asyncio.create_task(pruning, name="prune the store")
        return store

    async def aclose(self) -> None:
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

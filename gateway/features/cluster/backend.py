"""The engines of one model in the cluster, as one backend of this gateway."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import TypeVar

from msgspec import Raw
from msgspec.structs import replace
from pydantic import SecretStr

from gateway import backends
from gateway.backends import Address, Backend
from gateway.backends.replicas import Replica, Replicas, parts
from gateway.config import Config, Model
from gateway.errors import GatewayError, ProviderModelNotLoaded, ProviderRateLimit, ProviderUnavailable
from gateway.features.cluster.prompts import ClusterPlaces, NoPlaces, Rate
from gateway.features.cluster.settings import Cluster
from gateway.features.cluster.values import EngineRow, Failed, fingerprint
from gateway.observe.shares import Tally

AGAIN_SECONDS = 0.25
"""Seconds until a request whose engines all failed tries them again, unless the cluster gets another engine first."""

T = TypeVar("T")


class Engine(Replica):
    """One engine of the cluster. others: requests of other gateways, by gateway."""

    def __init__(self, row: EngineRow, backend: Backend) -> None:
        super().__init__(row.url, backend)
        self.row = row
        self.others: dict[str, int] = {}
        self.news: list[int] = []
        """Prompts that the engine has read and that other gateways haven't heard of yet."""
        self.places: ClusterPlaces | None = None

    async def aclose(self) -> None:
        if self.places is not None:
            await self.places.aclose()
        await self.backend.aclose()


class Shared:
    """What the backends of all models share with their gateway. changed: called when there is something to send to the
    cluster; at once: somebody waits for it."""

    def __init__(self, config: Callable[[], Config], changed: Callable[[bool], None]) -> None:
        self.config = config
        self.changed = changed
        self.key: SecretStr | None = None
        """The key that engines require; None until it is read from the store."""
        self.away = ""
        """Why no engine can be started at the moment."""


class ClusterBackend(Replicas):
    """Sends requests to the engines that the placer published. Requests wait here while there is none."""

    def __init__(self, model: Model, shared: Shared) -> None:
        self._type = backends.load(model.runtime)
        super().__init__(model, (), self._type)
        self.engines: dict[str, Engine] = {}
        self.waiting = Tally()
        self._tls = shared.config().section(Cluster).tls
        self._fingerprint = fingerprint(model, self._tls)
        self._shared = shared
        self._news = asyncio.Event()
        self._failure: GatewayError | None = None
        self._rate = Rate()
        self._closing: set[asyncio.Task[None]] = set()

    # What the cluster tells

    def update(self, rows: Iterable[EngineRow]) -> None:
        """Sets the current engines, of this model and of others."""
        ours = {row.id: row for row in rows if row.model == self.model.name and row.launch == self._fingerprint}
        for id, row in ours.items():
            if (engine := self.engines.get(id)) is None:
                self._join(row)
            elif engine.row != row:
                engine.row = row
                if row.state == "draining":
                    self._part(engine)
        for id in [*self.engines]:
            if id not in ours:
                engine = self.engines.pop(id)
                self._part(engine)
                # If its node vanished without closing its connections, this ends its answers with an error.
                self._later(engine.aclose())
        self._tell()

    def failed(self, failed: Failed) -> None:
        self._failure = ProviderModelNotLoaded(
            f"model {self.model.name!r}: {failed.why}", code=failed.code, retry_after=5
        )
        self._tell()

    def others(self, gateway: str, engine: Engine, busy: int) -> None:
        """Notes how many requests another gateway has at the engine."""
        change = busy - engine.others.get(gateway, 0)
        if busy:
            engine.others[gateway] = busy
        else:
            engine.others.pop(gateway, None)
        if change:
            self._choice.change(engine, change)

    def has_read(self, engine: Engine, prompts: Iterable[int]) -> None:
        """Notes prompts that another gateway sent to the engine."""
        self._choice.remember(engine, prompts)

    async def aclose(self) -> None:
        await asyncio.gather(*(each.places.aclose() for each in self.engines.values() if each.places is not None))
        await super().aclose()

    # Requests

    def prefixes(self, fields: dict[str, Raw]) -> list[int]:
        if self._shared.key is None:
            return []  # no engine is known yet, either
        if "messages" not in fields:
            return []
        # The same in every gateway, and of no use to anyone who wants to guess the texts.
        hasher = blake2b(digest_size=8, key=self._shared.key.get_secret_value().encode())
        if "tools" in fields:
            hasher.update(fields["tools"])
        found: list[int] = []
        for message in parts(fields["messages"]):
            hasher.update(message)
            found.append(int.from_bytes(hasher.copy().digest(), "little", signed=True))
        return found

    async def ready(self) -> None:
        """Starts nothing. Raises ProviderModelNotLoaded while the model has no engine."""
        if not self._replicas:
            raise ProviderModelNotLoaded(
                f"model {self.model.name!r}: no engine runs in the cluster; the next request starts one", retry_after=5
            )
        await super().ready()

    async def load(self, keep_alive: float | None) -> None:
        """Returns once the model has an engine in the cluster."""
        if keep_alive == 0:
            await super().load(keep_alive)
        await self._ask_each([], lambda backend: backend.ready())

    async def _ask_each(self, prefixes: list[int], ask: Callable[[Backend], Awaitable[T]]) -> tuple[Replica, T]:
        """Like `Replicas`, but waits while there is no engine, or none that answers.

        Raises ProviderRateLimit if too many requests wait already, ProviderModelNotLoaded if none came in time.
        """
        deadline = 0.0
        while True:
            if self._replicas:
                try:
                    replica, found = await super()._ask_each(prefixes, ask)
                except (ProviderUnavailable, ProviderModelNotLoaded):
                    if deadline and time.monotonic() >= deadline:
                        raise
                else:
                    if prefixes and isinstance(replica, Engine):
                        replica.news += [prefixes[0], prefixes[-1]]
                        self._shared.changed(False)
                    return replica, found
            deadline = deadline or time.monotonic() + self._shared.config().engines.queue_timeout_seconds
            await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        if self._shared.away and not self._replicas:
            raise ProviderModelNotLoaded(
                f"model {self.model.name!r}: none of its engines runs, and none can be started: {self._shared.away}",
                code="ray_unavailable",
                retry_after=5,
            )
        limits = self._shared.config().engines
        if not self.waiting.has_room(limits.queue_length):
            raise ProviderRateLimit(
                f"model {self.model.name!r}: {self.waiting.all} requests are already waiting for an engine of the "
                "cluster",
                retry_after=5,
            )
        try:
            with self.waiting.one_more():
                self._shared.changed(True)
                async with asyncio.timeout(AGAIN_SECONDS if self._replicas else deadline - time.monotonic()):
                    await self._news.wait()
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise ProviderModelNotLoaded(
                    f"model {self.model.name!r}: the cluster had no engine for it within"
                    f" {limits.queue_timeout_seconds:g} s (engines.queue_timeout_seconds)",
                    code="queue_timeout",
                    retry_after=5,
                ) from None
        finally:
            self._shared.changed(False)
        failure, self._failure = self._failure, None
        if failure is not None and not self._replicas:
            raise failure

    def _count(self, replica: Replica, change: int) -> None:
        super()._count(replica, change)
        self._shared.changed(False)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _join(self, row: EngineRow) -> None:
        model = replace(
            self.model,
            api_key=self._shared.key,
            connect_timeout=min(2.0, self.model.connect_timeout),
            ca_file=self._tls.ca_file if self._tls is not None else None,
        )
        engine = Engine(row, self._type(model, Address.parse(row.url)))
        self.engines[row.id] = engine
        if row.places and self._shared.key is not None:
            # Others restore what it has read sooner than one of its slots is free.
            engine.slots = row.slots
            engine.places = self._places(row, self._shared.key)
            engine.backend.ask_for_places(engine.places)
        else:
            engine.backend.ask_for_places(NoPlaces())
        self._failure = None
        if row.state == "ready":
            self._replicas.append(engine)
            self._choice.add(engine)

    def _places(self, row: EngineRow, key: SecretStr) -> ClusterPlaces:
        tls = ssl.create_default_context(cafile=self._tls.ca_file) if self._tls is not None else None
        host = Address.parse(row.url).host
        return ClusterPlaces(
            host, row.places, tls, key.get_secret_value(), lambda: self._shared.config().prompts, self._rate
        )

    def _part(self, engine: Engine) -> None:
        """Sends no further requests there; those in flight continue."""
        if engine in self._replicas:
            self._replicas.remove(engine)
            self._choice.remove(engine)
        if (probing := self._probing.get(engine)) is not None:
            probing.cancel()

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

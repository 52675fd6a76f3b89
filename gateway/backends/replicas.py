"""Several servers of one model, as one backend.

Among the servers about as busy as the least busy one, picks the one that has read the most of the prompt before: its
cache saves the work. Skips a server that failed and probes it until it answers. A request that a server didn't accept
goes to the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from itertools import count
from typing import TypeVar

import msgspec
from msgspec import Raw

from gateway.backends.about import About
from gateway.backends.base import (
    Address,
    Backend,
    DirectReply,
    Endpoint,
    Forward,
    ReplicaStatus,
    Reply,
    TrackedForwarded,
    WrappedReply,
)
from gateway.backends.choice import BalancedServer, ServerChoice
from gateway.config import Model
from gateway.config.hidden import hider
from gateway.errors import Backoff, GatewayError, ProviderModelNotLoaded, ProviderRateLimit, ProviderUnavailable
from gateway.wire.chat import ChatRequest
from gateway.wire.control_tokens import ControlTokens
from gateway.wire.engine import Notation, RawText

PROBES = Backoff(0.5, 30.0)
"""Pause between the probes of a failed server."""

T = TypeVar("T")

log = logging.getLogger("ctxgate")
parts = msgspec.json.Decoder(list[Raw]).decode


class Replica(BalancedServer):
    """One of the servers, with its backend. in_flight: requests of this gateway that it works on."""

    def __init__(self, url: str, backend: Backend) -> None:
        super().__init__()
        self.url = url
        self.backend = backend
        self.in_flight = 0


class Replicas(Backend):
    """A backend that distributes requests over several others."""

    replays = 3

    def __init__(self, model: Model, replicas: Collection[Replica], kind: type[Backend]) -> None:
        """kind: the class of the servers' own backends."""
        super().__init__(model, None)
        self._replicas = [*replicas]
        self._choice: ServerChoice[Replica] = ServerChoice()
        for replica in replicas:
            self._choice.add(replica)
        self._kind = kind(model, Address())
        """Represents all of them; never sends a request."""
        self.escapes, self.separates = self._kind.escapes, self._kind.separates
        self._probing: dict[Replica, asyncio.Task[None]] = {}
        self._closed = False

    def replicas(self) -> list[ReplicaStatus]:
        return [ReplicaStatus(one.url, one.healthy, one.in_flight, one.asked) for one in self._replicas]

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Reply:
        return await self._try_each(request.fields, lambda backend: backend.open(request, dict(fields)))

    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> Reply:
        return await self._try_each(request.fields, lambda backend: backend.open_raw(request, dict(fields), raw))

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> Reply:
        return await self._try_each({}, lambda backend: backend.post(endpoint, dict(fields)))

    async def post_for(self, owner: str, endpoint: Endpoint, fields: dict[str, Raw]) -> CountedReply:
        return await self._try_each({}, lambda backend: backend.post_for(owner, endpoint, dict(fields)))

    async def forward(self, sent: Forward) -> TrackedForwarded:
        replica, answer = await self._ask_each([], lambda backend: backend.forward(sent))
        return TrackedForwarded(answer, lambda: self._count(replica, -1))

    async def count_tokens(self, fields: dict[str, Raw]) -> int | None:
        return await self._of_any(lambda backend: backend.count_tokens(fields))

    def error(self, status: int, body: bytes) -> GatewayError:
        return self._kind.error(status, body)

    async def ready(self) -> None:
        """Returns if one of the servers is ready. Raises the last one's error."""
        last: GatewayError | None = None
        for replica in self._replicas:
            try:
                await replica.backend.ready()
            except GatewayError as error:
                last = error
                self._failed(replica, error)
            else:
                return
        assert last is not None
        raise last

    async def notation(self) -> Notation | None:
        return await self._of_any(lambda backend: backend.notation())

    async def takes_tools(self) -> bool:
        return await self._of_any(lambda backend: backend.takes_tools())

    async def keeps_calls(self) -> bool:
        return await self._of_any(lambda backend: backend.keeps_calls())

    async def control_tokens(self) -> ControlTokens | None:
        return await self._of_any(lambda backend: backend.control_tokens())

    async def about(self) -> About:
        return await self._of_any(lambda backend: backend.about())

    async def aclose(self) -> None:
        self._closed = True
        for task in self._probing.values():
            task.cancel()
        await asyncio.gather(*self._probing.values(), return_exceptions=True)
        for replica in self._replicas:
            await replica.backend.aclose()

    def prefixes(self, fields: dict[str, Raw]) -> list[int]:
        """Hashes of the prompt up to each message, ordered by length."""
        if "messages" not in fields:
            return []
        found: list[int] = []
        # Tools first, as in most templates.
        before = hash(bytes(fields["tools"])) if "tools" in fields else 0
        for message in parts(fields["messages"]):
            before = hash((before, bytes(message)))
            found.append(before)
        return found

    async def _try_each(self, fields: dict[str, Raw], ask: Callable[[Backend], Awaitable[Reply]]) -> CountedReply:
        replica, reply = await self._ask_each(self.prefixes(fields), ask)
        return CountedReply(reply, replica, self._count, self._failed)

    async def _of_any(self, ask: Callable[[Backend], Awaitable[T]]) -> T:
        """The answer of one of the servers to a question about the model."""
        replica, answer = await self._ask_each([], ask)
        self._count(replica, -1)
        return answer

    async def _ask_each(self, prefixes: list[int], ask: Callable[[Backend], Awaitable[T]]) -> tuple[Replica, T]:
        """Asks each server at most once, until one accepts; it counts as busy then. Raises the last one's error."""
        tried: list[Replica] = []
        last: GatewayError | None = None
        while (replica := self._choice.pick(prefixes, tried)) is not None:
            tried.append(replica)
            replica.asked += 1
            self._count(replica, 1)
            try:
                found = await ask(replica.backend)
            except (ProviderUnavailable, ProviderModelNotLoaded, ProviderRateLimit) as error:
                self._count(replica, -1)
                last = error
                if not isinstance(error, ProviderRateLimit):
                    self._failed(replica, error)
            except BaseException:
                self._count(replica, -1)
                raise
            else:
                self._choice.judge(replica, healthy=True)
                self._choice.remember(replica, prefixes)
                return replica, found
        assert last is not None
        raise last

    def _count(self, replica: Replica, change: int) -> None:
        """A request begins or ends."""
        replica.in_flight += change
        self._choice.change(replica, change)

    def _failed(self, replica: Replica, error: GatewayError) -> None:
        if replica.healthy:
            log.warning("model %s: %s failed, skipping it: %s", self.model.name, replica.url, error)
        self._choice.judge(replica, healthy=False)
        if replica not in self._probing and not self._closed:
            probing = self._probing[replica] = asyncio.create_task(self._probe(replica), name=f"probe {replica.url}")
            probing.add_done_callback(lambda _: self._probing.pop(replica, None))

    async def _probe(self, replica: Replica) -> None:
        for failures in count(1):
            await asyncio.sleep(PROBES.delay(failures))
            if replica.healthy:
                return
            try:
                await replica.backend.ready()
            except GatewayError as error:
                log.debug("model %s: %s still fails: %s", self.model.name, replica.url, error)
            else:
                self._choice.judge(replica, healthy=True)
                log.info("model %s: %s answers again", self.model.name, replica.url)
                return


class CountedReply(WrappedReply):
    """A reply that counts towards its server's load until it is closed."""

    __slots__ = ("_count", "_failed", "_replica")

    def __init__(
        self,
        reply: Reply,
        replica: Replica,
        count: Callable[[Replica, int], None],
        failed: Callable[[Replica, GatewayError], None],
    ) -> None:
        super().__init__(reply)
        self._replica: Replica | None = replica
        self._count = count
        self._failed = failed

    async def whole(self) -> bytes:
        try:
            return await self._reply.whole()
        except ProviderUnavailable as error:
            self._lost(error)
            raise

    async def payloads(self) -> list[bytes]:
        try:
            return await self._reply.payloads()
        except ProviderUnavailable as error:
            self._lost(error)
            raise

    def direct(self) -> DirectReply | None:
        return self._reply.direct()

    def close(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            self._count(replica, -1)
        self._reply.close()

    def _lost(self, error: GatewayError) -> None:
        if self._replica is not None:
            self._failed(self._replica, error)


def replicas(model: Model, backend: type[Backend]) -> Replicas:
    """One backend for all of `model.replicas`."""
    hide = hider(model.secrets)
    servers = [Replica(hide(url), backend(model, Address.parse(url))) for url in model.replicas]
    return Replicas(model, servers, backend)

"""Several servers that have one model, as one backend.

Among those that are about as busy as the least busy one, the one is asked that has read most of the prompt before: its
cache spares it the work. One that fails is left out and probed until it answers again; a request that no server has
accepted goes to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from itertools import count

import msgspec
from msgspec import Raw

from gateway.backends.about import About
from gateway.backends.base import Address, Backend, DirectReply, Endpoint, ReplicaStatus, Reply
from gateway.config import Model
from gateway.errors import Backoff, GatewayError, ProviderModelNotLoaded, ProviderRateLimit, ProviderUnavailable
from gateway.wire.chat import ChatRequest
from gateway.wire.engine import Fixup, RawText

SLACK = 2
"""Requests that a server may have more than the least busy one, and still be asked for the sake of its cache."""
REMEMBERED = 4096
"""Beginnings of prompts, for each server."""
PROBES = Backoff(0.5, 30.0)
"""Between the probes of a server that failed."""

log = logging.getLogger("ctxgate")
_parts = msgspec.json.Decoder(list[Raw]).decode


class Replica:
    """One of the servers. healthy: it answered when it was last asked."""

    def __init__(self, url: str, backend: Backend) -> None:
        self.url = url
        self.backend = backend
        self.in_flight = 0
        self.healthy = True
        self.asked = 0
        self._read: OrderedDict[int, None] = OrderedDict()

    def known(self, beginnings: list[int]) -> int:
        """How many of them, the shortest first, it has read."""
        return next((at for at in range(len(beginnings), 0, -1) if beginnings[at - 1] in self._read), 0)

    def reads(self, beginnings: list[int]) -> None:
        for beginning in beginnings:
            self._read[beginning] = None
            self._read.move_to_end(beginning)
        while len(self._read) > REMEMBERED:
            self._read.popitem(last=False)


class Replicas(Backend):
    """A backend before several others."""

    def __init__(self, model: Model, replicas: list[Replica]) -> None:
        super().__init__(model, None)
        self._replicas = replicas
        self.gives_raw_text = replicas[0].backend.gives_raw_text
        self._probing: dict[Replica, asyncio.Task[None]] = {}
        self._closed = False

    def replicas(self) -> list[ReplicaStatus]:
        return [ReplicaStatus(one.url, one.healthy, one.in_flight, one.asked) for one in self._replicas]

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Reply:
        return await self._asked(request.fields, lambda backend: backend.open(request, dict(fields)))

    async def open_raw(self, request: ChatRequest, fields: dict[str, Raw], raw: RawText) -> Reply:
        return await self._asked(request.fields, lambda backend: backend.open_raw(request, dict(fields), raw))

    async def post(self, endpoint: Endpoint, fields: dict[str, Raw]) -> Reply:
        return await self._asked({}, lambda backend: backend.post(endpoint, dict(fields)))

    async def count_tokens(self, fields: dict[str, Raw]) -> int | None:
        return await self._any().count_tokens(fields)

    def error(self, status: int, body: bytes) -> GatewayError:
        return self._replicas[0].backend.error(status, body)

    async def ready(self) -> None:
        """Returns if one of the servers is ready. Raises what the last one says."""
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

    async def takes_tools(self) -> bool:
        return await self._any().takes_tools()

    async def keeps_calls(self) -> bool:
        return await self._any().keeps_calls()

    async def about(self) -> About:
        return await self._any().about()

    async def aclose(self) -> None:
        self._closed = True
        for task in self._probing.values():
            task.cancel()
        await asyncio.gather(*self._probing.values(), return_exceptions=True)
        for replica in self._replicas:
            await replica.backend.aclose()

    def pick(self, beginnings: list[int], without: Collection[Replica] = ()) -> Replica | None:
        """The server to ask; one that failed only where there is no other. None: all are in `without`."""
        left = [replica for replica in self._replicas if replica not in without]
        left = [replica for replica in left if replica.healthy] or left
        if not left:
            return None
        most = min(replica.in_flight for replica in left) + SLACK
        free = [replica for replica in left if replica.in_flight < most]
        return min(free, key=lambda replica: (-replica.known(beginnings), replica.in_flight, replica.asked))

    async def _asked(self, fields: dict[str, Raw], ask: Callable[[Backend], Awaitable[Reply]]) -> CountedReply:
        """Each server is asked once at most. Raises what the last one says."""
        beginnings = _beginnings(fields)
        tried: list[Replica] = []
        last: GatewayError | None = None
        while (replica := self.pick(beginnings, tried)) is not None:
            tried.append(replica)
            replica.in_flight += 1
            replica.asked += 1
            try:
                reply = await ask(replica.backend)
            except (ProviderUnavailable, ProviderModelNotLoaded, ProviderRateLimit) as error:
                replica.in_flight -= 1
                last = error
                if not isinstance(error, ProviderRateLimit):
                    self._failed(replica, error)
            except BaseException:
                replica.in_flight -= 1
                raise
            else:
                replica.healthy = True
                replica.reads(beginnings)
                return CountedReply(reply, replica, self._failed)
        assert last is not None
        raise last

    def _any(self) -> Backend:
        return next((replica for replica in self._replicas if replica.healthy), self._replicas[0]).backend

    def _failed(self, replica: Replica, error: GatewayError) -> None:
        if replica.healthy:
            log.warning("model %s: %s is left out: %s", self.model.name, replica.url, error)
        replica.healthy = False
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
                log.debug("model %s: %s isn't back: %s", self.model.name, replica.url, error)
            else:
                replica.healthy = True
                log.info("model %s: %s is back", self.model.name, replica.url)
                return


class CountedReply(Reply):
    """A reply that counts as its server's until it is closed."""

    __slots__ = ("_failed", "_replica", "_reply")

    def __init__(self, reply: Reply, replica: Replica, failed: Callable[[Replica, GatewayError], None]) -> None:
        self._reply = reply
        self._replica: Replica | None = replica
        self._failed = failed

    @property
    def fixup(self) -> Fixup | None:  # type: ignore[override]
        return self._reply.fixup

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self._reply.done

    @property
    def reasoning_open(self) -> bool:  # type: ignore[override]
        return self._reply.reasoning_open

    @property
    def by_grammar(self) -> bool:  # type: ignore[override]
        return self._reply.by_grammar

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
            replica.in_flight -= 1
        self._reply.close()

    def _lost(self, error: GatewayError) -> None:
        if self._replica is not None:
            self._failed(self._replica, error)


def replicas(model: Model, backend: type[Backend]) -> Replicas:
    """The backends of `model.replicas`, as one."""
    return Replicas(model, [Replica(url, backend(model, Address.parse(url))) for url in model.replicas])


def _beginnings(fields: dict[str, Raw]) -> list[int]:
    """A hash for each message, of the prompt up to it: the tools come first, as in most templates."""
    if "messages" not in fields:
        return []
    found: list[int] = []
    before = hash(bytes(fields["tools"])) if "tools" in fields else 0
    for message in _parts(fields["messages"]):
        before = hash((before, bytes(message)))
        found.append(before)
    return found

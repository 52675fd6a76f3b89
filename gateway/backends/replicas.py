"""Several servers of one model, as one backend.

Among the servers about as busy as the least busy one, picks the one that has read the most of the prompt before: its
cache saves the work. Skips a server that failed and probes it until it answers. A request that a server didn't accept
goes to the next one.
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
from gateway.config.hidden import hider
from gateway.errors import Backoff, GatewayError, ProviderModelNotLoaded, ProviderRateLimit, ProviderUnavailable
from gateway.wire.chat import ChatRequest
from gateway.wire.control_tokens import ControlTokens
from gateway.wire.engine import Fixup, Notation, RawText

SLACK = 2
"""A server with fewer than this many requests more than the least busy one may still win by its cache."""
MAX_PREFIXES = 4096
"""Prompt prefixes to remember for each server."""
PROBES = Backoff(0.5, 30.0)
"""Pause between the probes of a failed server."""

log = logging.getLogger("ctxgate")
_parts = msgspec.json.Decoder(list[Raw]).decode


class Replica:
    """One of the servers. healthy: it answered its last request. asked: number of requests so far."""

    def __init__(self, url: str, backend: Backend) -> None:
        self.url = url
        self.backend = backend
        self.in_flight = 0
        self.healthy = True
        self.asked = 0
        self._read: OrderedDict[int, None] = OrderedDict()

    def longest_known(self, prefixes: list[int]) -> int:
        """How many of the prefixes, ordered by length, the server has read."""
        return next((at for at in range(len(prefixes), 0, -1) if prefixes[at - 1] in self._read), 0)

    def remember(self, prefixes: list[int]) -> None:
        for prefix in prefixes:
            self._read[prefix] = None
            self._read.move_to_end(prefix)
        while len(self._read) > MAX_PREFIXES:
            self._read.popitem(last=False)


class Replicas(Backend):
    """A backend that distributes requests over several others."""

    def __init__(self, model: Model, replicas: list[Replica]) -> None:
        super().__init__(model, None)
        self._replicas = replicas
        self.escapes = replicas[0].backend.escapes
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

    async def count_tokens(self, fields: dict[str, Raw]) -> int | None:
        return await self._any().count_tokens(fields)

    def error(self, status: int, body: bytes) -> GatewayError:
        return self._replicas[0].backend.error(status, body)

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
        return await self._any().notation()

    async def takes_tools(self) -> bool:
        return await self._any().takes_tools()

    async def keeps_calls(self) -> bool:
        return await self._any().keeps_calls()

    async def control_tokens(self) -> ControlTokens | None:
        return await self._any().control_tokens()

    async def about(self) -> About:
        return await self._any().about()

    async def aclose(self) -> None:
        self._closed = True
        for task in self._probing.values():
            task.cancel()
        await asyncio.gather(*self._probing.values(), return_exceptions=True)
        for replica in self._replicas:
            await replica.backend.aclose()

    def pick(self, prefixes: list[int], without: Collection[Replica] = ()) -> Replica | None:
        """The server to ask: a failed one only if no other is left. None if `without` has all of them."""
        left = [replica for replica in self._replicas if replica not in without]
        left = [replica for replica in left if replica.healthy] or left
        if not left:
            return None
        most = min(replica.in_flight for replica in left) + SLACK
        free = [replica for replica in left if replica.in_flight < most]
        return min(free, key=lambda replica: (-replica.longest_known(prefixes), replica.in_flight, replica.asked))

    async def _try_each(self, fields: dict[str, Raw], ask: Callable[[Backend], Awaitable[Reply]]) -> CountedReply:
        """Asks each server at most once, until one accepts. Raises the last one's error."""
        prefixes = _prefixes(fields)
        tried: list[Replica] = []
        last: GatewayError | None = None
        while (replica := self.pick(prefixes, tried)) is not None:
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
                replica.remember(prefixes)
                return CountedReply(reply, replica, self._failed)
        assert last is not None
        raise last

    def _any(self) -> Backend:
        return next((replica for replica in self._replicas if replica.healthy), self._replicas[0]).backend

    def _failed(self, replica: Replica, error: GatewayError) -> None:
        if replica.healthy:
            log.warning("model %s: %s failed, skipping it: %s", self.model.name, replica.url, error)
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
                log.debug("model %s: %s still fails: %s", self.model.name, replica.url, error)
            else:
                replica.healthy = True
                log.info("model %s: %s answers again", self.model.name, replica.url)
                return


class CountedReply(Reply):
    """A reply that counts towards its server's load until it is closed."""

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
    """One backend for all of `model.replicas`."""
    hide = hider(model.secrets)
    return Replicas(model, [Replica(hide(url), backend(model, Address.parse(url))) for url in model.replicas])


def _prefixes(fields: dict[str, Raw]) -> list[int]:
    """Hashes of the prompt up to each message, tools first, as in most templates."""
    if "messages" not in fields:
        return []
    found: list[int] = []
    before = hash(bytes(fields["tools"])) if "tools" in fields else 0
    for message in _parts(fields["messages"]):
        before = hash((before, bytes(message)))
        found.append(before)
    return found

"""Which of several servers gets a request: the one that has read the most of its prompt, unless it is too busy. No I/O.

Kept as indexes, so that a choice among a thousand servers costs as much as one among three.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Generic, TypeVar

SLACK = 2
"""A server with fewer than this many requests more than the least busy one may still win by its cache."""
UNKNOWN = 1 << 30
MAX_PREFIXES = 4096
"""Prompt prefixes to remember for each server."""
MAX_COMPARED = 32
"""How many servers that have the same prefix to compare; a prefix that more of them have says little."""


class BalancedServer:
    """One of the servers. load: requests that it works on. slots: as many of them don't wait, and others can go on with
    what it has read; UNKNOWN if waiting for it may be better. healthy: it may be asked. asked: requests so far."""

    def __init__(self) -> None:
        self.load = 0
        self.slots = UNKNOWN
        self.healthy = True
        self.asked = 0
        self.prefixes: OrderedDict[int, None] = OrderedDict()
        """The prefixes that it has read, the least recently used first."""


S = TypeVar("S", bound=BalancedServer)


class ServerChoice(Generic[S]):
    """Servers by load and by the prompts that they have read. Change `load` and `healthy` only by these methods."""

    def __init__(self) -> None:
        self._by_load: dict[int, OrderedDict[S, None]] = {}
        """Healthy servers by load; those of equal load in the order in which they reached it."""
        self._least = 0
        """No healthy server has a smaller load."""
        self._sick: dict[S, None] = {}
        self._holders: dict[int, OrderedDict[S, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_load.values())) + len(self._sick)

    def add(self, server: S) -> None:
        self._enter(server)
        for prefix in server.prefixes:
            self._holders.setdefault(prefix, OrderedDict())[server] = None

    def remove(self, server: S) -> None:
        self._leave(server)
        for prefix in server.prefixes:
            self._forget(server, prefix)

    def change(self, server: S, load: int) -> None:
        """Adds to the load of a server, which may have been removed meanwhile."""
        present = self._leave(server)
        server.load += load
        if present:
            self._enter(server)

    def judge(self, server: S, *, healthy: bool) -> None:
        if server.healthy != healthy:
            present = self._leave(server)
            server.healthy = healthy
            if present:
                self._enter(server)

    def remember(self, server: S, prefixes: Iterable[int]) -> None:
        """Notes that the server has read these prefixes."""
        read = server.prefixes
        for prefix in prefixes:
            if prefix in read:
                read.move_to_end(prefix)
            else:
                read[prefix] = None
                self._holders.setdefault(prefix, OrderedDict())[server] = None
        while len(read) > MAX_PREFIXES:
            self._forget(server, read.popitem(last=False)[0])

    def pick(self, prefixes: list[int], without: Collection[S] = ()) -> S | None:
        """The server to use: a failed one only if no other is left. None if `without` has all of them.

        prefixes: of the prompt, ordered by length.
        """
        idle = self._least_busy(without)
        if idle is None:
            left = [server for server in self._sick if server not in without]
            return min(left, key=lambda server: (server.load, server.asked)) if left else None
        maximum = idle.load + SLACK
        anywhere_full = idle.load >= idle.slots
        for prefix in reversed(prefixes):
            holders = self._holders.get(prefix)
            if holders is None:
                continue
            free = [
                server
                for server in islice(reversed(holders), MAX_COMPARED)
                if server.load < maximum
                and (anywhere_full or server.load < server.slots)
                and server.healthy
                and server not in without
            ]
            if free:
                return min(free, key=lambda server: (server.load, server.asked))
        return idle

    def _least_busy(self, without: Collection[S]) -> S | None:
        for load in (self._least, *sorted(load for load in self._by_load if load > self._least)) if without else ():
            for server in self._by_load.get(load, ()):
                if server not in without:
                    return server
        return None if without or not self._by_load else next(iter(self._by_load[self._least]))

    def _enter(self, server: S) -> None:
        if not server.healthy:
            self._sick[server] = None
            return
        load = server.load
        if not self._by_load or load < self._least:
            self._least = load
        self._by_load.setdefault(load, OrderedDict())[server] = None

    def _leave(self, server: S) -> bool:
        """False if it wasn't there."""
        if server in self._sick:
            del self._sick[server]
            return True
        equals = self._by_load.get(server.load, OrderedDict())
        if server not in equals:
            return False
        del equals[server]
        if not equals:
            del self._by_load[server.load]
            if server.load == self._least:
                self._least = min(self._by_load, default=0)
        return True

    def _forget(self, server: S, prefix: int) -> None:
        holders = self._holders.get(prefix)
        if holders is not None:
            holders.pop(server, None)
            if not holders:
                del self._holders[prefix]

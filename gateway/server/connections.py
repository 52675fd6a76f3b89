"""Limits the number of connections, and chooses the one that gives way to a new one."""

from __future__ import annotations

import asyncio
import resource
import select
from collections.abc import Iterable
from typing import Protocol

OTHER_FILES = 64
"""Files that the process needs besides its connections."""
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Connection(Protocol):
    """closing_rank: the lower, the sooner it is closed; None while a request is answered on it."""

    @property
    def closing_rank(self) -> tuple[int, float] | None: ...

    def evict(self) -> None:
        """Closes it at once. It counts as a connection until the close is complete, but can't be evicted again."""
        ...


def maximum(wanted: int) -> int:
    """`wanted`, or fewer where the system allows fewer open files: each connection may need one to an engine, too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, max(1, (files - OTHER_FILES) // 2))


def make_room(connections: Iterable[Connection]) -> bool:
    """Closes the most dispensable connection; returns whether there was one."""
    ranked = [(rank, id(each), each) for each in connections if (rank := each.closing_rank) is not None]
    if not ranked:
        return False
    min(ranked)[2].evict()
    return True


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the client has closed the connection. Reading would reveal that only after the data sent before."""
    number = transport.get_extra_info("socket").fileno()
    if number < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN | _GONE)
    return any(event & _GONE for _, event in poll.poll(0))

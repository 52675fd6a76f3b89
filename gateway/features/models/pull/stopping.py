"""Ends a pull from another thread, also while it waits for a server that sends nothing more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


class Stopped(Exception):
    """Nobody wants the pull any more: it ends, and its part stays for the next one."""


class Stop:
    """Of one pull, in whose thread `stop` is set to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = False
        self._sockets: list[socket.socket] = []

    def say(self) -> None:
        """From any thread."""
        with self._lock:
            self._said = True
            for each in self._sockets:
                with suppress(OSError):
                    socket.socket.shutdown(each, socket.SHUT_RDWR)  # not TLS's own, which isn't for two threads

    def check(self) -> None:
        """Raises Stopped once `say` was called."""
        if self._said:
            raise Stopped

    def trace(self, event: str, info: Mapping[str, object]) -> None:
        """An extension of httpx: hears of each connection. Raises Stopped."""
        if event.endswith((".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")):
            found = info["return_value"].get_extra_info("socket")  # type: ignore[attr-defined]  # httpcore's stream
            with self._lock:
                self._sockets.append(found)
            self.check()


stop: ContextVar[Stop | None] = ContextVar("stop", default=None)


def follow(request: httpx.Request) -> None:
    """A hook for the requests of a client by which a pull may wait. Raises Stopped."""
    if (present := stop.get()) is not None:
        present.check()
        request.extensions["trace"] = present.trace


HOOKS = {"request": [follow]}

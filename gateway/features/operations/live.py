"""`GET /-/events`: a live view of the gateway.

Nothing reports to this module: it polls the routes and the request log a few times a second, for as long as a client
listens. So it costs nothing while nobody does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from time import monotonic, time
from typing import Any

from msgspec.structs import asdict

from gateway.core import Gateway, Run
from gateway.core.route import Route
from gateway.errors import ProviderRateLimit
from gateway.features.operations.snapshot import snapshot
from gateway.observe.request_log import LogEntry, key_of
from gateway.observe.shares import Tally
from gateway.server.asgi import ASGIApp
from gateway.server.http import EventStream, Request
from gateway.services import Services
from gateway.wire import sse
from gateway.wire.chat import PUT_ASIDE, ChatRequest, encode

LISTENERS = 16
"""The most clients at a time."""
EVERY_SECONDS = 0.25
STATUS_SECONDS = 1.0
"""The shortest time between two looks at the state of the models, for all listeners together."""
SILENT_SECONDS = 15.0
"""Seconds without an event before a comment, which lets either side notice that the other has gone."""
CLIENT = 100
"""Characters of a program's name."""
_FLEETING = ("since", "idle_seconds", "waited", "resident_bytes")
"""Figures that change all the time: on their own, they cause no event."""

Json = dict[str, Any]


async def events(request: Request) -> ASGIApp:
    """The state of everything; with `follow`, then what changes."""
    live = request.services.shared(Live)
    if not live.listeners.has_room(LISTENERS):
        message = f"{live.listeners.all} clients listen to the gateway's events already; close a page or two"
        raise ProviderRateLimit(message, code="too_many_listeners", retry_after=5)
    return EventStream(live.events(request.headers.get("last-event-id", ""), follow=request.flag("follow")))


def entry(row: LogEntry) -> Json:
    """A finished request. `face` is the old name of `api`; scripts may still read it."""
    return {**asdict(row), "client": row.client[:CLIENT], "face": row.api}


def in_flight(gateway: Gateway) -> Iterator[Json]:
    """The requests without a complete answer, the oldest of each model first."""
    now = monotonic()
    for route in _routes(gateway):
        name = route.model.name
        if not route.requests.count:
            continue  # of thousands of models, most have none
        # A copy: requests come and go while the lines are made, if those ask for the progress of one.
        for run in sorted(route.requests.runs, key=lambda run: run.began):
            yield _run(name, run, now)
        for request, since in [*route.requests.waiting.items()]:
            yield _waiting(name, request, since, now)
        queued = route.requests.queued()
        for request, since in queued:
            yield _waiting(name, request, since, now)
        if (sent := len(route.requests.opening) - len(route.requests.waiting) - len(queued)) > 0:
            yield {"key": f"{name} sent", "model": name, "state": "sent", "count": sent}


def find(gateway: Gateway, key: str) -> tuple[Json, Any] | None:
    """A request without a complete answer by its key or its completion's id, and its recording; None: there is none."""
    now = monotonic()
    for route in _routes(gateway):
        for run in route.requests.runs:
            recording = run.answer.recording
            if key == key_of(run.began) or (recording is not None and key == recording.completion_id):
                return _run(route.model.name, run, now), recording
    return None


def _routes(gateway: Gateway) -> Iterator[Route]:
    """Those of the configured models, then those that a reload removed and that still answer."""
    return chain(gateway.routes.values(), gateway.leaving.values())


def _run(model: str, run: Run, now: float) -> Json:
    answer = run.answer
    writes = run.first > 0 or answer.chunks > 0
    progress = run.request.serving.describe()
    aside = progress.startswith(PUT_ASIDE)
    return {
        "key": key_of(run.began),
        "model": model,
        "api": run.request.api,
        "client": run.request.caller.client[:CLIENT],
        "stream": run.request.stream,
        "state": "waits" if aside else "writes" if writes else "reads",
        "progress": progress if aside or not writes else "",
        "seconds": round(now - run.began, 1),
        "first_seconds": round(run.first - run.began, 3) if run.first else None,
        "chunks": answer.chunks,
        "recorded": answer.recording is not None,
    }


def _waiting(model: str, request: ChatRequest, since: float, now: float) -> Json:
    return {
        "key": key_of(since),
        "model": model,
        "api": request.api,
        "client": request.caller.client[:CLIENT],
        "stream": request.stream,
        "state": "waits",
        "progress": request.serving.describe(),
        "seconds": round(now - since, 1),
        "first_seconds": None,
        "chunks": 0,
        "recorded": False,
    }


class Live:
    """The events of one gateway. listeners: the clients that follow them."""

    def __init__(self, services: Services) -> None:
        self.listeners = Tally()
        self._services = services
        self._epoch = f"{time():.0f}"
        """Distinguishes this process from an earlier one, whose requests have the same numbers."""
        self._status: Json = {}
        self._lasting: Json = {}
        self._refreshed = 0.0

    async def events(self, last: str, *, follow: bool) -> AsyncIterator[bytes]:
        """Server-sent events: only the first, or all until the gateway ends. last: the id of the client's last one.

        A slow client gets fewer events: the next look waits until it has read the last event.
        """
        with self.listeners.one_more():
            follower = _Follower(self._services.gateway, self._number(last))
            yield self._event("snapshot", follower.snapshot(*self._looked()), follower.number)
            spoke = monotonic()
            while follow and not await self._ends(EVERY_SECONDS):
                for name, value in follower.changes(*self._looked()):
                    spoke = monotonic()
                    yield self._event(name, value, follower.number)
                if monotonic() - spoke > SILENT_SECONDS:
                    spoke = monotonic()
                    yield b": nothing new\n\n"

    def _looked(self) -> tuple[Json, Json]:
        """The state at most STATUS_SECONDS ago, and what lasts of it: the same object as long as that is equal."""
        now = monotonic()
        if not self._status or now - self._refreshed >= STATUS_SECONDS:
            self._refreshed = now
            self._status = snapshot(self._services.gateway, self._services.reloader)
            if (lasting := _lasting(self._status)) != self._lasting:
                self._lasting = lasting
        return self._status, self._lasting

    async def aclose(self) -> None:
        """Nothing: the streams end with the services."""

    async def _ends(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._services.ending.wait()
        except TimeoutError:
            return False
        return True

    def _number(self, last: str) -> int:
        epoch, _, number = last.partition(".")
        return int(number[:12]) if epoch == self._epoch and number.isascii() and number.isdigit() else 0

    def _event(self, name: str, value: object, number: int) -> bytes:
        return b"id: %b.%d\n%b" % (self._epoch.encode(), number, sse.named(name, encode(value)))


class _Follower:
    """What one client has got so far. number: of the last finished request."""

    def __init__(self, gateway: Gateway, number: int) -> None:
        self.number = number
        self._gateway = gateway
        self._running: list[Json] = []
        self._lasting: Json = {}

    def snapshot(self, status: Json, lasting: Json) -> Json:
        continued = self.number > 0
        requests = self._ended()
        self._running = [*in_flight(self._gateway)]
        self._lasting = lasting
        return {
            "at": time(),
            "continued": continued,
            "bodies": self._gateway.request_log.bodies,
            "status": status,
            "requests": requests,
            "running": self._running,
        }

    def changes(self, status: Json, lasting: Json) -> Iterator[tuple[str, Any]]:
        for ended in reversed(self._ended()):
            yield "ended", ended
        running = [*in_flight(self._gateway)]
        if running or self._running:
            self._running = running
            yield "running", running
        if lasting is not self._lasting:
            self._lasting = lasting
            yield "status", status

    def _ended(self) -> list[Json]:
        """The requests that ended since the last call, newest first."""
        found = [entry(row) for row in self._gateway.request_log.entries(self.number)]
        if found:
            self.number = found[0]["id"]
        return found


def _lasting(value: Any) -> Any:
    """The same without the figures that always change."""
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in _FLEETING}
    return [_lasting(each) for each in value] if isinstance(value, list | tuple) else value

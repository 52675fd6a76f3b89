"""Routes whose requests become spans; see `gateway.features.traces.traces`. Imported only if `log.traces` is set."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from time import monotonic
from typing import Any

from gateway.backends import Backend
from gateway.core.passthrough import RequestMeter
from gateway.core.route import Route
from gateway.core.run import Run
from gateway.core.sender import Accepted
from gateway.features.traces.traces import Event, Note, Traces, head_lines
from gateway.observe.request_log import Row
from gateway.upstream import trace
from gateway.wire.chat import NOBODY, ApiName, Caller, ChatRequest

log = logging.getLogger("ctxgate")

_current: ContextVar[Note | None] = ContextVar("_current", default=None)
"""The span of the request that the running code works on."""


class TracedRoute(Route):
    def __init__(self, traces: Traces, *args: Any) -> None:
        super().__init__(*args)
        self._traces = traces
        self._notes: dict[Run, Note] = {}

    async def open(self, request: ChatRequest) -> Run:
        note = self._begin(request)
        token = _current.set(note)
        try:
            run = await super().open(request)
        finally:
            _current.reset(token)
        self._notes[run] = note
        return run

    def count(self, api: ApiName, caller: Caller = NOBODY, *, stream: bool) -> RequestMeter:
        note = self._begin()

        def book(row: Row) -> None:
            token = _current.set(note)
            try:
                self._log(row)
            finally:
                _current.reset(token)

        return RequestMeter(self.model.name, api, stream, book, caller)

    def _begin(self, request: ChatRequest | None = None) -> Note:
        """Begins a span, and sends its context to the servers that this task calls from now on."""
        note = Note(self.model.runtime, self._traces.begin(), request)
        trace.set(head_lines(note.span))
        return note

    async def ask(self, request: ChatRequest) -> Accepted:
        """Notes what the request waited for."""
        note, engine = _current.get(), self.engine
        if note is None or engine is None or (engine.accepting is not None and not engine.requests.queue):
            return await super().ask(request)
        waits_for, starts, since = engine.waits_for or engine.state, engine.launcher.starts, monotonic()
        note.events.append(Event("queue.entered", since, {"ctxgate.waits_for": waits_for}))
        try:
            return await super().ask(request)
        finally:
            note.events = sorted([*note.events, *self._waited(starts, since)], key=lambda event: event.at)

    def _waited(self, starts: int, since: float) -> list[Event]:
        engine = self.engine
        if engine is None or engine.launcher.starts == starts:
            return []
        return [
            Event("engine.started", max(engine.entered, since), {"ctxgate.load_seconds": engine.load_seconds or 0.0})
        ]

    async def _send(self, request: ChatRequest, backend: Backend | None) -> Accepted:
        if (note := _current.get()) is not None:
            note.events.append(Event("sent", monotonic()))
        return await super()._send(request, backend)

    def ended(self, run: Run) -> None:
        note = self._notes.pop(run, None)
        if note is not None:
            note.answer = run.answer
            note.events += [Event(name, at) for name, at in run.reply.history]
        token = _current.set(note)
        try:
            super().ended(run)
        finally:
            _current.reset(token)

    def _log(self, row: Row) -> None:
        super()._log(row)
        note = _current.get() or self._begin()
        try:
            self._traces.write(row, note)
        except Exception:  # whoever asked still gets the answer
            log.exception("a span lacks what its request contained")
            note.span.end()


class Tracing(Traces):
    """See `gateway.core.gateway.Traces`."""

    def route(self, *args: Any) -> Route:
        return TracedRoute(self, *args)

"""Temporary sessions: never recorded, and gone with their connection. A slow client slows down the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.errors import Busy, TooLong
from gateway.features.ctx.events import Done, Event, Message, Start, ToolCall, line
from gateway.features.ctx.execution import Ended, Execution, until
from gateway.features.ctx.frames import MAX_INPUT, Send, event_id
from gateway.features.ctx.history import answered, asked
from gateway.features.ctx.objects import Triple
from gateway.services import Services
from gateway.wire.chat import encode

MAX_SESSIONS = 16
MAX_MEMORY = 4 * MAX_INPUT
"""Bytes of text in all sessions of a connection."""


@dataclass(slots=True)
class _Run:
    id: str
    said: bytes
    """What the client sent, for its retries."""
    start: bytes
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    done: bytes | None = None


@dataclass(slots=True)
class _Session:
    messages: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, _Run] = field(default_factory=dict)
    """Client id → run."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """Of its events, as those of a stored session are numbered."""

    def line(self, event: Event) -> bytes:
        """The frame of the session's next event."""
        event.id = event_id(next(self.numbers))
        return line(event)


class Temporary:
    """The temporary sessions of one connection to an object."""

    def __init__(self, services: Services, triple: Triple, ended: Ended) -> None:
        self._services = services
        self._triple = triple
        self._ended = ended
        self._sessions: dict[str, _Session] = {}
        self._size = 0

    def send(self, request: Send) -> AsyncGenerator[list[bytes], None] | bytes:
        """Starts a run; returns its frames, or for a retry the one frame that answers it.

        Raises ProviderInvalidRequest, Busy, and TooLong if the connection's sessions are too large.
        """
        session = self._sessions.get(request.session)
        if session is None:
            if len(self._sessions) >= MAX_SESSIONS:
                raise TooLong(f"a connection has at most {MAX_SESSIONS} temporary sessions")
            session = self._sessions[request.session] = _Session()
        said = encode([request.input, request.tool_results or None, request.tools or None])
        known = session.runs.get(request.id)
        if known is not None:
            if known.said != said:
                raise ProviderInvalidRequest(f"id: {request.id} was sent before, with another input")
            return known.done or known.start
        if any(run.done is None for run in session.runs.values()):
            raise Busy(f"session {request.session} is busy; send again when it is done, or cancel it", retry_after=1)
        fields = asked(session.messages, request)
        self._size += len(said)
        if self._size > MAX_MEMORY:
            raise TooLong("the temporary sessions of this connection are too large: use a private one")
        run = f"run-{uuid4().hex}"
        start = session.line(Start(run=run, model=self._triple.name.name, client_id=request.id))
        started = session.runs[request.id] = _Run(run, said, start)
        return self._answer(session, started, fields)

    def cancel(self, id: str) -> bool:
        """Cancels the active run with that id or client id. False if there is none."""
        for session in self._sessions.values():
            for client, run in session.runs.items():
                if id in (client, run.id) and run.done is None:
                    run.stop.set()
                    return True
        return False

    async def _answer(self, session: _Session, run: _Run, fields: dict[str, Any]) -> AsyncGenerator[list[bytes], None]:
        done = Done(run=run.id, status="cancelled")
        text = ""
        calls: list[dict[str, Any]] = []
        try:
            yield [run.start]
            execution = Execution(self._services, self._triple, "socket", run.id)
            events = execution.events(fields, started=True)
            async with aclosing(until(run.stop, events, lambda: [done])) as batches:
                async for batch in batches:
                    frames = []
                    for event in batch:
                        frames.append(session.line(event))
                        if isinstance(event, Message):
                            text = "".join(part.text for part in event.content)
                            self._size += len(text)
                        elif isinstance(event, ToolCall):
                            calls.append({"id": event.id, "name": event.name, "arguments": event.arguments})
                            self._size += len(bytes(event.arguments))
                        elif isinstance(event, Done):
                            done = event
                            run.done = frames[-1]
                    yield frames
        finally:
            run.done = run.done or session.line(done)
            if done.status == "ok":
                session.messages = [*fields["messages"], answered(text, calls)]
            self._ended(self._triple, None, run.id, done.status)

"""One task of an executed agent, in a room of its own that ends with it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import UNSET

from gateway.errors import GatewayError, InternalError, ProviderInvalidRequest
from gateway.features.ctx.agents.rooms import AgentRooms
from gateway.features.ctx.errors import code
from gateway.features.ctx.events import Done, Error, Event
from gateway.features.ctx.objects import Triple
from gateway.services import Services

log = logging.getLogger("ctxgate")


@dataclass(frozen=True, slots=True)
class AgentExecution:
    """folder: where its caller is, and where its tools work."""

    services: Services
    triple: Triple
    root: Path
    run: str
    folder: str

    async def events(self, text: str) -> AsyncGenerator[list[Event], None]:
        """Yields the canonical events up to `done`; a failure as `error`. Raises nothing but CancelledError.

        Closing it ends the task. If the gateway dies, the room resumes the task.
        """
        room = str(uuid.uuid4())
        done = False
        rooms = AgentRooms(self.services, self.triple, self.root)
        try:
            sent = await rooms.send(room, self.run, self.run, task_of(text), self.folder, release=True)
            async for events in rooms.answer(sent, {}):
                for event in events:
                    event.run, event.id = self.run, UNSET
                done = isinstance(events[-1], Done)
                yield events
            if not done:
                raise InternalError("the agent's room ended before the task did; see ctxgate room history")
        except GatewayError as error:
            yield self._failed(error)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception:
            log.exception("%s failed", self.triple.name)
            yield self._failed(InternalError("ctxgate failed; see its log"))
        finally:
            with suppress(GatewayError):
                await rooms.release(room)
                if not done:
                    await rooms.interrupt(room)

    def _failed(self, error: GatewayError) -> list[Event]:
        return [Error(run=self.run, code=code(error), message=error.message), Done(run=self.run, status="error")]


def task_of(text: str) -> str:
    """The task: a text, or JSON with `task`. Raises ProviderInvalidRequest."""
    stripped = text.strip()
    if not stripped:
        raise ProviderInvalidRequest("no task: give it as arguments or on standard input")
    if "\0" in text:
        raise ProviderInvalidRequest("the task contains NUL")
    if not (stripped.startswith("{") and stripped[1:].lstrip()[:1] in ('"', "}")):
        return stripped
    try:
        found = msgspec.json.decode(stripped)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProviderInvalidRequest(f"the task begins like a JSON object, but isn't one: {error}") from None
    if not isinstance(found.get("task"), str) or not found["task"].strip():
        raise ProviderInvalidRequest('the task, as JSON, is {"task": "..."}')
    return str(found["task"])

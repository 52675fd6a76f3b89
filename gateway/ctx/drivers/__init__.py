"""How a model is asked. A driver's name stands in the object's `driver` file; the table makes them plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from gateway.config import Model
from gateway.core import Gateway
from gateway.wire.events import Event

DRIVERS = {
    "openai-chat": "gateway.ctx.drivers.chat:OpenAIChat",
    "openai-responses": "gateway.ctx.drivers.responses:OpenAIResponses",
    "debug": "gateway.ctx.drivers.chat:Debug",
}


class NotOffered(Exception):
    """The model has no server that speaks this driver's API: the next driver of the route is tried."""


@dataclass(frozen=True, slots=True)
class Ask:
    """model: None for the built-in echo. fields: of a chat request, `messages` among them. limit: bytes of an answer's
    texts as JSON."""

    run: str
    model: Model | None
    fields: Mapping[str, Any]
    limit: int


class Answering(Protocol):
    """An answer on its way."""

    async def events(self) -> list[Event]:
        """Those that are next, at least one; [] at the end. Neither start nor done. Raises GatewayError."""
        ...

    def close(self) -> None:
        """Ends it; an unfinished one is cancelled in the engine. Never blocks."""
        ...


class Driver(Protocol):
    async def open(self, gateway: Gateway, ask: Ask) -> Answering:
        """Returns once the engine has accepted the request. Raises GatewayError, and NotOffered before it asks."""
        ...


def load(name: str) -> Driver | None:
    """None where there is no such driver."""
    place = DRIVERS.get(name)
    if place is None:
        return None
    module, _, attribute = place.partition(":")
    return cast(Driver, getattr(import_module(module), attribute)())

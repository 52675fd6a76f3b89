"""What a driver is: it asks a model and gives the events of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gateway.config import Model
from gateway.core import Gateway
from gateway.features.ctx.events import Event

if TYPE_CHECKING:
    from gateway.features.media.uploads import Upload


class NotOffered(Exception):
    """The model's server doesn't speak this driver's API. The route's next driver is tried."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question. model: None for the built-in echo. fields: of a request to a model of its role.

    limit: the most bytes of the answer's texts, as JSON. upload: the file that the request sends, if any.
    """

    run: str
    model: Model | None
    fields: Mapping[str, Any]
    limit: int
    upload: Upload | None = None


class Answering(Protocol):
    """An answer in progress."""

    @property
    def cut(self) -> bool:
        """Whether the limit of its length ended the answer. Known at its end."""
        ...

    async def events(self) -> list[Event]:
        """The next events, without `start` and `done`; [] at the end. Raises GatewayError."""
        ...

    def close(self) -> None:
        """Ends the answer; cancels an unfinished one in the engine. Never blocks."""
        ...


class Driver(Protocol):
    async def open(self, gateway: Gateway, ask: Ask) -> Answering:
        """Returns when the engine has accepted the request. Raises GatewayError, and NotOffered before it asks."""
        ...

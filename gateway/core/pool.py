"""Engines that several gateways share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from gateway.backends import Backend
from gateway.config import Model


class EnginePool(Protocol):
    """Engines that several gateways share, and the way to the other gateways."""

    @property
    def address(self) -> str:
        """Where the other gateways reach this one. Its claims on the store name it."""
        ...

    def backend(self, model: Model) -> Backend | None:
        """The backend of a model whose engines are in the pool, None for any other model."""
        ...

    def status(self) -> Mapping[str, object]:
        """For status pages."""
        ...

    def forward(self, handler: Callable[[Any], Awaitable[Any]], request: Any) -> Awaitable[Any]:
        """The response of the handler, or that of the gateway that holds what the handler claims.

        Raises what the handler raises, and ProviderUnavailable if that gateway goes away while it answers.
        """
        ...

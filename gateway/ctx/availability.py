"""The word in an object's `status` file."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core import Gateway

READY, BUSY, OFFLINE, UNCONFIGURED = "ready", "busy", "offline", "unconfigured"
"""Besides, the state of an engine that isn't ready: stopped, starting, draining, stopping, failed.

A stopped engine starts when it is asked; unconfigured is a model whose server's key is missing.
"""


def word(gateway: Gateway, objects: Mapping[str, str | None], name: str) -> str:
    """objects: of the projection. name: `provider/model`."""
    config = gateway.config
    of = objects.get(name)
    if of is None:
        return READY if name in objects else UNCONFIGURED
    settings, model = config.ctx.models.get(of), config.models[of]
    if settings is not None and settings.credential is not None and model.api_key is None:
        return UNCONFIGURED
    route = gateway.routes.get(of)
    if route is None:
        return OFFLINE  # a reload is under way
    if route.engine is not None and route.engine.state != "ready":
        return route.engine.state
    return BUSY if route.in_flight else READY

"""The status word of an object."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core import Gateway

READY, BUSY, OFFLINE, UNCONFIGURED = "ready", "busy", "offline", "unconfigured"
"""Other words are the states of an engine that isn't ready: stopped, starting, draining, stopping, failed.

A stopped engine starts on the next request. unconfigured: the key of the model's server is missing.
"""


def word(gateway: Gateway, objects: Mapping[str, str | None], name: str) -> str:
    """The word for an object. objects: those of the projection. name: `provider/model`."""
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

"""The status word of an object."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.ctx.settings import Ctx

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
    if missing_credential(config, config.models[of]) is not None:
        return UNCONFIGURED
    route = gateway.routes.get(of)
    if route is None:
        return OFFLINE  # a reload is under way
    if route.engine is not None and route.engine.state != "ready":
        return route.engine.state
    return BUSY if route.requests.count else READY


def missing_credential(config: Config, model: Model | None) -> str | None:
    """The name of the credential that a model still needs; None if it needs none."""
    settings = config.section(Ctx).models.get(model.name) if model is not None else None
    if settings is None or model is None or model.api_key is not None:
        return None
    return settings.credential

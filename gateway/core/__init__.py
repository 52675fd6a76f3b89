"""The centre: every face reads one stream of clean payloads from one object, `Gateway`."""

from gateway.core.gateway import Gateway
from gateway.core.passthrough import Count, Posted
from gateway.core.route import Route, address_of
from gateway.core.run import Run, Tap

__all__ = ["Count", "Gateway", "Posted", "Route", "Run", "Tap", "address_of"]

"""The centre: every API reads one stream of clean payloads from one object, `Gateway`."""

from gateway.core.gateway import Gateway
from gateway.core.model_server import address_of
from gateway.core.passthrough import Passthrough, RequestMeter
from gateway.core.route import Route
from gateway.core.run import Run

__all__ = ["Gateway", "Passthrough", "RequestMeter", "Route", "Run", "address_of"]

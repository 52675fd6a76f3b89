"""Which model and which service tier a caller may use."""

from __future__ import annotations

from gateway.config import Model
from gateway.errors import ProviderAuthentication
from gateway.wire.chat import Caller, Meter, Wanted
from gateway.wire.limits import Tier


def check(model: Model, caller: Caller) -> None:
    """Raises ProviderAuthentication (403) if the caller's key may not use the model."""
    if (meter := caller.meter) is None:
        return
    allowed = meter.limits.models
    if allowed and {model.name, *model.aliases}.isdisjoint(allowed):
        message = f"key {meter.key} may not use the model {model.name!r}; it may use: {', '.join(allowed)}"
        raise ProviderAuthentication(message, code="model_not_allowed", param="model", status=403)


def tier_of(model: Model, caller: Caller, asked: str | None, wanted: Wanted | None) -> Tier | None:
    """The service tier of a request: its own, else that of the model name that it uses, else its key's; None if none
    is set.

    asked, wanted: the model name and the tier in the request. Raises ProviderAuthentication (403).
    """
    own = None if wanted == "auto" else wanted
    default = model.tiers.get(asked if asked in model.aliases else model.name)
    tier = own or default if caller.meter is None else _allowed(caller.meter, own, default)
    return tier or ("default" if wanted is not None else None)


def _allowed(meter: Meter, wanted: Tier | None, default: Tier | None) -> Tier | None:
    """wanted: by the request itself. default: of the model, which comes before the key's own."""
    limits, allowed = meter.limits, meter.limits.tiers
    if wanted is not None:
        if allowed and wanted not in allowed:
            message = f"key {meter.key} may not ask for service_tier {wanted!r}, only for: {', '.join(allowed)}"
            raise ProviderAuthentication(message, code="tier_not_allowed", param="service_tier", status=403)
        return wanted
    if default is not None and (not allowed or default in allowed):
        return default
    return limits.tier or (allowed[-1] if allowed and "default" not in allowed else None)

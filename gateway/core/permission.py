"""Which model and which service tier a caller may use."""

from __future__ import annotations

from gateway.config import Model
from gateway.wire.chat import Caller, Tier, Wanted


def check(model: Model, caller: Caller) -> None:
    """Raises ProviderAuthentication (403) if the caller's key may not use the model."""
    if caller.meter is not None:
        caller.meter.check(model.name, *model.aliases)


def tier_of(model: Model, caller: Caller, asked: str | None, wanted: Wanted | None) -> Tier | None:
    """The service tier of a request: its own, else that of the model name that it uses, else its key's; None if none
    is set.

    asked, wanted: the model name and the tier in the request. Raises ProviderAuthentication (403).
    """
    own = None if wanted == "auto" else wanted
    default = model.tiers.get(asked if asked in model.aliases else model.name)
    tier = own or default if caller.meter is None else caller.meter.tier(own, default)
    return tier or ("default" if wanted is not None else None)

"""Limits as a command line writes them."""

from __future__ import annotations

from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import TIERS
from gateway.wire.limits import Limits

LARGEST = 10**12

NAMES = {
    "requests/minute": "requests_per_minute",
    "tokens/minute": "tokens_per_minute",
    "tokens/day": "tokens_per_day",
    "parallel": "parallel",
    "models": "models",
    "tiers": "tiers",
    "tier": "tier",
}
"""How a command line names the fields of `Limits`."""


def parse(given: tuple[str, ...]) -> Limits | None:
    """Limits : `requests/minute=60`, `models=a,b`. Raises ProviderInvalidRequest."""
    found: dict[str, int | str | tuple[str, ...]] = {}
    for each in given:
        name, _, value = each.partition("=")
        if name not in NAMES:
            raise ProviderInvalidRequest(f"{name!r} is not a limit; the limits are: {', '.join(NAMES)}")
        found[NAMES[name]] = _value(name, value)
    return Limits(**found) if found else None  # type: ignore[arg-type]  # `_value` has the types


def written(limits: Limits | None) -> str:
    """As `parse` reads them, with spaces in between; `-` for none."""
    if limits is None:
        return "-"
    given = [(name, getattr(limits, field)) for name, field in NAMES.items()]
    return " ".join(f"{name}={','.join(v) if isinstance(v, tuple) else v}" for name, v in given if v not in (None, ()))


def _value(name: str, value: str) -> int | str | tuple[str, ...]:
    if name == "models" or name == "tiers":
        values = tuple(filter(None, value.split(",")))
        if not values:
            raise ProviderInvalidRequest(f"{name}={value}: name at least one, such as {name}=a,b")
        for each in values if name == "tiers" else ():
            _check_tier(name, each)
        return values
    if name == "tier":
        _check_tier(name, value)
        return value
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:20]) <= LARGEST:
        raise ProviderInvalidRequest(f"{name}={value}: must be a whole number from 1")
    return int(value)


def _check_tier(name: str, tier: str) -> None:
    if tier not in TIERS:
        raise ProviderInvalidRequest(f"{name}: {tier!r} is not a service tier; the tiers are: {', '.join(TIERS)}")

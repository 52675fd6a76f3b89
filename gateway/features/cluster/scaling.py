"""How many engines a model should have. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gateway.config.values import Spread


class Replica(Struct, frozen=True):
    """One engine of the model. idle_for: seconds without a request; 0 if it has one."""

    id: str
    slots: int
    busy: int
    idle_for: float


def wanted(
    spread: Spread, replicas: Sequence[Replica], waiting: int, slots: int, *, idle_seconds: float, ttl: float | None
) -> int:
    """How many engines answer all requests at once, within min and max. A surplus replica stays until it has been idle
    for `idle_seconds`, the last one for `ttl`; None: forever.

    waiting: requests without an engine. slots: requests that a new engine would answer at once.
    """
    busy = sum(replica.busy for replica in replicas)
    room = sum(replica.slots for replica in replicas)
    missing = max(0, busy + waiting - room)
    grown = len(replicas) + -(-missing // max(1, slots))
    if not replicas and waiting:
        grown = max(grown, 1)
    if missing or waiting:
        return max(spread.min, min(spread.max, grown))
    patience = min(idle_seconds, ttl) if ttl is not None else idle_seconds
    idle = [replica for replica in replicas if replica.idle_for >= patience]
    left = len(replicas) - len(idle)
    if not left and replicas and (ttl is None or all(replica.idle_for < ttl for replica in replicas)):
        left = 1
    return max(spread.min, min(spread.max, left))


def surplus(replicas: Sequence[Replica], count: int) -> list[str]:
    """The engines to stop so that `count` remain: the longest idle first, busy ones last."""
    ordered = sorted(replicas, key=lambda replica: (replica.busy, -replica.idle_for, replica.id))
    return [replica.id for replica in ordered[: max(0, len(replicas) - count)]]


def together(loads: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sums over several gateways."""
    found: dict[str, int] = {}
    for load in loads:
        for name, count in load.items():
            found[name] = found.get(name, 0) + count
    return found

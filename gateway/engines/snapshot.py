"""An engine at one moment, as status pages and metrics show it."""

from __future__ import annotations

from msgspec import Struct

from gateway.engines.states import State
from gateway.wire.chat import Tier
from gateway.wire.progress import Waiting


class EngineSnapshot(Struct, frozen=True):
    """An engine at one moment.

    pid: None unless a process of ours runs. loaded: see `Progress`. resident_bytes: what the process holds now, 0 if
    none runs. gpu_bytes: its share of the GPUs' budget. gpu_seen_bytes: what the process holds there, by the driver,
    in the last minute; None if it didn't know. expected_bytes: its share of the whole budget, measured earlier or
    else estimated; None before its first start.
    in_flight: answers that it works on. waiting: requests in the queue. waiting_tiers: the same by service tier.
    put_aside: how many of them are answers that were put aside. waits_for: why they wait; None if none does.
    waited: seconds that the oldest of them has waited. held_by: the models that hold the memory for which they wait.
    since: seconds in this state. starts and crashes: since the gateway started. failure: why the state is failed.
    note: why the program that was started last isn't the usual one.
    """

    name: str
    state: State
    pid: int | None
    address: str | None
    in_flight: int
    waiting: int
    waiting_tiers: dict[Tier, int]
    put_aside: int
    waits_for: Waiting | None
    waited: float
    held_by: tuple[str, ...]
    loaded: float | None
    resident_bytes: int
    gpu_bytes: int
    gpu_seen_bytes: int | None
    expected_bytes: int | None
    since: float
    idle_seconds: float
    load_seconds: float | None
    starts: int
    crashes: int
    pinned: bool
    failure: str | None
    note: str | None

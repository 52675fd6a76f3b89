"""An engine at one moment, as status pages and metrics show it."""

from __future__ import annotations

import time
from typing import Protocol

from msgspec import Struct

from gateway.backends import Address
from gateway.config import Model
from gateway.engines.launcher import Launcher
from gateway.engines.memory import Footprint
from gateway.engines.requests import EngineRequests
from gateway.engines.residency import Residency
from gateway.engines.states import State
from gateway.engines.usage import UsageSampler
from gateway.errors import GatewayError
from gateway.wire.limits import Tier
from gateway.wire.progress import Progress, Waiting


class EngineForStatus(Protocol):
    """An engine as this module sees it; `gateway.engines.engine.Engine` is one."""

    model: Model
    residency: Residency
    launcher: Launcher
    requests: EngineRequests
    usage: UsageSampler
    held: Footprint
    gpu_seen: int | None
    load_seconds: float | None
    crashes: int
    failure: GatewayError | None
    running_at: Address | None

    @property
    def state(self) -> State: ...
    @property
    def entered(self) -> float: ...
    @property
    def waits_for(self) -> Waiting | None: ...


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


def snapshot_of(engine: EngineForStatus) -> EngineSnapshot:
    launcher, now = engine.launcher, time.monotonic()
    places, queue = engine.requests.places, engine.requests.queue
    usage = engine.usage.of(launcher.pid)
    return EngineSnapshot(
        name=engine.model.name,
        state=engine.state,
        pid=launcher.pid,
        address=str(engine.running_at) if engine.running_at is not None else None,
        in_flight=places.in_flight,
        waiting=len(queue),
        waiting_tiers=queue.tiers,
        put_aside=queue.begun,
        waits_for=engine.waits_for if queue else None,
        waited=max(0.0, now - queue.since),
        held_by=_held_by(engine) if queue else (),
        loaded=loaded(engine),
        resident_bytes=usage.resident if usage is not None else 0,
        gpu_bytes=engine.held.gpu,
        gpu_seen_bytes=engine.gpu_seen,
        expected_bytes=engine.held.ram + engine.held.gpu or None,
        since=now - engine.entered,
        idle_seconds=0.0 if places.in_flight else now - places.idle_since,
        load_seconds=engine.load_seconds,
        starts=launcher.starts,
        crashes=engine.crashes,
        pinned=engine.model.residence.pinned,
        failure=str(engine.failure) if engine.failure is not None else None,
        note=launcher.recipe.note if launcher.recipe is not None else None,
    )


def progress_of(engine: EngineForStatus, key: object) -> Progress | None:
    """The progress of the request that joined with `key`; None once it no longer waits."""
    return engine.requests.queue.progress(key, engine.waits_for or "load", loaded(engine), _held_by(engine))


def loaded(engine: EngineForStatus) -> float | None:
    """The part of its memory that a starting engine has filled, 0 to 1; None if unknown."""
    expected = engine.held.ram + engine.held.gpu
    if engine.state != "starting" or not expected:
        return None
    usage = engine.usage.of(engine.launcher.pid)
    return min(0.99, usage.resident / expected) if usage is not None else None


def _held_by(engine: EngineForStatus) -> tuple[str, ...]:
    """The models that hold the memory for which its requests wait."""
    return engine.residency.waits_for.get(engine, ()) if engine.waits_for == "memory" else ()

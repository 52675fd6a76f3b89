"""What can be seen of an engine from outside: values, taken at one moment."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gateway.engines.states import State

Waiting = Literal["memory", "drain", "back-off", "load"]
"""What a request waits for: until others have given memory free, until answers in flight of the engine itself have
ended, until a failed engine may be tried again, until the engine has loaded its weights."""


class Progress(Struct, frozen=True):
    """How far a request that waits for its engine has come.

    position: its place in the queue, from 1. waiting: requests in the queue. loaded: the part of the engine's memory
    that is filled, 0 to 1; None unless it loads and its size is known.
    """

    phase: Waiting
    position: int
    waiting: int
    loaded: float | None

    def __str__(self) -> str:
        """As in the comments of a stream."""
        if self.phase == "load":
            return "loading" if self.loaded is None else f"loading percent={min(99, int(100 * self.loaded))}"
        return f"queued for={self.phase} position={self.position} waiting={self.waiting}"


class Status(Struct, frozen=True):
    """An engine at one moment.

    pid: None where no process of ours runs. resident_bytes: what the process holds now, 0 where none runs.
    expected_bytes: what it is counted with: measured earlier, else estimated; None before its first start.
    in_flight: answers that it works on. waiting: requests in the queue. waits_for: why they wait; None where the
    engine is ready. since: seconds in this state. starts and crashes: since the gateway runs. failure: why it is
    failed. note: why another program than usual was started last.
    """

    name: str
    state: State
    pid: int | None
    address: str | None
    in_flight: int
    waiting: int
    waits_for: Waiting | None
    loaded: float | None
    resident_bytes: int
    gpu_bytes: int
    expected_bytes: int | None
    since: float
    idle_seconds: float
    load_seconds: float | None
    starts: int
    crashes: int
    pinned: bool
    failure: str | None
    note: str | None

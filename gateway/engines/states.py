"""The states of an engine and the events that lead from one to another: a table, no I/O.

stopped ──admit──► starting ──came──► ready ──drain──► draining ──recall──► ready
starting, ready, draining ──broke──► failed ──admit──► starting
starting, ready, draining ──stop──► stopping ──gone──► stopped
stopped ──broke──► failed ──stop──► stopped
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

State = Literal["stopped", "starting", "ready", "draining", "stopping", "failed"]
Event = Literal["admit", "came", "broke", "drain", "recall", "stop", "gone"]

TABLE: Mapping[tuple[State, Event], State] = {
    ("stopped", "admit"): "starting",
    ("failed", "admit"): "starting",
    ("starting", "came"): "ready",
    ("ready", "drain"): "draining",
    ("draining", "recall"): "ready",
    # Before there is a process: no weights, no engine installed, the port taken.
    ("stopped", "broke"): "failed",
    ("failed", "broke"): "failed",
    ("starting", "broke"): "failed",
    ("ready", "broke"): "failed",
    ("draining", "broke"): "failed",
    ("starting", "stop"): "stopping",
    ("ready", "stop"): "stopping",
    ("draining", "stop"): "stopping",
    ("failed", "stop"): "stopped",
    ("stopping", "gone"): "stopped",
}

RESIDENT: frozenset[State] = frozenset({"starting", "ready", "draining", "stopping"})
"""Engines in these states hold memory."""


class ImpossibleTransition(AssertionError):
    """A bug in the gateway: the event can't happen in this state."""


def after(state: State, event: Event) -> State:
    """The next state. Raises ImpossibleTransition if the table has none."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise ImpossibleTransition(f"{event} while {state}") from None

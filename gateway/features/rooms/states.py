"""The states of a room: the table of transitions, and the verbs that each state refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from gateway.errors import InternalError, ProviderInvalidRequest

State = Literal["rented", "active", "idle", "sleeping", "releasing", "released", "failed"]
Trigger = Literal["begin", "wake", "settle", "sleep", "release", "finish", "fail"]
Verb = Literal["message", "wake", "update", "interrupt", "release"]

STATES: tuple[State, ...] = get_args(State)

TRANSITIONS: Mapping[tuple[State, Trigger], State] = {
    ("rented", "begin"): "active",
    ("idle", "begin"): "active",
    ("sleeping", "begin"): "active",
    ("rented", "wake"): "active",
    ("sleeping", "wake"): "active",
    ("failed", "wake"): "active",
    ("active", "settle"): "idle",
    ("idle", "sleep"): "sleeping",
    ("rented", "release"): "releasing",
    ("active", "release"): "releasing",
    ("idle", "release"): "releasing",
    ("sleeping", "release"): "releasing",
    ("failed", "release"): "releasing",
    ("releasing", "finish"): "released",
    ("active", "fail"): "failed",
}
"""begin: a message came. wake: the verb. settle: no work is left. sleep: idle for too long, or the model asked for it.
release: the verb, or the model asked for it. finish: no turn runs any more. fail: a turn failed."""

EVENTS: Mapping[Trigger, str] = {
    "begin": "room:active",
    "wake": "room:active",
    "settle": "room:idle",
    "sleep": "room:sleeping",
    "release": "room:releasing",
    "finish": "room:released",
    "fail": "room:failed",
}
"""The event of each transition."""

DETACHED: frozenset[State] = frozenset({"sleeping", "released", "failed"})
"""States without a worker: a follower that has reached the last event has seen them all."""

OPEN: tuple[State, ...] = ("rented", "active", "idle", "sleeping", "releasing", "failed")
"""States that count towards `rooms.max_rooms`."""

_GONE: Mapping[State, str] = {"releasing": "room_releasing", "released": "room_released"}
REFUSED: Mapping[Verb, Mapping[State, str]] = {
    "message": {**_GONE, "failed": "room_failed"},
    "wake": _GONE,
    "update": _GONE,
    "interrupt": {"released": "room_released"},
    "release": {"released": "room_released"},
}
"""Verb → state that refuses it → error code (HTTP 409). Also, `interrupt` needs a running turn (`no_turn_running`) and
`message` an empty queue (`message_queued`)."""

_WORDS = {
    "room_releasing": "it is being released",
    "room_released": "it was released",
    "room_failed": "it has failed: wake it first, or release it",
}


def after(state: State, trigger: Trigger) -> State:
    """The next state. Raises InternalError for a transition that isn't in the table, which is a bug of ours."""
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise InternalError(f"a room can't {trigger} while it is {state}") from None


def check(verb: Verb, state: State) -> None:
    """Raises ProviderInvalidRequest (409) if the state refuses the verb."""
    if code := REFUSED[verb].get(state):
        raise conflict(code, f"the room takes no {verb}: {_WORDS[code]}")


def conflict(code: str, message: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(message, code=code, status=409)

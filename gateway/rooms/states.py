"""The states of a room, in one table: what may follow what, and which verb is refused where."""

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
"""begin: a message came. wake: the verb. settle: nothing is left to do. sleep: idle for long, or asked for by the
model. release: the verb, or the model. finish: no turn runs any more. fail: a turn could not be carried out."""

EVENTS: Mapping[Trigger, str] = {
    "begin": "room:active",
    "wake": "room:active",
    "settle": "room:idle",
    "sleep": "room:sleeping",
    "release": "room:releasing",
    "finish": "room:released",
    "fail": "room:failed",
}
"""The event that tells of each transition."""

DETACHED: frozenset[State] = frozenset({"sleeping", "released", "failed"})
"""No worker is attached; who follows the events has seen them all."""

OPEN: tuple[State, ...] = ("rented", "active", "idle", "sleeping", "releasing", "failed")
"""What counts for `rooms.max_rooms`."""

_GONE: Mapping[State, str] = {"releasing": "room_releasing", "released": "room_released"}
REFUSED: Mapping[Verb, Mapping[State, str]] = {
    "message": {**_GONE, "failed": "room_failed"},
    "wake": _GONE,
    "update": _GONE,
    "interrupt": {"released": "room_released"},
    "release": {"released": "room_released"},
}
"""The code with which a verb is refused in a state, HTTP 409. Beside it: `interrupt` needs a turn that runs
(`no_turn_running`), `message` a free place in the queue (`message_queued`)."""

_WORDS = {
    "room_releasing": "it is being released",
    "room_released": "it has been released",
    "room_failed": "it has failed: wake it first, or release it",
}


def after(state: State, trigger: Trigger) -> State:
    """Raises InternalError for what the table doesn't have: that is our mistake, never the caller's."""
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise InternalError(f"a room can't {trigger} while it is {state}") from None


def check(verb: Verb, state: State) -> None:
    """Raises ProviderInvalidRequest (409)."""
    if code := REFUSED[verb].get(state):
        raise conflict(code, f"the room takes no {verb}: {_WORDS[code]}")


def conflict(code: str, message: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(message, code=code, status=409)

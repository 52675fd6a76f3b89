"""The prompts of an engine that saves and restores them itself, and reports what it restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.prompts.doctor import Doctor
from gateway.prompts.speed import RATE_TOKENS, counts


class ToldPrompts:
    """For one model: its earlier requests, and how fast its engine reads."""

    def __init__(self) -> None:
        self.doctor = Doctor()
        self.seconds_per_token = 0.0


class ToldTurn:
    """A request in such an engine; see `gateway.prompts.turn.Turn`.

    asked: its tools and messages, if the doctor should see them. restored: tokens that the engine took from a file.
    owner: whose request it is.
    """

    __slots__ = ("_asked", "_owner", "_prompts", "_restored")

    def __init__(self, prompts: ToldPrompts, asked: tuple[bytes, bytes] | None, restored: int, owner: str = "") -> None:
        self._owner = owner
        self._prompts = prompts
        self._asked = asked
        self._restored = restored

    def leave(self) -> None:
        """The engine chooses its places itself."""

    def answered(self, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]:
        """See `gateway.prompts.turn.Turn.answered`."""
        prompts, found = self._prompts, counts(usage)
        told = dict(usage)
        if found is not None:
            prompt, cached, _ = found
            if first and prompt - cached >= RATE_TOKENS:
                prompts.seconds_per_token = (first - began) / (prompt - cached)
            if helped := min(self._restored, cached):
                told |= {"restored_tokens": helped, "seconds_saved": round(helped * prompts.seconds_per_token, 3)}
        places = prompts.doctor.compare(*self._asked, self._owner) if self._asked is not None else []
        return {**told, "prefix": [str(place) for place in places]} if places else told

"""The progress of a waiting request, as streams report it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Waiting = Literal["memory", "drain", "back-off", "load", "place"]
"""What a request waits for: memory that other engines hold, the end of answers in flight in the engine itself, the next
try of a failed engine, the loading of the weights or, with service tier flex, a free slot of the engine."""

STEP_SECONDS = 5
"""How often the progress of a waiting request reports how long it has waited."""


class Progress(Struct, frozen=True):
    """How far a request that waits for its engine has come.

    position, waiting: its place in the order of arrival among the requests for this engine, from 1, and their number.
    Others may be served first: see `gateway.line.in_order`. loaded: the part of the engine's
    memory that is filled, 0 to 1; None unless the engine is loading and its size is known. waited: seconds. held_by:
    the models that hold the memory.
    """

    phase: Waiting
    position: int
    waiting: int
    loaded: float | None
    waited: float = 0.0
    held_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The text of a stream's comment."""
        if self.phase == "load":
            return "loading" if self.loaded is None else f"loading percent={min(99, int(100 * self.loaded))}"
        text = f"queued for={self.phase} position={self.position} waiting={self.waiting}"
        if self.held_by:
            text += f" held-by={','.join(self.held_by)}"
        seconds = int(self.waited) // STEP_SECONDS * STEP_SECONDS
        return f"{text} seconds={seconds}" if seconds else text

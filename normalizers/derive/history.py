"""How a template wants past calls: whatever else it would lose or garble. Found by rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normalizers.derive.probes import SAID, THOUGHT
from normalizers.derive.sample import ONE, OTHER, OTHER_VALUE, VALUE
from normalizers.derive.turns import Call, NotRendered, Turns


@dataclass(frozen=True, slots=True)
class History:
    """arguments: the only form in which the template shows them as the model wrote them. single_calls: of several calls
    in one message it loses some, or refuses them; not of several messages. apart: it drops the text beside a call, but
    not that of a message of its own. reasoning: whether it shows that of earlier turns; `asked`: if the variable
    `keeps` says so. Empty: it shows none at all, or nobody knows."""

    arguments: Literal["either", "object", "text"] = "either"
    single_calls: bool = False
    apart: bool = False
    reasoning: Literal["", "kept", "asked", "dropped"] = ""
    keeps: tuple[str, bool] | None = None

    def words(self) -> list[str]:
        """What the gateway does about it, for people."""
        found = []
        if self.arguments != "either":
            form = "an object" if self.arguments == "object" else "JSON in a string"
            found.append(f"it shows the arguments of past calls right only if they come as {form}")
        if self.single_calls:
            found.append("of several past calls it needs each in a message of its own, and gets them so")
        if self.apart:
            found.append("text beside past calls it needs in a message of its own, and gets it so")
        if self.reasoning == "dropped":
            found.append("it drops the reasoning of earlier turns")
        if self.keeps is not None:
            found.append(f"it shows the reasoning of earlier turns if {self.keeps[0]} is {str(self.keeps[1]).lower()}")
        return found


def history(turns: Turns) -> History:
    """How the template wants past calls."""
    several, split = _shown(turns, ([ONE, OTHER], None)), _shown(turns, ([ONE], None), ([OTHER], None))
    beside, apart = _shown(turns, ([ONE], SAID)), _shown(turns, ((), SAID), ([ONE], None))
    both = (VALUE, OTHER_VALUE)
    reasoning, keeps = _reasoning(turns)
    return History(
        arguments=turns.arguments,
        single_calls=not _has(several, *both) and _has(split, *both),
        apart=VALUE in beside and SAID not in beside and _has(apart, SAID, VALUE),
        reasoning=reasoning,
        keeps=keeps,
    )


_KEEPS = (
    ("preserve_thinking", True),
    ("clear_thinking", False),
    ("drop_thinking", False),
    ("preserve_reasoning", True),
)
"""Variables with which templates keep the reasoning of earlier turns."""


def _reasoning(turns: Turns) -> tuple[Literal["", "kept", "asked", "dropped"], tuple[str, bool] | None]:
    if not turns.shows_reasoning:
        return "", None
    try:
        if THOUGHT in turns.earlier(ONE, THOUGHT):
            return "kept", None
        for name, value in _KEEPS:
            if THOUGHT in turns.earlier(ONE, THOUGHT, **{name: value}):
                return "asked", (name, value)
    except NotRendered:
        return "", None
    return "dropped", None


def _shown(turns: Turns, *answers: tuple[list[Call] | tuple[()], str | None]) -> str:
    """What the template renders of these answers in a row; empty if it refuses them."""
    try:
        return turns.conversation(answers)
    except NotRendered:
        return ""


def _has(text: str, *words: str) -> bool:
    return all(word in text for word in words)

"""Compares the ways of showing a model its tools, by their results in a suite of model-test. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct


class Way(Struct, frozen=True):
    """prompt, wording: the values of tool_prompt and tool_wording; the template has its own words."""

    prompt: str
    wording: str = "brief"

    def __str__(self) -> str:
        return self.prompt if self.wording == "brief" else f"{self.prompt}, {self.wording}"

    def keys(self) -> dict[str, str]:
        """For the model's entry in config.yaml."""
        if self.prompt == "template":
            return {"tool_prompt": self.prompt}
        return {"tool_prompt": self.prompt, "tool_wording": self.wording}


WAYS = (Way("template"), Way("system"), Way("system", "examples"), Way("both", "examples"))
"""The ways that are worth trying. Brief words beside a template repeat what it says."""


class Share(Struct, frozen=True):
    """How many of how many."""

    k: int
    n: int

    def __str__(self) -> str:
        return f"{self.k} of {self.n}"


class Showing(Struct, frozen=True):
    """What a model did with its tools shown in one way.

    due: calls made where one was due. quiet: no call where none was due. seconds: of all its answers.
    """

    way: Way
    passed: Share
    due: Share
    quiet: Share
    seconds: float

    @property
    def decided(self) -> int:
        """How often it was right to call, or not to call."""
        return self.due.k + self.quiet.k


def ways(prompt: str, wording: str) -> tuple[Way, ...]:
    """The ways to try, the model's own first. prompt, wording: its keys; `auto` is the template if that takes tools."""
    own = WAYS[0] if prompt in ("auto", "template") else Way(prompt, wording)
    return own, *(way for way in WAYS if way != own)


def read(way: Way, results: Mapping[str, Any]) -> Showing:
    """From the results of a complete run of model-test."""
    metrics = results["metrics"]
    return Showing(
        way,
        Share(**results["summary"]["overall"]),
        Share(**metrics["call_recall"]),
        Share(**metrics["specificity"]),
        sum(case.get("ms", 0) for case in results["cases"].values()) / 1000,
    )


def choose(tried: Sequence[Showing]) -> Showing:
    """The best way. The first one, the model's own, unless another one is worse in nothing and better in something.

    Compares answers that passed, and right decisions to call: a way that makes more due calls mustn't lose more by
    needless ones.
    """
    own = tried[0]
    better = [
        each
        for each in tried[1:]
        if each.passed.k >= own.passed.k
        and each.decided >= own.decided
        and (each.passed.k, each.decided) != (own.passed.k, own.decided)
    ]
    return max(better, key=lambda each: each.passed.k + each.decided, default=own)


def note(chosen: Showing, tried: Sequence[Showing], suite: str, day: str) -> str:
    """The figures of the choice for a comment in config.yaml: they begin with the suite's name."""
    others = "; ".join(f"{each.way} {each.passed.k}/{each.due.k}/{each.quiet.k}" for each in tried if each != chosen)
    return (
        f"{suite} {day}: passed {chosen.passed}, calls where due {chosen.due}, quiet where due {chosen.quiet}"
        f"{f'; {others}' if others else ''}"
    )

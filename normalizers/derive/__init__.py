"""Derives a model's format from its chat template: what the template writes of past calls shows how the model calls.

Differences between renders give the marks, and the round trip decides: a format counts only if it reads everything back
that the template renders, exactly, whole and in pieces. Pure: the caller renders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from itertools import product
from typing import Any

from normalizers.derive.frames import frames
from normalizers.derive.history import History, history
from normalizers.derive.layouts import layout
from normalizers.derive.probes import SHOWN, Rendered, misread, rendered
from normalizers.derive.sample import ONE, Place, Sample
from normalizers.derive.shapes import Fields, candidates
from normalizers.derive.turns import NotRendered, Render, Turns
from normalizers.formats import FORMATS
from normalizers.registry import define
from normalizers.spec import FormatSpec, Layout

__all__ = ["NotRendered", "Render", "RoundTrip", "derive"]

NAME = "derived"
_SHORTEST_MARK = 3


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """What the round trip of one template shows. Neither a format nor fields: none reads it."""

    format: str = ""
    """The built-in format that reads it."""
    fields: Fields | None = None
    """A derived format, for `normalizers.registry.define`."""
    layout: Fields | None = None
    """The fields of the `Layout` in which the template writes calls; None if it can't be said."""
    history: History = field(default_factory=History)
    evidence: tuple[str, ...] = ()
    """The marks that begin calls."""
    probes: int = 0
    """How many conversations were read back."""
    reason: str = ""
    """Why there is no format."""


def round_trip(render: Render, *, detected: str = "", built_in: bool = True) -> RoundTrip:
    """The format that reads back what the template renders: the detected one, else any built-in one, else a derived
    one. Never raises for what a template does."""
    try:
        turns = Turns(render, SHOWN)
    except NotRendered as error:
        return RoundTrip(reason=f"the template shows no past calls: {error}")
    return replace(_round_trip(turns, detected, built_in=built_in), history=history(turns))


def _round_trip(turns: Turns, detected: str, *, built_in: bool) -> RoundTrip:
    found = rendered(turns)
    sample = Sample(turns)
    place = sample.place(sample.one, ONE)
    if built_in:
        for spec in _built_ins(sample, place, detected):
            if not misread(spec, found):
                marks = tuple(mark for mark in (*spec.open, *spec.begins) if mark in sample.one)
                laid_out = _layout(turns, spec, found)
                return RoundTrip(format=spec.name, layout=laid_out, evidence=marks, probes=len(found))
    if place is None:
        return RoundTrip(reason="the parts of a call don't stand in a known order")
    derived = _derived(sample, place, found)
    if derived.fields is None:
        return derived
    return replace(derived, layout=_layout(turns, define(derived.fields), found))


def _layout(turns: Turns, spec: FormatSpec, found: Rendered) -> Fields | None:
    made = layout(turns, spec, found)
    if made is None:
        return None
    default = Layout(made.call)
    given = {field.name: getattr(made, field.name) for field in dataclass_fields(made)}
    return {name: value for name, value in given.items() if name == "call" or value != getattr(default, name)}


def derive(render: Render) -> RoundTrip:
    """A derived format, whatever the built-in ones read."""
    return round_trip(render, built_in=False)


def _built_ins(sample: Sample, place: Place | None, detected: str) -> Iterator[FormatSpec]:
    """The detected format, then those whose marks the template writes. Without marks, those whose calls look alike."""
    yield from (spec for spec in FORMATS if spec.name == detected and not spec.untouched)
    bare = [] if place is None else [*candidates(sample, place)]
    for spec in FORMATS:
        marked = any(mark in sample.one for mark in (*spec.open, *spec.begins))
        alike = (spec.inline or spec.bare) and any(_is_alike(spec, fields) for fields in bare)
        if spec.name not in (detected, "auto") and (marked or alike):
            yield spec


def _is_alike(spec: FormatSpec, bare: Fields) -> bool:
    """Whether calls of the format, without its marks, are those of a derived one that has no marks."""
    if bare.get("open") or bare.get("begins") or spec.dialect != bare["dialect"]:
        return False
    return spec.dialect != "json" or (list(spec.keys), spec.listed) == (bare["keys"], bare["listed"])


def _derived(sample: Sample, place: Place, found: Rendered) -> RoundTrip:
    best, tried, where = -1, 0, ""
    names = list(found)
    for frame, shape in product([*frames(sample)], [*candidates(sample, place)]):
        fields = _combined(shape, frame)
        if not _tells_calls(fields):
            continue
        tried += 1
        wrong = misread(define(fields), found)
        if not wrong:
            return RoundTrip(fields=fields, evidence=_evidence(fields), probes=len(found))
        if names.index(wrong) > best:
            best, where = names.index(wrong), wrong
    if not tried:
        return RoundTrip(reason=f"no reader takes calls of this shape ({place.shape})")
    return RoundTrip(reason=f"none of {tried} formats reads back the conversation {where!r}")


def _tells_calls(fields: Fields) -> bool:
    """Whether what begins calls is neither what ends them nor a sign of any text."""
    syntax = fields.get("syntax", {})
    begins = [*fields.get("open", ()), *fields.get("begins", ())]
    ends = [*fields.get("close", ()), *syntax.get("call_end", ()), *syntax.get("tail", ())]
    return all(len(mark) >= _SHORTEST_MARK and mark not in ends for mark in begins)


def _combined(shape: Fields, frame: Fields) -> Fields:
    taken = {*shape.get("open", ()), *shape.get("close", ()), *shape.get("begins", ())}
    fields: dict[str, Any] = {"name": NAME, **shape, "think": frame["think"]}
    around = [mark for mark in frame["content_drop"] if mark not in taken]
    drop = [*dict.fromkeys((*shape.get("drop", ()), *around))]
    fields |= {"drop": drop, "content_drop": around, "first": frame["first"]}
    if "syntax" in fields:
        fields["syntax"] = {key: value for key, value in fields["syntax"].items() if value not in (False, [])}
    return {key: value for key, value in fields.items() if value or key == "keys"}


def _evidence(fields: Fields) -> tuple[str, ...]:
    return (*fields.get("open", ()), *fields.get("begins", ())) or ("calls without marks",)

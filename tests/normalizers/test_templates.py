"""What real chat templates write of past turns is read back exactly, by the format that the gateway would choose.

A template shows how its model was trained to write. Those of others lie beside the checkout, and are never copied into
it; without them their test skips. A dozen of our own, in ``templates/``, have the same shapes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from normalizers import FormatSpec, detect, get
from normalizers.derive import round_trip
from normalizers.derive.turns import Json, NotRendered
from normalizers.registry import define
from tests.support.chat_templates import (
    BROKEN,
    OWN,
    SHARED,
    Found,
    difference,
    needs_templates,
    rendered,
    renderer,
    templates,
)


def gateways_choice(source: str) -> FormatSpec:
    """What `gateway.detection.choice` makes of it in another process."""
    detected = detect(chat_template=source)
    found = round_trip(renderer(source), detected=detected.format if detected else "")
    if found.fields is not None:
        return define(found.fields)
    return get(found.format or (detected.format if detected else "auto"))


def differences(source: str, found: Found) -> dict[str, str]:
    spec = gateways_choice(source)
    wrong = {name: f"{spec.name}: {difference(spec, *pair)}" for name, pair in found.items()}
    return {name: said for name, said in wrong.items() if not said.endswith(": ")}


@pytest.mark.parametrize("path", templates(OWN), ids=lambda path: path.stem)
def test_our_own_templates(path: Path) -> None:
    source = path.read_text("utf-8")
    chosen = detect(chat_template=source)
    assert chosen is not None
    assert path.stem == chosen.format
    found = rendered(source)
    assert len(found) >= 14
    assert differences(source, found) == {}


def test_there_are_a_dozen_of_our_own() -> None:
    assert len(templates(OWN)) >= 12


@needs_templates
def test_the_templates_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    shown = right = probes = 0
    wrong: dict[str, Json] = {}
    stale: dict[str, list[str]] = {}
    for path in templates(SHARED):
        source = path.read_text("utf-8")
        try:
            found = rendered(source)
        except NotRendered:
            continue
        broken = BROKEN.get(path.stem, {})
        differs = differences(source, found)
        shown, right, probes = shown + 1, right + (not differs), probes + len(found)
        if unexplained := {name: said for name, said in differs.items() if name not in broken}:
            wrong[path.stem] = unexplained
        if unneeded := [name for name in broken if name in found and name not in differs]:
            stale[path.stem] = unneeded
    with capsys.disabled():
        print(f"\ntemplates: {right} of {shown} that show past calls are read exactly, with {probes} probes in all")
    assert not wrong
    assert not stale, "these are right although they are listed"
    assert shown > 100

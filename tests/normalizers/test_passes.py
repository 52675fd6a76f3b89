"""`registry.passes` is true only for text that a normaliser would not change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalizers import coalesce, registry
from normalizers.events import TextDelta

TOOLS = [{"type": "function", "function": {"name": "fn", "parameters": {"type": "object", "properties": {}}}}]
PIECES = ["fn", "(", ")", "[", "]", "{", "}", "<", ">", "|", "`", "\n", " ", "a", ":", '"', "Tool", "call", "="]


def pieces(name: str) -> list[str]:
    spec = registry.get(name)
    return [*PIECES, *spec.open, *spec.close, *spec.drop, *(mark for pair in spec.think for mark in pair)]


def untouched(name: str, text: str) -> bool:
    normalizer = registry.normalizer(name, TOOLS)
    events = coalesce([*normalizer.feed(text), *normalizer.finish("stop")])
    return events == [TextDelta(text)] and not normalizer.called


@pytest.mark.parametrize("name", registry.names())
@given(data=st.data())
def test_only_untouched_text_passes(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(pieces(name)), min_size=1)))
    assert untouched(name, text) or not registry.passes(registry.get(name), text)


@pytest.mark.parametrize("name", [name for name in registry.names() if not registry.get(name).first])
@given(data=st.data())
def test_pieces_that_pass_also_pass_joined(name: str, data: st.DataObject) -> None:
    spec = registry.get(name)
    harmless = [piece for piece in pieces(name) if registry.passes(spec, piece)]
    assert {"\n", "a", '"', "="} <= {*harmless}
    text = "".join(data.draw(st.lists(st.sampled_from(harmless), min_size=1)))
    assert registry.passes(spec, text)
    assert untouched(name, text)


@pytest.mark.parametrize("name", registry.names())
@given(data=st.data())
def test_a_piece_that_passes_changes_nothing(name: str, data: st.DataObject) -> None:
    cut = data.draw(st.lists(st.sampled_from(pieces(name)), min_size=1))
    asked, unasked = (registry.normalizer(name, TOOLS, ids=lambda: "id") for _ in range(2))
    for piece in cut:
        passes = asked.passes(piece)
        events = unasked.feed(piece)
        if passes:
            assert events == [TextDelta(piece)]
        else:
            assert asked.feed(piece) == events
    assert asked.finish("stop") == unasked.finish("stop")


@pytest.mark.parametrize("name", [name for name in registry.names() if registry.get(name).first])
def test_nothing_passes_where_an_answer_may_begin_within_a_region(name: str) -> None:
    assert not registry.passes(registry.get(name), "Hello")


def test_prose_passes() -> None:
    assert registry.passes(registry.get("pythonic"), "Two lines\nof prose, no more.")
    assert not registry.passes(registry.get("pythonic"), "fn(a=1)")

"""`registry.passes` may say yes only where a normaliser would change nothing."""

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


@pytest.mark.parametrize("name", registry.names())
@given(data=st.data())
def test_what_passes_is_untouched(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(pieces(name)), min_size=1)))
    spec = registry.get(name)
    if registry.passes(spec, text):
        normalizer = registry.normalizer(spec, TOOLS)
        assert coalesce([*normalizer.feed(text), *normalizer.finish("stop")]) == [TextDelta(text)]
        assert not normalizer.called


def test_prose_passes() -> None:
    assert registry.passes(registry.get("pythonic"), "Two lines\nof prose, no more.")
    assert not registry.passes(registry.get("pythonic"), "fn(a=1)")

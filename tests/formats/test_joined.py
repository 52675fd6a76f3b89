"""Messages of one role in a row become one message."""

from __future__ import annotations

from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.conversation import joined, text_part

Json = dict[str, Any]
IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}

_TEXT = st.text("ab", min_size=1, max_size=3)
_PARTS = st.lists(st.one_of(_TEXT.map(text_part), st.just(IMAGE)), max_size=3)
_MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.one_of(st.none(), _TEXT, _PARTS)},
    optional={
        "reasoning_content": st.one_of(_TEXT, st.just(7)),
        "tool_calls": st.lists(st.integers(), max_size=2),
        "name": _TEXT,
    },
)


@given(st.lists(_MESSAGES, min_size=1, max_size=6))
def test_all_at_once_is_one_after_another(messages: list[Json]) -> None:
    def both(found: Json, message: Json) -> Json:
        (one,) = joined([found, message])
        return one

    assert joined(messages) == [reduce(both, messages)]


def test_many() -> None:
    (one,) = joined([{"role": "user", "content": "x"}] * 20_000)
    assert one == {"role": "user", "content": "\n\n".join("x" * 20_000)}
    (one,) = joined([{"role": "user", "content": [IMAGE]}] * 20_000)
    assert one == {"role": "user", "content": [IMAGE] * 20_000}

"""What JSON can hold."""

from __future__ import annotations

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

"""How the gateway counts the values of a body that it hasn't decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ProviderInvalidRequest
from gateway.wire import values
from gateway.wire.values import MAX_VALUES, check, check_texts, check_width

_TEXT = st.text('\\",[{}]: aé\n', max_size=8)
_JSON = st.recursive(
    _TEXT | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """Each object and array, and what it holds but for the first."""
    held = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if held is None else 1 + max(0, len(held) - 1) + sum(map(counted, held))


@given(_JSON, st.integers(1, 9), st.booleans())
def test_texts_hold_no_values(value: Any, step: int, ascii: bool) -> None:
    """Wherever a step ends."""
    body = json.dumps(value, ensure_ascii=ascii).encode()
    maximum = counted(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "STEP", step)
        check(body, maximum)
        if 0 < maximum <= len(body):
            with pytest.raises(ProviderInvalidRequest, match="JSON values"):
                check(body, maximum - 1)


def texts(value: Any) -> list[str]:
    """All of a value, keys among them."""
    if isinstance(value, dict):
        return [*value, *texts([*value.values()])]
    return (
        [text for one in value for text in texts(one)] if isinstance(value, list) else [value] * isinstance(value, str)
    )


@given(
    st.recursive(
        st.text('\\"u😀é', max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"😀', max_size=3), inner, max_size=4),
        max_leaves=20,
    ),
    st.integers(1, 9),
    st.booleans(),
)
def test_which_texts_are_wide(value: Any, step: int, ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode()
    wide = sum(
        len(json.dumps(text, ensure_ascii=ascii).encode()[1:-1].replace(b"\\\\", b"").replace(b'\\"', b""))
        for text in texts(value)
        if "😀" in text
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "STEP", step)
        patch.setattr(values, "MAX_WIDE", wide)
        check_width(body)
        if 0 < wide <= len(body):
            patch.setattr(values, "MAX_WIDE", wide - 1)
            with pytest.raises(ProviderInvalidRequest, match="emoji"):
                check_width(body)


@pytest.mark.parametrize("body", [b'"\xff"', b'"\xc3', b'"\xed\xa0\x80"'])
def test_what_is_no_utf8(body: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        check(body)


def test_a_list_of_texts_is_shorter_than_one_of_tokens() -> None:
    maximum = ["x"] * 2 * MAX_VALUES
    check_texts(json.dumps(maximum).encode())
    check_texts(json.dumps([*range(10 * MAX_VALUES)]).encode())
    check_texts(json.dumps(['"' * 10 * MAX_VALUES]).encode())
    with pytest.raises(ProviderInvalidRequest, match="JSON values that are texts"):
        check_texts(json.dumps([*maximum, "x"]).encode())

"""Lists and objects that a template writes as Python's repr does, escapes included, are read exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normalizers.values.coerce import read_container
from tests.normalizers.splits import parse, tool
from tests.support.thorough import examples

CALLS = {
    "seed_oss": "<seed:tool_call>\n<function=put>\n<parameter=list>{}</parameter>\n</function>\n</seed:tool_call>",
    "minicpm5": '<function name="put"><param name="list">{}</param></function>',
    "functiongemma": "<start_function_call>call:put{{list:<escape>{}<escape>}}<end_function_call>",
    "qwen3_coder": "<tool_call>\n<function=put>\n<parameter=list>\n{}\n</parameter>\n</function>\n</tool_call>",
}
TOOLS = [tool("put", list="array")]
TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from("\xa0\x1b\x7f\u200b\\'\"’\n"), max_size=6)
LISTS = st.lists(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


def read(name: str, written: str) -> Any:
    (call,) = parse(name, CALLS[name].format(written), TOOLS, unknown_tools="refuse").tool_calls
    return json.loads(call.arguments)["list"]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "value",
    [["10\u00a0000 €"], ["\x1b[31mred"], ["l'été\u00a0!", "l’été\u00a0!"], ["a\\b", "\\x1b", {"k\x7f": "\ufeff"}]],
)
def test_escapes_that_json_does_not_have(name: str, value: list[Any]) -> None:
    assert read(name, repr(value)) == value


@pytest.mark.parametrize("name", CALLS)
@given(value=LISTS)
@settings(max_examples=examples(100))
def test_any_list(name: str, value: list[Any]) -> None:
    assert read(name, repr(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["C:\\xab"]', ["C:\\xab"]),
        ("['C:\\xab']", ["C:\\xab"]),
        ('["\\x1b", 1,]', ["\\x1b", 1]),
        ('{"pattern": "\\d+\\x41"}', {"pattern": "\\d+\\x41"}),
        ("['\\x41\\n']", ["\\x41\n"]),
        ("[“it's\\x1bok's”]", ["it's\\x1bok's"]),
    ],
)
def test_a_backslash_that_python_would_not_have_written_so_is_one(text: str, value: Any) -> None:
    read = read_container(text)
    assert read is not None
    assert json.loads(read) == value

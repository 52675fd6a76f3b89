"""Line breaks around a value between tags: those that the model's template writes for it, and no others, are no part
of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normalizers import FormatSpec, ToolCall, get, names
from normalizers.spec import TagSyntax
from normalizers.write.layout import layout_of, tags_of
from normalizers.write.render import render_calls
from tests.normalizers.splits import parse, tool
from tests.support.thorough import examples

TAGS = [name for name in names() if tags_of(get(name)) is not None]
ON_LINES = ("qwen3_coder",)
TOOLS = [tool("put", text="string", other={"type": ["string", "null"]}, n="integer")]
TEXTS = ["", "\n", "\n\n", "\nfoo", "foo\n", "\n\nfoo", "\nfoo\nbar", "foo\n\n", "\r\nfoo", "\n ", " \nfoo"]


def values(spec: FormatSpec, written: str, key: str = "text", **options: bool) -> list[object]:
    """What is read of a call whose value is written like that: whole, by letters and cut anywhere."""
    call = render_calls(spec, [ToolCall("", "put", json.dumps({key: "wxyz"}))]).replace("wxyz", written)
    message = parse(spec, call, TOOLS, cuts=True, unknown_tools="refuse", **options)
    return [json.loads(each.arguments)[key] for each in message.tool_calls]


def no_layout(text: str) -> bool:
    return not (text.startswith("\n") and text[1:].endswith("\n"))


@pytest.mark.parametrize("name", [name for name in TAGS if name not in ON_LINES])
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("key", ["text", "other", "unknown"])
def test_a_line_break_on_one_side_is_part_of_a_value(name: str, guarded: bool, key: str) -> None:
    spec = get(name)
    for text in filter(no_layout, TEXTS):
        assert values(spec, text, key, guarded=guarded) == [text]


@pytest.mark.parametrize("name", TAGS)
def test_a_value_on_lines_of_its_own(name: str) -> None:
    spec = get(name)
    for text in TEXTS:
        kept = isinstance(tags := tags_of(spec), TagSyntax) and not tags.gap
        assert values(spec, f"\n{text}\n") == [f"\n{text}\n" if kept else text]


@pytest.mark.parametrize("name", ON_LINES)
def test_where_values_stand_on_lines_the_first_break_is_never_part_of_them(name: str) -> None:
    spec = get(name)
    assert [values(spec, text) for text in ("\nfoo", "\n", "foo\n", "\n\nfoo\n")] == [
        ["foo"],
        [""],
        ["foo\n"],
        ["\nfoo"],
    ]


def test_the_layout_of_a_template_says_whether_values_stand_on_lines() -> None:
    made = get(
        {
            "like": "qwen3_coder",
            "layout": {"call": layout_of(get("qwen3_coder")).call, "parameter": "<parameter={key}>{value}</parameter>"},
        }
    )
    assert values(made, "\nfoo") == ["\nfoo"]
    assert values(made, "\nfoo\n") == ["foo"]


@pytest.mark.parametrize("name", TAGS)
@given(text=st.text("\n ab", max_size=8))
@settings(max_examples=examples(40))
def test_what_is_written_is_read(name: str, text: str) -> None:
    spec = get(name)
    written = render_calls(spec, [ToolCall("", "put", json.dumps({"text": text, "n": 1}))])
    (call,) = parse(spec, written, TOOLS, unknown_tools="refuse").tool_calls
    assert json.loads(call.arguments) == {"text": text, "n": 1}

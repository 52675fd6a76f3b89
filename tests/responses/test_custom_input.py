"""The text of a custom tool, read out of the arguments that stand for it, whatever the pieces."""

from __future__ import annotations

import json

import pytest

from gateway.features.responses.wire.custom import InputReader

# The arguments, what leaves while they come, and the whole input.
CASES: dict[str, tuple[str, str, str]] = {
    "a text": ('{"input": "ls -l"}', "ls -l", "ls -l"),
    "space": (' {\n "input" :\t"a b" } ', "a b", "a b"),
    "escapes": (json.dumps({"input": 'a\n"b"\\c\t/é'}), 'a\n"b"\\c\t/é', 'a\n"b"\\c\t/é'),
    "a surrogate pair": ('{"input": "a\\ud83d\\ude00b"}', "a\U0001f600b", "a\U0001f600b"),
    "a raw line break": ('{"input": "a\nb"}', "a\nb", '{"input": "a\nb"}'),
    "nothing": ("{}", "", ""),
    "an empty text": ('{"input": ""}', "", ""),
    "other keys behind": ('{"input": "a", "more": "b"}', "a", "a"),
    "another key": ('{"command": "ls"}', "", '{"command": "ls"}'),
    "no text": ('{"input": ["a"]}', "", '{"input": ["a"]}'),
    "no object": ('"ls"', "", '"ls"'),
    "no JSON": ("ls -l", "", "ls -l"),
    "cut within": ('{"input": "ls', "ls", "ls"),
    "cut in an escape": ('{"input": "ls\\u00', "ls", "ls"),
    "cut in a pair": ('{"input": "ls\\ud83d', "ls", "ls"),
    "cut before": ('{"inp', "", '{"inp'),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("name", CASES)
def test_the_input(name: str, size: int) -> None:
    arguments, streamed, whole = CASES[name]
    reader = InputReader()
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    assert "".join(map(reader.feed, pieces)) == streamed
    if name != "a raw line break":
        assert reader.finish() == whole
    else:
        assert reader.finish() == "a\nb", "what no JSON reader takes stays as it was read"


@pytest.mark.parametrize(
    "text", [r"\ud83d", r"/[\ud83c\udf00]/", r"\\ud83d", "\U0001f600\\\U0001f600", "\\" * 5 + "ud83d\n"]
)
def test_an_input_that_contains_backslashes(text: str) -> None:
    """Such as JavaScript that writes escapes itself. Wherever the pieces are cut."""
    for arguments in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False)):
        for cut in range(len(arguments)):
            reader = InputReader()
            assert reader.feed(arguments[:cut]) + reader.feed(arguments[cut:]) == text
            assert reader.finish() == text


def test_a_raw_line_break_after_half_a_pair() -> None:
    reader = InputReader()
    assert "".join(map(reader.feed, ('{"input": "a\\ud83d\n', 'b"}'))) == "a\ufffd\nb"

"""What a reader says of the literals and values that it repaired."""

from __future__ import annotations

import pytest

from normalizers import normalizer
from tests.normalizers.splits import splits, tool

TOOLS = [tool("f", n="integer", s="string", words={"type": "array", "items": {"type": "string"}}), tool("g")]


def python(*calls: str) -> tuple[str, str]:
    return "pythonic", f"<|tool_call_start|>[{', '.join(calls)}]<|tool_call_end|>"


def json(call: str) -> tuple[str, str]:
    return "hermes", f"<tool_call>{call}</tool_call>"


def tags(name: str, value: str) -> tuple[str, str]:
    parameter = f"<parameter={name}>\n{value}\n</parameter>"
    return "qwen3_coder", f"<tool_call>\n<function=f>\n{parameter}\n</function>\n</tool_call>"


MENDED: dict[str, tuple[tuple[str, str], str]] = {
    "a call": (python("f(n=1, s='x')"), "none"),
    "text": (("pythonic", "Hello"), "none"),
    "an apostrophe": (python("f(s='it's fine')"), "lexical"),
    "typographic quotes": (python("f(s=“x”)"), "lexical"),
    "a key in quotes": (python("f('n'=1)"), "lexical"),
    "a colon": (python("f(n: 1)"), "lexical"),
    "space behind a sign": (python("f(n=- 1)"), "lexical"),
    "a bare word": (python("f(s=word)"), "lexical"),
    "a bare word in an array": (python("f(words=[word])"), "lexical"),
    "nan": (python("f(s=nan)"), "lexical"),
    "a number for a string": (python("f(s=02139)"), "schema"),
    "a string for a number": (python("f(n='1')"), "schema"),
    "a string that stays one": (python("f(n='many')"), "none"),
    "the strongest of two": (python("f(n='1')", "f(s=word)"), "schema"),
    "the strongest, last": (python("f(s=word)", "f(n='1')"), "schema"),
    "JSON": (json('{"name": "f", "arguments": {"n": 1}}'), "none"),
    "single quotes": (json("{'name': 'f', 'arguments': {'n': 1}}"), "lexical"),
    "arguments as a string": (json('{"name": "f", "arguments": "{\\"n\\": 1}"}'), "lexical"),
    "tags": (tags("n", "1"), "none"),
    "arguments in a tag": (tags("arguments", '{"n": 1}'), "schema"),
    "arguments of no tool": (tags("arguments", '{"m": 1}'), "none"),
}


@pytest.mark.parametrize("name", MENDED)
def test_the_strongest_repair(name: str) -> None:
    (format, text), mended = MENDED[name]
    for pieces in splits(text):
        reader = normalizer(format, TOOLS)
        assert reader.mended == "none"
        for piece in pieces:
            reader.feed(piece)
        reader.finish("stop")
        assert reader.mended == mended

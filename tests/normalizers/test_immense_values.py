"""Values that not every reader of JSON reads: they raise nothing, and no call that counts has one."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest

from normalizers import Message, ToolCall, fold, get, names, normalizer
from normalizers.write.render import render_calls
from tests.normalizers.splits import tool

KINDS = ("string", "integer", "number", "boolean", "array", "object")
TOOLS = [tool("f", [], **{kind: kind for kind in KINDS}), tool("g", ["open"], open={})]
WRITTEN = [name for name in names() if name not in ("auto", "native_json")]
IMMENSE = {
    "digits": "1" * 5000,
    "digits behind a sign": "-" + "1" * 5000,
    "a quoted number": f'"{"1" * 5000}"',
    "a fraction": "9" * 400 + ".5",
    "an exponent": "1e999",
    "brackets": "[" * 1500 + "]" * 1500,
    "braces": '{"a": ' * 1500 + "1" + "}" * 1500,
    "some brackets": "[" * 900 + "]" * 900,
    "quoted brackets": f'"{"[" * 900 + "]" * 900}"',
}
PLACE = 12321


def read(name: str, text: str, size: int) -> Message:
    parser = normalizer(name, TOOLS)
    events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
    return fold(events + parser.finish("stop"))


def finite(text: str) -> float:
    assert not math.isinf(float(text))
    return float(text)


def check(name: str, text: str) -> None:
    whole = read(name, text, len(text))
    assert [(call.name, call.arguments) for call in read(name, text, 200).tool_calls] == [
        (call.name, call.arguments) for call in whole.tool_calls
    ]
    for call in whole.tool_calls:
        arguments: dict[str, Any] = json.loads(call.arguments, parse_float=finite)
        assert arguments.keys() <= {*KINDS, "open"}


@pytest.mark.parametrize("value", IMMENSE)
@pytest.mark.parametrize("name", WRITTEN)
def test_an_argument(name: str, value: str) -> None:
    each: list[dict[str, Any]] = [*({kind: PLACE} for kind in KINDS), {"open": {"a": PLACE}}, {"open": [PLACE]}]
    for arguments in each:
        called = "g" if "open" in arguments else "f"
        text = render_calls(get(name), [ToolCall(f"functions.{called}:0", called, json.dumps(arguments))])
        check(name, text.replace(str(PLACE), IMMENSE[value]))


@pytest.mark.parametrize("value", IMMENSE)
@pytest.mark.parametrize("name", [name for name in WRITTEN if get(name).dialect == "json"])
def test_a_call_of_json(name: str, value: str) -> None:
    opener = "".join(get(name).open[:1])
    for text in (
        '{"name": %s, "arguments": {}}',
        '{"arguments": %s, "name": "f"}',
        '{"f": %s}',
        '{"name": "f", "arguments": {"array": %s}}',
        '{"name": "f", "arguments": {"integer": %s}}',
    ):
        check(name, opener + text % IMMENSE[value])
        check(name, text % IMMENSE[value])


@pytest.mark.parametrize("value", ["[" * 600 + "]" * 600, '{"a": ' * 600 + "1" + "}" * 600], ids=["arrays", "objects"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_past_call_is_written_or_refused(name: str, value: str) -> None:
    with contextlib.suppress(ValueError):
        assert render_calls(get(name), [ToolCall("", "f", f'{{"array": {value}}}')])

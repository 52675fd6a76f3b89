"""The rows of other projects' tests: 1,690 messages and 177 values that lie beside the checkout.

Each row of a format of ours is read whole, character by character and in 20 random splits. It is right as it
stands; or as its source runs and asserts it, told in ``conformance_sources.py`` (extended rows alone); or it is listed
with the law that it breaks in ``conformance_exceptions.json``. The figures are printed.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from normalizers import fold
from normalizers.values.coerce import text_value
from tests.normalizers.conformance import EXCEPTIONS, TABLES, Row, judge, rows, same, spec_of
from tests.normalizers.conformance_sources import SOURCES
from tests.normalizers.splits import run

pytestmark = pytest.mark.skipif(
    not (TABLES / "messages.jsonl").is_file(),
    reason="the conformance tables are not there: they lie beside the checkout, and are never copied into it",
)

EXTENDED_SHARE = 0.95


def by_format() -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    if (TABLES / "messages.jsonl").is_file():
        for row in rows("messages.jsonl"):
            if spec_of(row) is not None:
                groups.setdefault(row["format"], []).append(row)
    return groups


GROUPS = by_format()


@pytest.mark.parametrize("name", GROUPS)
def test_messages(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    count: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    stale: list[str] = []
    for row in GROUPS[name]:
        key, spec = row["id"], spec_of(row)
        assert spec is not None
        verdict = judge(row, spec)
        assert not verdict.split, f"{key} differs when split as {verdict.split}"
        told = key in EXCEPTIONS or key in SOURCES
        if verdict.wrong and key in SOURCES:
            verdict = judge(row, spec, SOURCES[key])
            assert not verdict.split, f"{key} differs when split as {verdict.split}"
            count["by its source"] += not verdict.wrong
        elif not verdict.wrong:
            count["as it stands"] += 1
            stale += [key] * told
        if verdict.wrong and key not in EXCEPTIONS:
            wrong[key] = verdict.wrong
    with capsys.disabled():
        right = f"{count['as it stands']} of {len(GROUPS[name])} right, {count['by its source']} more by their sources"
        listed = [row["id"] for row in GROUPS[name] if row["id"] in EXCEPTIONS]
        print(
            f"\n{name}: {right}, {len(listed)} break a law",
            *(f"{key}: {EXCEPTIONS[key]}" for key in listed),
            sep="\n  ",
        )
    assert not wrong
    assert not stale, "right, and yet listed"


def test_extended_rows_right(capsys: pytest.CaptureFixture[str]) -> None:
    """With `test_messages`, which shows that each row that isn't listed is right."""
    extended = [row["id"] for group in GROUPS.values() for row in group if row["tier"] != "core"]
    right = [key for key in extended if key not in EXCEPTIONS]
    with capsys.disabled():
        sources = sum(key in SOURCES for key in right)
        share = len(right) / len(extended)
        print(
            f"\nextended: {len(right)} of {len(extended)} right ({share:.1%}), {sources} of them by their sources",
            end="",
        )
    assert len(right) >= EXTENDED_SHARE * len(extended)


def test_every_listed_row_exists_once() -> None:
    tiers = {row["id"]: row["tier"] for row in rows("messages.jsonl")}
    assert {*EXCEPTIONS, *SOURCES} <= tiers.keys()
    assert not EXCEPTIONS.keys() & SOURCES.keys()
    assert {tiers[key] for key in SOURCES} == {"extended"}


# Where two anchors disagree: null only where the schema says so, and no value is invented.
VALUE_EXCEPTIONS = {
    ("null", "['string']"): '"null"',
    ("NULL", "['integer']"): '"NULL"',
    ("yes", "['boolean']"): '"yes"',
    ("{}", "['object']"): "{}",
}


def test_coerced_values() -> None:
    wrong = []
    for row in rows("values.jsonl"):
        if row["kind"] != "coerce":
            continue
        schema = {"type": row["schema_type"]}
        text = row["input"]
        if "Qwen" in row["source"] and len(text) > 1 and text[0] == text[-1] == "\n":
            text = text[1:-1]  # that parser is given the text with its wrapping line breaks
        got = text_value(text, schema, schema)
        expected = VALUE_EXCEPTIONS.get((row["input"], str(row["schema_type"])))
        if not (got == expected if expected is not None else same(json.loads(got), row["expected"])):
            wrong.append((row["input"], row["schema_type"], got, row["expected"]))
    assert not wrong


def test_python_values() -> None:
    wrong: list[Any] = []
    for row in rows("values.jsonl"):
        if row["kind"] != "pyvalue":
            continue
        message = fold(run("pythonic", [f"<|tool_call_start|>[f(a={row['input']})]<|tool_call_end|>"]))
        got = [json.loads(call.arguments)["a"] for call in message.tool_calls]
        if not same(got, [] if row["error"] else [row["expected"]]):
            wrong.append((row["input"], got, row["expected"]))
    assert not wrong

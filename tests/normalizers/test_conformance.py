"""Our own rows for every format, and the rows of other projects' tests: 1,690 messages and 177 values.

The latter lie beside the checkout; without them those tests skip. Each row of a format of ours is read whole,
character by character and in 20 random splits. It is right as it stands; or as its source runs and asserts it
(``conformance_sources.py``, extended rows only); or ``conformance_exceptions.json`` lists it with the law that it
breaks. The figures are printed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from normalizers import fold, get, names
from normalizers.values.coerce import schema_types, text_value
from tests.normalizers.conformance import EXCEPTIONS, OWN, TABLES, Row, judge, needs_tables, rows, same, spec_of
from tests.normalizers.conformance_sources import SOURCES
from tests.normalizers.splits import run

either_table = pytest.mark.parametrize("table", [OWN, pytest.param(TABLES, marks=needs_tables)], ids=["own", "shared"])

EXTENDED_SHARE = 0.94


def by_format(table: Path) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    if (table / "messages.jsonl").is_file():
        for row in rows(table / "messages.jsonl"):
            if spec_of(row) is not None:
                groups.setdefault(row["format"], []).append(row)
    return groups


GROUPS = by_format(TABLES)
OWN_GROUPS = by_format(OWN)


def test_every_format_has_rows_of_our_own() -> None:
    assert set(OWN_GROUPS) == {name for name in names() if not get(name).untouched}
    kinds = {"one call", "two calls, nested values", "cut within a call", "an answer"}
    for name, group in OWN_GROUPS.items():
        reasons = {"reasoning, then a call"} if get(name).think or name == "harmony" else set()
        assert kinds | reasons <= {row["source"].removeprefix("ctxgate: ") for row in group}


@pytest.mark.parametrize("name", OWN_GROUPS)
def test_own_messages(name: str) -> None:
    spec = get(name)
    for row in OWN_GROUPS[name]:
        verdict = judge(row, spec)
        assert (row["id"], verdict.wrong, verdict.split) == (row["id"], "", "")


@needs_tables
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
        listed = key in EXCEPTIONS or key in SOURCES
        if verdict.wrong and key in SOURCES:
            verdict = judge(row, spec, SOURCES[key])
            assert not verdict.split, f"{key} differs when split as {verdict.split}"
            count["by its source"] += not verdict.wrong
        elif not verdict.wrong:
            count["as it stands"] += 1
            stale += [key] * listed
        if verdict.wrong and key not in EXCEPTIONS:
            wrong[key] = verdict.wrong
    with capsys.disabled():
        right = f"{count['as it stands']} of {len(GROUPS[name])} right, {count['by its source']} more by their sources"
        excepted = [row["id"] for row in GROUPS[name] if row["id"] in EXCEPTIONS]
        print(
            f"\n{name}: {right}, {len(excepted)} break a law",
            *(f"{key}: {EXCEPTIONS[key]}" for key in excepted),
            sep="\n  ",
        )
    assert not wrong
    assert not stale, "these rows are right although they are listed"


@needs_tables
def test_extended_rows_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts on `test_messages`, which checks that every row that isn't listed is right."""
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


@needs_tables
def test_every_listed_row_exists_once() -> None:
    tiers = {row["id"]: row["tier"] for row in rows(TABLES / "messages.jsonl")}
    assert {*EXCEPTIONS, *SOURCES} <= tiers.keys()
    assert not EXCEPTIONS.keys() & SOURCES.keys()
    assert {tiers[key] for key in SOURCES} == {"extended"}


# Two projects disagree on these. Ours: null only if the schema accepts it, and no value is invented.
VALUE_EXCEPTIONS = {
    ("null", "['string']"): '"null"',
    ("NULL", "['integer']"): '"NULL"',
    ("yes", "['boolean']"): '"yes"',
    ("{}", "['object']"): "{}",
}


@either_table
def test_coerced_values(table: Path) -> None:
    wrong = []
    for row in rows(table / "values.jsonl"):
        if row["kind"] != "coerce":
            continue
        schema = {"type": row["schema_type"]}
        text = row["input"]
        if "Qwen" in row["source"] and len(text) > 1 and text[0] == text[-1] == "\n":
            text = text[1:-1]  # that parser takes the text with its wrapping line breaks
        got = text_value(text, schema_types(schema, schema))
        expected = VALUE_EXCEPTIONS.get((row["input"], str(row["schema_type"])))
        if not (got == expected if expected is not None else same(json.loads(got), row["expected"])):
            wrong.append((row["input"], row["schema_type"], got, row["expected"]))
    assert not wrong


@either_table
def test_python_values(table: Path) -> None:
    wrong: list[Any] = []
    for row in rows(table / "values.jsonl"):
        if row["kind"] != "pyvalue":
            continue
        message = fold(run("pythonic", [f"<|tool_call_start|>[f(a={row['input']})]<|tool_call_end|>"]))
        got = [json.loads(call.arguments)["a"] for call in message.tool_calls]
        if not same(got, [] if row["error"] else [row["expected"]]):
            wrong.append((row["input"], got, row["expected"]))
    assert not wrong

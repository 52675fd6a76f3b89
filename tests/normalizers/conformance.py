"""Runs the rows of the conformance tables: our own in ``rows/``, and the shared ones beside the checkout.

A shared row holds a model's text and the result that a passing test of another project expects. If a row
has a recommendation, that is the right answer. ``conformance_sources.py`` holds what such a test does
beyond its row. ``conformance_exceptions.json`` names the rows that break one of our laws or policies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from normalizers import (
    Event,
    FormatSpec,
    Message,
    TextDelta,
    ToolEnd,
    ToolStart,
    UnknownFormat,
    coalesce,
    fold,
    get,
    normalizer,
)
from tests.normalizers.conformance_sources import Part, Source
from tests.normalizers.splits import policy, run, splits

ROOT = Path(__file__).parents[2]
OWN = Path(__file__).with_name("rows")
TABLES = Path(os.environ.get("CTXGATE_CONFORMANCE", ROOT.parent / "shared" / "conformance" / "toolcalls"))
needs_tables = pytest.mark.skipif(
    not (TABLES / "messages.jsonl").is_file(),
    reason="the shared conformance tables are missing: they lie beside the checkout and are never copied into it",
)
EXCEPTIONS: dict[str, str] = {
    row: law
    for law, rows in json.loads(Path(__file__).with_name("conformance_exceptions.json").read_text("utf-8")).items()
    for row in rows
}

Row = dict[str, Any]


def rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def spec_of(row: Row) -> FormatSpec | None:
    try:
        return get(row["format"])
    except UnknownFormat:
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    wrong: str = ""
    """How the answer differs from the row; empty if it doesn't."""
    split: str = ""
    """How two splits differ; empty if they agree."""


AS_IT_STANDS = Source()


def judge(row: Row, spec: FormatSpec, source: Source = AS_IT_STANDS, *, random_splits: int = 20) -> Verdict:
    """Run the row as `source` does, in every split, and compare what `source` asserts."""
    if "reasoning_format_none" in row["flags"]:
        spec = replace(spec, think=())
    # Most rows declare no tools; the tests that they come from know none.
    spec = replace(policy(spec, "forward"), **source.policy)
    text, tools, options = _arrange(row, spec)
    text = "".join(source.stream) or text
    tools = [*tools, *source.tools]
    options["reasoning_open"] |= source.reasoning_open
    options["unknown_tools"] = spec.unknown_tools
    # Such a row counts a call that never ends, which only an answer with guarded calls hands out.
    options["guarded"] = row["partial"] or "names" in source.asserts
    whole = coalesce(run(spec, [text], tools, **options))
    split = ""
    for pieces in splits(text, random_splits=random_splits):
        events = coalesce(run(spec, pieces, tools, **options))
        if events != whole:
            split = f"{pieces}: {events} != {whole}"
            break
    # A row that is cut within a call expects the name of the cut call alone.
    message = fold(event for event in whole if not (isinstance(event, ToolEnd) and event.cut))
    names = [event.name for event in whole if isinstance(event, ToolStart)]
    wrong = _difference(row, source, message, names)
    if source.stream and not wrong:
        wrong = _piece(row, spec, source)
    return Verdict(wrong, split)


def _piece(row: Row, spec: FormatSpec, source: Source) -> str:
    """The difference in the content that the row's piece of the stream adds."""
    parser = normalizer(spec)
    for piece in source.stream:
        events = parser.feed(piece)
        if piece == row["input_text"]:
            content, expected = fold_text(events), _expected(row)["content"] or ""
            return "" if content == expected else f"content {content!r}, not {expected!r}"
    return "the stream has no such piece"


def fold_text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def _arrange(row: Row, spec: FormatSpec) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    text = row["input_text"]
    if "inner_only" in row["flags"] and spec.open and not text.startswith(spec.open):
        text = spec.open[0] + text
        if spec.close and not text.endswith(spec.close):
            text += spec.close[0]
    tools = [{"type": "function", "function": tool} for tool in row["tools"] or ()]
    if not tools and (spec.bare or spec.inline):
        # A call without marks counts only for a declared tool, and these rows declare none.
        names = sorted({call["name"] for call in _expected(row)["tool_calls"]})
        tools = [{"type": "function", "function": {"name": name}} for name in names]
    if "test_replay" in row["source"]:
        # Remove the markers of that test's own tokenizer.
        text = text.replace("<bos>", "").replace("<eos>", "")
    options = {
        "reasoning_open": _starts_in_reasoning(row, spec, text),
        "allow_calls": "ToolCallFiltering" not in row["source"],
        "reason": "length" if row["partial"] else "stop",
    }
    return text, tools, options


def _starts_in_reasoning(row: Row, spec: FormatSpec, text: str) -> bool:
    tail = (row["thinking"] or {}).get("generation_prompt_tail", "").rstrip()
    for opening, closing in spec.think:
        if tail.endswith(opening):
            return True
        if "thinking_enabled" in row["flags"] and _expected(row)["reasoning"] and not text.startswith(opening):
            return True
        before, found, _ = text.partition(closing)
        ends_more = closing in spec.content_drop or closing in (_expected(row)["content"] or "")
        if found and opening not in before and not ends_more:
            return True
    return False


def _expected(row: Row) -> dict[str, Any]:
    return {**row["expected"], **(row["recommended"] or {})}


def _difference(row: Row, source: Source, message: Message, names: list[str]) -> str:
    expected = _expected(row)
    asserts: tuple[Part, ...] = source.asserts
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    wanted = [(call["name"], _arguments(call)) for call in expected["tool_calls"]]
    if source.calls is not None:
        wanted = [*source.calls]
    if (row["partial"] and "calls" in asserts) or "names" in asserts:
        return "" if names == [name for name, _ in wanted] else f"names {names}, not {wanted}"
    if "calls" in asserts and not same(calls, wanted):
        return f"calls {calls}, not {wanted}"
    if "these calls" in asserts and not all(any(same(call, other) for other in calls) for call in wanted):
        return f"calls {calls}, without {wanted}"
    if row["partial"]:
        return ""
    if "content" in asserts and "content_lossy_in_anchor" not in row["flags"]:
        content = (source.content if source.content is not None else expected["content"] or "").strip()
        if "reasoning_format_none" in row["flags"]:
            # Those tests leave the reasoning in the content, with the mark that ended the prompt.
            tail = (row["thinking"] or {}).get("generation_prompt_tail", "").rstrip()
            for opening in ("<think>", *(pair[0] for pair in get(row["format"]).think if tail.endswith(pair[0]))):
                content = content.removeprefix(opening).strip()
        if message.content.strip() != content:
            return f"content {message.content!r}, not {content!r}"
    reasoning = (expected["reasoning"] or "").removeprefix(source.prompted).strip()
    if "reasoning" in asserts and message.reasoning.strip() != reasoning:
        return f"reasoning {message.reasoning!r}, not {reasoning!r}"
    return ""


def _arguments(call: Mapping[str, Any]) -> Any:
    if call.get("arguments") is not None:
        return call["arguments"]
    raw = call.get("arguments_raw")
    try:
        return json.loads(raw) if raw else {}
    except ValueError:
        return raw


def same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)

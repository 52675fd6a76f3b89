"""Texts of models that other servers handed out as text, or dropped, by the reports in docs/complaints.md."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from normalizers import Event, fold, normalizer
from tests.conftest import ROOT

CASES: dict[str, tuple[str, str, list[tuple[str, dict[str, Any]]]]] = {
    "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1979": (
        "pythonic",
        '<|tool_call_start|>[list_directory(path="desktop")]<|tool_call_end|>',
        [("list_directory", {"path": "desktop"})],
    ),
    "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2115": (
        "qwen3_coder",
        "<tool_call>\n<function=read>\n<parameter=path>\nnotes.txt\n</parameter>\n</function>\n</tool_call>",
        [("read", {"path": "notes.txt"})],
    ),
    "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1528": (
        "glm45",
        "".join(
            f"<tool_call>get_file_info<arg_key>path</arg_key><arg_value>{file}</arg_value></tool_call>\n"
            for file in ("file1.jpg", "file2.jpg")
        ),
        [("get_file_info", {"path": "file1.jpg"}), ("get_file_info", {"path": "file2.jpg"})],
    ),
}
"""Report → format, text, calls."""


def tools(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in arguments}},
            },
        }
        for name, arguments in dict(calls).items()
    ]


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
@pytest.mark.parametrize("report", CASES)
def test_the_calls_are_read(report: str, at_once: int) -> None:
    format, text, calls = CASES[report]
    reader = normalizer(format, tools(calls))
    events: list[Event] = []
    for start in range(0, len(text), at_once):
        events += reader.feed(text[start : start + at_once])
    message = fold([*events, *reader.finish("stop")])
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert not (message.content or "").strip()


def test_a_call_that_breaks_off_stays_as_text() -> None:
    """https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/942: its server leaves the call out."""
    broken = '{"data":{"envs":{"sd":{"namespaces":{}}}'
    mark = "<|start|>assistant<|channel|>commentary to=functions.get_ecs_instructions <|constrain|>json<|message|>"
    reader = normalizer("harmony", tools([("get_ecs_instructions", {"data": ""})]))
    message = fold([*reader.feed(mark + broken), *reader.finish("stop")])
    assert not message.tool_calls
    assert broken in (message.content or "")


def test_the_page_has_each_report_once_and_each_answer_a_test() -> None:
    page = (ROOT / "docs/complaints.md").read_text("utf-8")
    rows = re.findall(r"^\| \[.*\|$", page, re.M)
    reports = [link for row in rows for link in re.findall(r"\((https://[^)]+)\)", row)]
    assert sorted(set(reports)) == sorted(reports)
    assert {*CASES} <= {*reports}
    assert all(re.search(r"\]\(\.\./(?:tests|benchmarks)/", row) for row in rows)

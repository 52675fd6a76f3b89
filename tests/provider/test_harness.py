"""The conformance harness itself: it fails where it should."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from .fixtures import NO_FURTHER, Case, Unclaimed, UnknownDirective, further_cases, load, seed_cases
from .table import run

CASE = """
mock_provider: {responses: [{status: 200, body: {choices: [{message: {content: hi}, finish_reason: stop}]}}]}
calls:
  - operation: complete
    messages: [{role: user, content: hello}]
    expected_wire_request: {model: test-model, messages: [{role: user, content: hello}]}
    expected: {response: {message: {content: hi}, finish_reason: stop}}
"""


def case(tmp_path: Path, text: str) -> Case:
    (tmp_path / "case.yaml").write_text(text)
    return load(tmp_path)[0]


async def test_a_case_that_holds_passes(tmp_path: Path) -> None:
    await run(case(tmp_path, CASE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("calls:", "surprise: 1\ncalls:", id="file"),
        pytest.param("operation: complete", "operation: complete\n    surprise: 1", id="call"),
        pytest.param("operation: complete", "operation: embed", id="operation"),
        pytest.param("expected: {", "expected: {surprise: 1, ", id="expected"),
        pytest.param("{response: {", "{response: {surprise: 1, ", id="response"),
        pytest.param("message: {content: hi}, finish_reason: stop}}\n", "message: {colour: red}}}\n", id="message"),
        pytest.param("{responses: [", "{surprise: 1, responses: [", id="mock_provider"),
        pytest.param("{status: 200", "{delay: 1, status: 200", id="answer"),
        pytest.param(
            "{role: user, content: hello}]\n    expected_wire", "{role: judge}]\n    expected_wire", id="role"
        ),
        pytest.param("hello}]\n", "[{type: smell}]}]\n", id="block"),
        pytest.param("expected: {", "expected_wire_request_checks: {surprise: true}\n    expected: {", id="check"),
    ],
)
async def test_an_unknown_directive_fails(tmp_path: Path, old: str, new: str) -> None:
    changed = CASE.replace(old, new, 1)
    assert changed != CASE
    with pytest.raises(UnknownDirective):
        await run(case(tmp_path, changed))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("{content: hi}, finish_reason: stop}}\n", "{content: ho}}}\n", id="content"),
        pytest.param("finish_reason: stop}}\n", "finish_reason: length}}\n", id="finish_reason"),
        pytest.param("{model: test-model", "{model: '*', surprise: '*'", id="wire key too few"),
        pytest.param("{model: test-model, ", "{", id="wire key too many"),
        pytest.param("{responses: [", "{responses: [{status: 500}, ", id="answer"),
        pytest.param("stop}]}}]}", "stop}]}}, {status: 200}]}", id="answer never asked for"),
        pytest.param("expected: {", "expected: {provider_call_count: 2, ", id="call count"),
        pytest.param(
            "{response: {message: {content: hi}, finish_reason: stop}}", "{raises: {category: x}}", id="raises"
        ),
    ],
)
async def test_a_difference_fails(tmp_path: Path, old: str, new: str) -> None:
    changed = CASE.replace(old, new, 1)
    assert changed != CASE
    with pytest.raises(AssertionError):
        await run(case(tmp_path, changed))


async def test_an_unclaimed_mapping_is_neither_passed_nor_failed(tmp_path: Path) -> None:
    with pytest.raises(Unclaimed):
        await run(case(tmp_path, f"mapping: semaphore\n{CASE}"))


async def test_an_unknown_invariant_is_listed(tmp_path: Path) -> None:
    listed = case(tmp_path, CASE.replace("expected: {", "expected: {invariants: {no_magic: true}, "))
    assert await run(listed) == ["no_magic"]


def spoil(expected: dict[str, Any]) -> None:
    """Turns what a step expects into its opposite."""
    if "raises" in expected:
        expected["raises"]["category"] = "no_such_category"
    elif "success" in expected:
        expected["success"] = False
    elif "response" in expected:
        expected["response"]["finish_reason"] = "no_such_reason"
    else:
        for state in expected["final_state"].values():
            state["model"] = "no-such-model"


@pytest.mark.parametrize("claimed", seed_cases() + further_cases(), ids=lambda case: case.id)
async def test_every_case_can_fail(claimed: Case) -> None:
    entry = copy.deepcopy(claimed.entry)
    for block in (entry, *entry.get("calls", ())):
        if "expected_error" in block:
            block["expected_error"]["category"] = "no_such_category"
        elif "expected" in block:
            spoil(block["expected"])
    with pytest.raises(AssertionError):
        await run(Case(claimed.fixture, claimed.name, claimed.file, entry))


@pytest.mark.skipif(not further_cases(), reason=NO_FURTHER)
async def test_every_invariant_can_fail() -> None:
    for claimed in further_cases():
        for block in (claimed.entry, *claimed.entry.get("calls", ())):
            for name in (block.get("expected") or {}).get("invariants", {}):
                spoilt = copy.deepcopy(claimed.entry)
                for part in (spoilt, *spoilt.get("calls", ())):
                    if name in (invariants := (part.get("expected") or {}).get("invariants", {})):
                        invariants[name] = "never"
                with pytest.raises(AssertionError, match=name):
                    await run(Case(claimed.fixture, claimed.name, claimed.file, spoilt))


def test_fixture_files_are_read_as_data_only(tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text("calls: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(yaml.YAMLError):
        load(tmp_path)

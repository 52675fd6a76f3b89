"""BFCL's rules as a table; with the wheel at hand, on every ground truth and on answers that are wrong in one way."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gateway.features.evaluation.commands.model_test import main
from gateway.features.evaluation.model_test import bfcl, bfcl_rules, selfcheck, target
from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall
from gateway.features.evaluation.model_test.cases import BadSuite, Suite

FUNCTION = {
    "name": "book.room",
    "parameters": {
        "required": ["city", "nights"],
        "properties": {
            "city": {"type": "string"},
            "nights": {"type": "integer"},
            "price": {"type": "float"},
            "quiet": {"type": "boolean"},
            "guests": {"type": "array", "items": {"type": "string"}},
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "place": {"type": "tuple", "items": {"type": "float"}},
            "address": {"type": "dict", "properties": {}},
            "beds": {"type": "array", "items": {"type": "dict"}},
            "extra": {"type": "any"},
        },
    },
}
TRUTH = {
    "city": ["New York", "NYC"],
    "nights": [2],
    "price": [99.5, 100.0, ""],
    "quiet": [True, ""],
    "guests": [["Ann", "Bo"], ""],
    "sizes": [[1, 2], ""],
    "place": [[1.5, 2.0], ""],
    "address": [{"street": ["Elm St."], "no": [7, ""]}, ""],
    "beds": [[{"size": ["L", "XL"]}, {"size": ["S"]}], ""],
    "extra": ["tv", ""],
}


@pytest.mark.parametrize(
    ("given", "official", "strict"),
    [
        ({}, True, True),
        ({"city": "new york"}, True, False),
        ({"city": "N.Y.C"}, True, False),
        ({"city": "Boston"}, False, False),
        ({"nights": 2.0}, False, False),
        ({"nights": "2"}, False, False),
        ({"nights": True}, False, False),
        ({"price": 100}, True, True),
        ({"price": 101.0}, False, False),
        ({"quiet": "true"}, False, False),
        ({"quiet": None}, False, False),
        ({"guests": ["Ann", "Bo"]}, True, True),
        ({"guests": ["ann", "bo."]}, True, False),
        ({"guests": ["Bo", "Ann"]}, False, False),
        ({"guests": ["Ann", 5]}, False, False),
        ({"sizes": [1, 2]}, True, True),
        # Where a list may be left out, BFCL doesn't look at the types of its elements.
        ({"sizes": [1.0, 2]}, True, True),
        ({"sizes": "sizes"}, False, False),
        ({"place": [1.5, 2.0]}, True, True),
        ({"place": [1.5, 2]}, True, True),
        ({"address": {"street": "Elm St."}}, True, True),
        ({"address": {"street": "elm st", "no": 7}}, True, False),
        ({"address": {"no": 7}}, False, False),
        ({"address": {"street": "Elm St.", "town": "x"}}, False, False),
        ({"beds": [{"size": "L"}, {"size": "S"}]}, True, True),
        ({"beds": [{"size": "S"}, {"size": "L"}]}, False, False),
        ({"beds": [{"size": "L"}]}, False, False),
        ({"extra": "TV"}, True, False),
        ({"extra": 5}, False, False),
        ({"surplus": 1}, False, False),
        ({"city": ...}, False, False),
    ],
)
def test_one_call(given: dict[str, Any], official: bool, strict: bool) -> None:
    arguments = {"city": "New York", "nights": 2, **given}
    arguments = {name: value for name, value in arguments.items() if value is not ...}
    call = ("book.room", arguments)
    assert (bfcl_rules.one(call, {"book.room": TRUTH}, [FUNCTION], True) is None) is official
    assert (bfcl_rules.one(call, {"book.room": TRUTH}, [FUNCTION], False) is None) is strict


def test_a_variable_may_stand_for_a_list() -> None:
    truth = {"book.room": {"city": ["x"], "nights": [1], "sizes": ["all_sizes"]}}
    call = ("book.room", {"city": "x", "nights": 1, "sizes": "all_sizes"})
    assert bfcl_rules.one(call, truth, [FUNCTION], True) is None


def test_a_list_whose_elements_have_the_wrong_type_is_compared_as_it_is() -> None:
    """As if it were a variable: so 1.0 passes for 1, which alone it wouldn't."""
    truth = {"book.room": {"city": ["x"], "nights": [1], "sizes": [[1, 2]]}}
    for sizes, fault in (([1, 2], None), ([1.0, 2], None), (["1", 2], "wrong_value"), ([2, 1], "wrong_value")):
        found = bfcl_rules.one(("book.room", {"city": "x", "nights": 1, "sizes": sizes}), truth, [FUNCTION], True)
        assert (found and found[0]) == fault


def test_parallel_is_without_order_and_counts() -> None:
    truth = [{"book.room": {"city": [city], "nights": [1]}} for city in ("a", "b")]
    calls: list[tuple[str, Any]] = [("book.room", {"city": city, "nights": 1}) for city in ("b", "a")]
    assert bfcl_rules.parallel(calls, truth, [FUNCTION], True) is None
    for wrong in (calls[:1], [*calls, calls[0]], [calls[0], calls[0]]):
        assert bfcl_rules.parallel(wrong, truth, [FUNCTION], True) is not None
    # Taken by their place: 1 and 1.0 are equal, and only one of them is right.
    twice = [{"book.room": {"city": ["a"], "nights": [1]}}] * 2
    mixed: list[tuple[str, Any]] = [("book.room", {"city": "a", "nights": nights}) for nights in (1.0, 1)]
    assert bfcl_rules.parallel(mixed, twice, [FUNCTION], True) is not None


def test_types_become_json_schemas() -> None:
    made = bfcl.schema(
        {"type": "dict", "properties": {"a": {"type": "float", "description": "A.", "optional": True}}}, compat=True
    )
    number = {"type": "number", "description": "A. This is a float type value.", "format": "float"}
    assert made == {"type": "object", "properties": {"a": number}}
    assert bfcl.schema({"type": "tuple", "items": {"type": "any"}}) == {"type": "array", "items": {"type": "string"}}


@pytest.fixture(scope="session")
def wheel_cache() -> Path:
    if not bfcl.fetched(target.cache()):
        pytest.skip("BFCL's wheel isn't in the cache: scripts/model-test fetch bfcl")
    return target.cache()


def test_a_tenth_of_every_category(wheel_cache: Path) -> None:
    whole = bfcl.suite("bfcl-mini", wheel_cache)
    assert len(whole.cases) == 400
    part = Suite("part", 1, tuple(whole.cases[::4]))
    report = selfcheck.suite(part)
    assert (report.right, report.wrong) == (100, [])
    assert (report.never, report.always) == (0.5, 0.5)


@pytest.mark.slow
def test_every_ground_truth(tmp_path: Path) -> None:
    """Fetched anew, from the package index."""
    bfcl.fetch(tmp_path)
    whole = bfcl.suite("bfcl", tmp_path)
    report = selfcheck.suite(whole)
    assert (report.right, report.cases, report.wrong) == (3469, 3469, [])
    assert report.mutants > 20_000
    assert not list(tmp_path.glob("*/"))


@pytest.mark.slow
def test_the_quarantine_holds_what_nobody_can_answer(wheel_cache: Path) -> None:
    kinds = json.loads(bfcl.QUARANTINE.read_text("utf-8"))
    everything = {case.id: case for case in bfcl.suite("bfcl", wheel_cache, quarantined=True).cases}
    assert len(everything) == 3491
    for id in kinds["unanswerable"]:
        case = everything[id]
        (wanted,) = case.bfcl["truth"]
        ((name, options),) = wanted.items()
        function = next(item for item in case.bfcl["functions"] if item["name"] == name)
        for parameter, accepted in options.items():
            if parameter not in function["parameters"]["properties"]:
                break
            values = [bfcl.literal(option) for option in accepted if option != bfcl_rules.OMITTED]
            if any(bfcl.value_passes(function, name, parameter, accepted, value) for value in values):
                continue
            if bfcl_rules.OMITTED in accepted and parameter not in function["parameters"]["required"]:
                continue
            break
        else:
            pytest.fail(f"{id} can be answered")
    for id in kinds["contradictory"]:
        case = everything[id]
        verdict = bfcl.judge(case, bfcl.oracle(case))
        assert verdict.folded
        assert not verdict.schema_valid, f"{id} has an answer that fits its own schema"


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / bfcl.WHEEL, "w") as wheel:
        wheel.writestr("bfcl_eval/data/BFCL_v4_multiple.json", "{}")
    with pytest.raises(BadSuite, match=r"has the hash [0-9a-f]{64}, not 3bb6dfa5"):
        bfcl.suite("bfcl", tmp_path)


def test_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["--suite", "bfcl-mini", "--fake", "oracle"]) == 2
    assert "ctxgate model-test fetch bfcl" in capsys.readouterr().err


def test_leaks_are_told_though_the_leaderboard_would_pass_them(wheel_cache: Path) -> None:
    case = next(case for case in bfcl.suite("bfcl-mini", wheel_cache).cases if case.category == "irrelevance")
    name = case.bfcl["functions"][0]["name"]
    leak = ModelAnswer(content=f'<tool_call>{{"name": "{name}"}}</tool_call>', finish="stop")
    verdict = bfcl.judge(case, leak)
    assert (verdict.kind, verdict.folded) == ("text_tool_call", True)
    called = ModelAnswer(calls=(RawCall(name, "{}", "c"),), finish="tool_calls")
    assert not bfcl.judge(case, called).folded

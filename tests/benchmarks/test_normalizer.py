"""A small run of the comparison with other parsers: measures ours and `ast.parse`, and shows why a peer is missing."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import normalizer_peers
from benchmarks.harness import parsers
from benchmarks.harness.stacks import Unavailable
from benchmarks.normalizer_calls import nested, text
from benchmarks.normalizer_peers import Reader, by_ast, compare, ours, process

VALUES = {"50 B": text(50), "nested": nested(200)}


def refuse(pieces: list[str]) -> float:
    raise Unavailable("no wheel")


def test_a_table_of_the_parsers_at_hand() -> None:
    readers = [ours("hermes"), Reader("ast", "list", by_ast), ours("pythonic"), Reader("absent", "list", refuse)]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in compare(readers, 1, VALUES)]
    assert [row[0] for row in rows] == ["ctxgate, pythonic", "ast", "absent", "ctxgate, hermes"]
    assert all(float(cell) > 0 for row in rows if row[0] != "absent" for cell in row[1:3])
    said = {row[0]: row[3] for row in rows}
    assert said["ast"] == "nothing: it is only parsed"
    assert rows[2][1:] == ["", "", "not measured: no wheel"]
    for name in ("ctxgate, pythonic", "ctxgate, hermes"):
        deltas, pieces = said[name].removesuffix(" pieces").split(" deltas for ")
        assert 10 < int(deltas) <= int(pieces)


LEFT = {
    "whole": (['{"body": 1}'], "the call at its end"),
    "wrong": (['{"body": 2}'], "wrong arguments: one"),
    "cut": (['{"bo', 'dy": 1'], "wrong arguments: one"),
    "nothing": ([], "wrong arguments: one"),
}


@pytest.mark.parametrize("case", LEFT)
def test_arguments_that_come_out_are_checked(case: str) -> None:
    fragments, said = LEFT[case]
    (row,) = compare([Reader("one", "pythonic", lambda _: 1.0, lambda _: fragments)], 1, {"one": 1})
    assert row == f"| one | 1000000.0 | {said} |"


@pytest.mark.parametrize("name", normalizer_peers.PEERS)
def test_a_python_without_the_package_is_reported(name: str) -> None:
    with pytest.raises(Unavailable, match=f"no package {name}"), process(name, Path(sys.executable)):
        pass


def test_a_stand_in_has_every_name_and_decorates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [parsers.Finder(("absent",)), *sys.meta_path])
    try:
        deep = import_module("absent.deep")
    finally:
        for name in ("absent", "absent.deep"):
            sys.modules.pop(name, None)
    assert deep.compile(refuse) is refuse
    assert issubclass(type("Own", (deep.nn.Module,), {}), deep.nn.Module)
    with pytest.raises(ModuleNotFoundError):
        import_module("absentee")

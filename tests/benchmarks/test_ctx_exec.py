"""The benchmark of executed objects runs and compares what it says; how long it takes is for its own report."""

from __future__ import annotations

from benchmarks import ctx_exec


def test_both_are_asked_in_turns() -> None:
    result = ctx_exec.measure(3)
    assert len(result.http) == len(result.object) == 3
    print(f"\n{result.client} {result.http}, object {result.object}: {result.above:.1f} ms above")

"""Swaps, kills and clients that leave, once each: that the script does what it says."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest

from benchmarks import engines


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
def test_each_figure_is_measured() -> None:
    found = asyncio.run(engines.measure(1, 2))
    assert {title: len(took) for title, took in found.items()} == {
        "request, model loaded": 2,
        "request that swaps models": 2,
        "killed while idle, to the next answer": 1,
        "killed in a stream, to its error frame": 1,
        "killed in a stream, to the next answer": 1,
        "killed before a whole answer, to that answer (900 tokens)": 1,
        "streamed answer, client of the engine leaves": 2,
        "streamed answer, client of the gateway leaves": 2,
        "whole answer, client of the engine leaves": 2,
        "whole answer, client of the gateway leaves": 2,
    }
    assert engines.table(found).count("\n") == 11


def test_only_what_the_gateway_adds_is_judged() -> None:
    slow_engine = {
        "streamed answer, client of the engine leaves": [0.2, 0.3],
        "streamed answer, client of the gateway leaves": [0.3, 0.31],
        "whole answer, client of the engine leaves": [1.0],
        "whole answer, client of the gateway leaves": [1.2],
    }
    assert [goal.met for goal in engines.goals(slow_engine)] == [True, False]

"""The benchmark of default settings runs, and both servers of it do the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine_defaults
from benchmarks.engine_defaults import DEFAULTS, REFERENCE, Server, ratios, same_words, text_of


def test_measures_the_defaults_beside_llama_servers(test_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    quick = ["--rounds", "1", "--tokens", "8", "--streams", "1", "--texts", "prose", "tool call", "--load", "1"]
    code = engine_defaults.main(["--model", str(test_model), *quick])
    shown = capsys.readouterr().out
    assert f"| prose | 1 | {REFERENCE} |" in shown
    assert f"| tool call | 1 | {DEFAULTS} |" in shown
    # Whether they are met depends on the machine.
    assert code == (1 if "MISSED" in shown else 0)


def test_a_ratio_is_of_one_round() -> None:
    case = ("prose", 1)
    base = Server("base", 0, {}, speeds={case: [10.0, 20.0]})
    assert ratios(Server("own", 0, {}, speeds={case: [20.0, 10.0]}), base, case) == [2.0, 0.5]


def test_words_are_compared_where_none_are_drawn() -> None:
    base = Server("base", 0, {}, said={("prose", 1): "a", ("JSON", 1): "b"})
    own = Server("own", 0, {}, said={("prose", 1): "c", ("JSON", 1): "b"})
    assert "of 1: own 1." in same_words([base, own])


def test_the_text_of_a_stream_has_its_calls() -> None:
    call = b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}'
    text = b'{"choices":[{"delta":{"content":"Yes. "}}]}'
    assert text_of(b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n" % (text, call)) == "Yes. {}"

"""The benchmark of default settings runs, and both servers of it do the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine_defaults
from benchmarks.engine_defaults import DEFAULTS, REFERENCE, Server, over_all, ratios, same_words, text_of


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


def test_words_are_compared() -> None:
    base = Server("base", 0, {}, said={("code edit", 1): "a", ("JSON", 1): "b"})
    own = Server("own", 0, {}, said={("code edit", 1): "c", ("JSON", 1): "b"})
    assert "of 2: own 1." in same_words([base, own])


def test_the_rounds_are_the_samples_of_a_ratio_over_all_texts() -> None:
    cases = [("prose", 1), ("JSON", 1)]
    base = Server("base", 0, {}, speeds={case: [10.0, 10.0] for case in cases})
    own = Server("own", 0, {}, speeds={cases[0]: [20.0, 40.0], cases[1]: [5.0, 10.0]})
    assert over_all(own, base).mean == pytest.approx(2**0.5)
    assert over_all(own, base).low < 1


def test_measures_what_tune_chooses_beside_all_that_it_could(
    test_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xllamacpp")
    quick = ["--rounds", "1", "--tokens", "8", "--minutes", "0.1", "--alike", "1", "--texts", "code edit", "JSON"]
    code = engine_defaults.main(["--model", str(test_model), "--tuned", str(tmp_path), *quick])
    shown = capsys.readouterr().out
    assert "tune chose: " in shown
    assert "all texts, the choice, times the fastest setting's speed" in shown
    # Whether they are met depends on the machine.
    assert code == (1 if "MISSED" in shown else 0)


def test_the_text_of_a_stream_has_its_calls() -> None:
    call = b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}'
    text = b'{"choices":[{"delta":{"content":"Yes. "}}]}'
    assert text_of(b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n" % (text, call)) == "Yes. {}"

"""Both models answer all questions, and the engines say how much of their prompts they read."""

from pathlib import Path

import pytest

from benchmarks import deciding

pytest.importorskip("xllamacpp")

QUESTIONS = 4


def test_both_models_are_asked(test_model: Path, tmp_path: Path) -> None:
    with deciding.started(tmp_path, test_model, "pythonic") as place:
        found = deciding.measure(place, QUESTIONS)
    print(f"\n{deciding.table(found)}")
    for figures in found.values():
        assert len(figures.first_ms) == len(figures.read) == len(figures.prompt) == QUESTIONS + 1
        # Its last token is read again after the decision.
        assert all(read <= prompt + 1 for read, prompt in zip(figures.read, figures.prompt, strict=True))
        assert min(figures.first_ms) > 0
    plain, decided = found[deciding.PLAIN], found[deciding.DECIDED]
    assert all(more > less for more, less in zip(decided.prompt, plain.prompt, strict=True))
    assert deciding.kept(found) > 0.9

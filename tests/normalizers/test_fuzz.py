"""A short run of `benchmarks/normalizer_fuzz.py`, and its report on readers that break a law."""

from __future__ import annotations

import sys
from functools import partial

import pytest

import normalizers
from benchmarks import normalizer_fuzz
from normalizers import FormatSpec
from normalizers.read.json_calls import JsonCalls


class Raising(JsonCalls):
    def step(self, text: str, pos: int, reason: str | None) -> int:
        raise RuntimeError("it raised")


class Splitting(JsonCalls):
    """Emits other events when fed a single character."""

    def step(self, text: str, pos: int, reason: str | None) -> int:
        if len(text) - pos == 1:
            self._calls.warn("one", text)
        return super().step(text, pos, reason)


RAISING = FormatSpec("raising", dialect=f"{__name__}:Raising", open=("<<",), close=(">>",))
SPLITTING = FormatSpec("splitting", dialect=f"{__name__}:Splitting", open=("<<",), close=(">>",))


def fuzz(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["normalizer_fuzz", *arguments])
    with pytest.raises(SystemExit) as ended:
        normalizer_fuzz.main()
    return int(ended.value.code or 0)


def test_a_short_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(monkeypatch, "--messages", "1500", "--seed", "1") == 0, capsys.readouterr().err
    assert "broken: 0" in capsys.readouterr().out


def test_damaged_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A slice of the 10,000 answers a format; benchmarks/README.md has the command for all."""
    assert fuzz(monkeypatch, "--damaged", "--messages", "30", "--seed", "1") == 0, capsys.readouterr().err
    assert "broken: 0" in capsys.readouterr().out


def test_a_broken_law_is_found_in_damaged_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readers that say what they may have to take back, as if every call were guarded."""
    hold = normalizers.normalizer
    monkeypatch.setattr("benchmarks.normalizer_fuzz.normalizer", partial(hold, guarded=True))
    assert fuzz(monkeypatch, "--damaged", "--messages", "60", "--formats", "pythonic", "hermes") == 1
    assert "the whole answer has other calls" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "said"), [("RAISING", "RuntimeError: it raised"), ("SPLITTING", "differs when split")]
)
def test_a_broken_law_is_found(
    spec: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz(monkeypatch, "--messages", "20", "--formats", f"{__name__}:{spec}") == 1
    assert said in capsys.readouterr().err


FOUND = {
    "an end mark that begins a longer one": (
        "step3",
        'x\n<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{{,files.read">\n'
        '<steptml:parameter name="count">9</steptml:parameter>\n'
        "</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
    ),
}
"""Texts in which long runs have found a broken law."""


@pytest.mark.parametrize("name", FOUND)
def test_what_long_runs_have_found(name: str) -> None:
    format, text = FOUND[name]
    for spec in normalizer_fuzz.policies(format):
        whole = normalizer_fuzz.read(spec, [text], "stop", opened=False)
        for at in range(1, len(text)):
            assert normalizer_fuzz.read(spec, [text[:at], text[at:]], "stop", opened=False) == whole, (spec, at)
        assert normalizer_fuzz.read(spec, [*text], "stop", opened=False) == whole

"""What `load` refuses: each file with line, column, message and cure of every problem."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, load
from gateway.config.source import MAX_BYTES
from tests.config.mistakes import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(case.text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, {"EMPTY": "", "WORD": "hidden"})
    found = [(p.line, p.column, p.message) for p in caught.value.problems]
    assert found == [problem[:3] for problem in case.problems]
    for problem, (line, column, message, cure) in zip(caught.value.problems, case.problems, strict=True):
        assert problem.cure.startswith(cure), problem.cure
        assert bool(problem.cure) == bool(cure)
        assert problem.file == file
        assert str(problem).startswith(f"{file}:{line}:{column}: {message}")
    assert "hidden" not in str(caught.value)


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.yaml")
    file = tmp_path / "config.yaml"
    file.write_bytes(b"active_model: m\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"config.yaml:2:6: isn't UTF-8 text"):
        load(file)
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="is longer than"):
        load(file)


def test_billion_laughs(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    file = tmp_path / "config.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="nested or repeated too often"):
        load(file)


@pytest.mark.parametrize("opening", ["[", "- ", "{a: ", "? "])
def test_deep_nesting_is_refused(tmp_path: Path, opening: str) -> None:
    """libyaml alone recurses without a limit and crashes at 100,000."""
    file = tmp_path / "config.yaml"
    file.write_text("a: b\nmodels: \n " + opening * 150_000)
    with pytest.raises(ConfigError, match=r"config.yaml:3:\d+: nested or repeated too often"):
        load(file)


VALID = "active_model: m\nmodels:\n  m: {runtime: llama.cpp, path: x, args: [a], pull: {hub: a/b}}\nserver: {port: 1}\n"


@given(st.data())
def test_any_text_loads_or_is_explained(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any text loads or raises ConfigError, and every problem has a place in the file."""
    at = data.draw(st.integers(0, len(VALID)))
    until = data.draw(st.integers(at, len(VALID)))
    piece = data.draw(
        st.text(max_size=8) | st.sampled_from(["{", "]", ": ", "- ", "&a ", "*a", "<<: ", "${X}", "!!int ", "\n"])
    )
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(VALID[:at] + piece + VALID[until:], encoding="utf-8", errors="replace")
    try:
        config = load(file, {})
    except ConfigError as error:
        problems = error.problems
    else:
        assert config.resolve(None).name == config.active_model
        return
    assert problems
    assert all(problem.line >= 1 and problem.column >= 1 and problem.message for problem in problems)

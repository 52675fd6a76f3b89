"""The environment file: what it may hold, and who may read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.env_file import TEMPLATE, load, parse
from gateway.errors import ProviderInvalidRequest
from tests.cli.commands import config, ctxgate


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        (TEMPLATE, {}),
        ("# a comment\n; another\n\n  \nA=1\n", {"A": "1"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("A = b c  \n", {"A": "b c"}),
        ("export KEY=sk-1=2#3\n", {"KEY": "sk-1=2#3"}),
        ('A=\'b "c"\'\nB="d"\nC=\'e\n', {"A": 'b "c"', "B": "d", "C": "'e"}),
        ("A=\nA=2\n", {"A": "2"}),
        ("A=$HOME ${X}\n", {"A": "$HOME ${X}"}),
    ],
)
def test_lines(text: str, found: dict[str, str]) -> None:
    assert parse(text, "file") == found


@pytest.mark.parametrize("line", ["sk-secret", "1A=x", "A-B=x", "=x", "A=x\0y", "Ä=x"])
def test_a_line_that_is_none_is_named_but_not_shown(line: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as refused:
        parse(f"A=1\n{line}\n", "file")
    assert str(refused.value) == "file:2: not NAME=value; correct the line, or begin it with #"


def test_who_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "environment"
    file.write_text("KEY=k\n")
    for mode, fine in ((0o600, True), (0o400, True), (0o640, False), (0o604, False), (0o620, False)):
        file.chmod(mode)
        environ: dict[str, str] = {}
        if fine:
            load(file, environ)
            assert environ == {"KEY": "k"}
        else:
            with pytest.raises(ProviderInvalidRequest, match="run chmod 600 on it"):
                load(file, environ)
            assert environ == {}


def test_serve_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    config(tmp_path, "active_model: e\nmodels: {e: {runtime: echo}}\n")
    done = ctxgate("serve", "--env-file", "none", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "ctxgate: none: No such file or directory; correct --env-file\n")

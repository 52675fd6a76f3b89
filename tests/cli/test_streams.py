"""Commands whose streams are closed, full, or in an encoding that lacks some characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ECHO, config, environment
from tests.patience import PATIENCE
from tests.ports import free_port

C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LATIN = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config(tmp_path, f"{ECHO}server: {{port: {free_port()}}}\nstate_dir: {tmp_path / 'state'}\n")
    return tmp_path


def shell(folder: Path, words: str, streams: str, **extra: str) -> subprocess.CompletedProcess[bytes]:
    """streams: what a shell does with them."""
    module = "gateway.cli.model_test" if words.startswith("model_test") else "gateway"
    line = f"{sys.executable} -m {module} {words.removeprefix('model_test ')} {streams}"
    return subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment(folder, **extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("models", 0),
        ("models --json", 0),
        ("usage", 0),
        ("usage --csv", 0),
        ("keys list", 0),
        ("status --once", 69),
        ("formats", 0),
        ("check", 0),
        ("--help", 0),
        ("model-test list", 0),
        ("model_test list", 0),
        ("chat echo hi", 0),
        ("batch ls", 69),
    ],
)
@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed(words: str, code: int, closed: str, folder: Path) -> None:
    done = shell(folder, words, closed)
    assert done.returncode == code, done.stderr
    assert b"bug of ctxgate" not in done.stderr


@pytest.mark.parametrize("words", ["tools call tool.ls", "records define person -"])
def test_closed_input_is_an_empty_one(words: str, folder: Path) -> None:
    done = shell(folder, words, "<&-")
    assert done.returncode == shell(folder, words, "</dev/null").returncode
    assert b"bug of ctxgate" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words", ["models --json", "models", "formats", "--help", "model-test list", "model_test list"]
)
def test_full(words: str, folder: Path) -> None:
    done = shell(folder, words, ">/dev/full")
    assert (done.returncode, done.stderr) == (69, b"ctxgate: can't write: No space left on device\n")


@pytest.mark.parametrize("extra", [C, LATIN], ids=["C", "latin-1"])
@pytest.mark.parametrize("words", ["formats", "formats --json", "model-test list --cases", "model_test list --cases"])
def test_characters_that_an_encoding_lacks(words: str, extra: dict[str, str], folder: Path) -> None:
    done = shell(folder, words, "", **extra)
    assert (done.returncode, done.stderr) == (0, b"")
    if "--json" in words:
        assert json.loads(done.stdout.decode("latin-1")) == json.loads(shell(folder, words, "").stdout)


@pytest.mark.parametrize("extra", [C, {}], ids=["C", "UTF-8"])
@pytest.mark.parametrize("words", ["chat echo 'hällo 🙂'", "chat echo"])
def test_words_to_a_model_are_in_utf_8(words: str, extra: dict[str, str], folder: Path) -> None:
    (folder / "said").write_bytes("hällo 🙂\n".encode())
    done = shell(folder, words, "< said", **extra)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "hällo 🙂\n", b"")


def test_words_that_are_no_text(folder: Path) -> None:
    (folder / "said").write_bytes(b"h\xff\n")
    for words in ("chat echo 'h\udcff'", "chat echo"):
        done = shell(folder, words, "< said")
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "h\ufffd\n", b"")

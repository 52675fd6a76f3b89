"""Commands end with the exit code of the category that the gateway's answer names, as `ctxgate --help` lists it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.client import refusal
from gateway.errors import CATEGORIES
from tests.cli.commands import config, ctxgate
from tests.cli.named import gateway


@pytest.mark.parametrize(
    "words", ["status --once", "load", "plan", "batch ls", "room new", "room history x", "chat mine hi"]
)
def test_a_missing_or_wrong_key(words: str, tmp_path: Path) -> None:
    with gateway(tmp_path, ', api_keys: ["${KEY:-}"]', KEY="right"):
        for environ in ({"KEY": "wrong"}, {"CTXGATE_KEY": "wrong"}, {}):
            done = ctxgate(*words.split(), cwd=tmp_path, **environ)
            assert done.returncode == 13, done.stderr
            assert "server.api_keys, else CTXGATE_KEY" in done.stderr


def test_a_room_of_no_model(tmp_path: Path) -> None:
    with gateway(tmp_path):
        done = ctxgate("room", "new", "--model", "nobody", cwd=tmp_path)
        assert (done.returncode, "nobody" in done.stderr) == (1, True), done.stderr
        assert ctxgate("room", "history", "nobody", cwd=tmp_path).returncode == 2


def test_a_chat_with_a_model_whose_weights_are_gone(tmp_path: Path) -> None:
    with gateway(tmp_path):
        file = tmp_path / "_models" / "config.yaml"
        config(tmp_path, file.read_text().replace("}}", "}, gone: {runtime: llama.cpp, path: gone.gguf}}", 1))
        done = ctxgate("chat", "gone", "hi", cwd=tmp_path)
    assert (done.returncode, "gone" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category(category: str) -> None:
    error = refusal({"message": "because", "category": category}, "otherwise")
    assert (error.exit_code, error.message) == (CATEGORIES[error.category].exit_code, "because")
    assert error.category == category


@pytest.mark.parametrize("answer", [None, [], {}, {"category": ["a"]}, {"category": "unheard_of"}])
def test_an_answer_without_a_category(answer: object) -> None:
    assert refusal(answer, "otherwise").message == "otherwise"

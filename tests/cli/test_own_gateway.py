"""Where the commands find the gateway of their configuration, and with which key they ask it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import answering, config, ctxgate
from tests.cli.named import gateway
from tests.ports import free_port
from tests.support.certificates import written

KEYED = "active_model: mine\nmodels: {mine: {runtime: echo}}\n"


ASKING = {
    "status --once": "mine",
    "models": "gateway: running at ",
    "load": "decides itself",
    "plan": "nothing would change",
    "usage": "",
    "batch ls": "",
    "replay": "",
    "room new": "",
    "chat mine hi": "hi",
    "doctor": "gateway: runs at ",
}


def found(folder: Path, words: str, **environ: str) -> bool:
    done = ctxgate(*words.split(), cwd=folder, **environ)
    said = done.stdout + done.stderr
    assert "no gateway" not in said, said
    assert "Traceback" not in said, said
    return ASKING[words] in said


@pytest.mark.some(4)
@pytest.mark.parametrize("words", ASKING)
def test_at_another_port(words: str, tmp_path: Path) -> None:
    with gateway(tmp_path, "", "mine", "--port", "0"):
        assert found(tmp_path, words)


@pytest.mark.some(4)
@pytest.mark.parametrize("words", ASKING)
def test_without_tls_where_the_command_line_says_so(words: str, tmp_path: Path) -> None:
    written(tmp_path / "_models")
    with gateway(tmp_path, ", tls: {cert: cert.pem, key: key.pem}", "mine", "--no-tls") as url:
        assert url.startswith("http://")
        assert found(tmp_path, words)


@pytest.mark.parametrize("words", ["status --once", "doctor --client openai", "load"])
def test_its_own_comes_before_a_younger_stranger(words: str, tmp_path: Path) -> None:
    with gateway(tmp_path / "a", "", "mine", "--port", "0"), gateway(tmp_path / "b", "", "theirs", "--port", "0"):
        done = ctxgate(*words.split(), cwd=tmp_path / "a", HOME=str(tmp_path))
    assert "theirs" not in done.stdout + done.stderr
    assert "404" not in done.stdout
    assert ("ok " if words.startswith("doctor") else "mine") in done.stdout + done.stderr


def test_a_stranger_is_shown_alone_where_nothing_is_changed(tmp_path: Path) -> None:
    config(tmp_path, f"{KEYED}server: {{port: {free_port()}}}\n")
    with gateway(tmp_path / "b", "", "theirs", "--port", "0"):
        done = ctxgate("status", "--once", cwd=tmp_path)
        assert "has another configuration" in done.stderr
        assert ctxgate("load", cwd=tmp_path).returncode == 69


def test_messages_name_the_socket(tmp_path: Path) -> None:
    socket = tmp_path / "_models" / "s.sock"
    with gateway(tmp_path, ", uds: s.sock"), answering(uds=socket):
        shown = json.loads(ctxgate("models", "--json", cwd=tmp_path).stdout)
        assert shown["gateway"] == {"url": str(socket), "running": True}
    for words in ("room new", "load"):
        assert f"no gateway answers at {socket}" in ctxgate(*words.split(), cwd=tmp_path).stderr


def test_a_key_comes_from_the_environment_where_the_configuration_has_none(tmp_path: Path) -> None:
    with gateway(tmp_path):
        key = ctxgate("keys", "add", "--user", "ann", cwd=tmp_path).stdout.split()[0]
        for words in ("load", "room new", "chat mine hi"):
            assert ctxgate(*words.split(), cwd=tmp_path).returncode != 0
            done = ctxgate(*words.split(), cwd=tmp_path, CTXGATE_KEY=key)
            assert (done.returncode, "CTXGATE_KEY" in done.stderr) == (2 if words == "load" else 0, False), done.stderr

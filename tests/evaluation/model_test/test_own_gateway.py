"""Which gateway model-test asks, and with which key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import answering, ctxgate
from tests.cli.named import gateway

FEW = ("--suite", "smoke", "--limit", "1", "--baseline", "none", "--quiet", "--no-png", "--no-html", "--out", "out")


def test_model_test_asks_it_there(tmp_path: Path) -> None:
    with gateway(tmp_path, "", "mine", "--port", "0"):
        done = ctxgate("model-test", *FEW, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr


def test_it_asks_over_the_socket_and_sends_nothing_elsewhere(tmp_path: Path) -> None:
    with gateway(tmp_path, ", uds: s.sock"), answering(uds=tmp_path / "_models" / "s.sock"):
        done = ctxgate("model-test", *FEW, cwd=tmp_path, CTXGATE_KEY="the-secret")
    assert done.returncode in (0, 1), done.stderr
    assert json.loads((tmp_path / "out" / "results.json").read_text())["url"].endswith("s.sock")
    gone = ctxgate("model-test", *FEW, cwd=tmp_path)
    assert (gone.returncode, "no gateway runs at" in gone.stderr, "s.sock" in gone.stderr) == (3, True, True)


@pytest.mark.parametrize("serve", [(), ("--serve",)])
def test_the_key_is_the_configured_one(serve: tuple[str, ...], tmp_path: Path) -> None:
    with gateway(tmp_path, ', api_keys: ["${SESAME}"]', SESAME="open") as url:
        done = ctxgate("model-test", *FEW, *serve, cwd=tmp_path, SESAME="open", CTXGATE_KEY="another")
        assert done.returncode in (0, 1), done.stderr
        away = ("--base-url", url, "--fresh")
        done = ctxgate("model-test", *FEW, *away, cwd=tmp_path, SESAME="open", CTXGATE_KEY="another")
        assert (done.returncode, "401" in done.stderr) == (3, True)
        assert "OPENAI_API_KEY" in done.stderr
        done = ctxgate("model-test", *FEW, *away, "--api-key-env", "SESAME", cwd=tmp_path, SESAME="open")
        assert done.returncode in (0, 1), done.stderr


def test_the_key_of_keys_add_is_taken_from_the_environment(tmp_path: Path) -> None:
    with gateway(tmp_path, ""):
        key = ctxgate("keys", "add", "--user", "ann", cwd=tmp_path).stdout.split()[0]
        done = ctxgate("model-test", *FEW, cwd=tmp_path)
        assert (done.returncode, "put a key into CTXGATE_KEY" in done.stderr) == (3, True), done.stderr
        done = ctxgate("model-test", *FEW, cwd=tmp_path, CTXGATE_KEY=key)
        assert done.returncode in (0, 1), done.stderr

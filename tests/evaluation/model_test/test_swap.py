"""`ctxgate swap` with a real gateway, a real engine and the real test model, under a right and a wrong format."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.features.evaluation.model_test.results import read
from tests.cli.commands import environment
from tests.evaluation.model_test.servers import listening
from tests.evaluation.model_test.swapping import FAST, swap, written
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["smoke", pytest.param("core", marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_worse_setting_is_stopped_and_the_better_one_promoted(tmp_path: Path, test_model: Path, suite: str) -> None:
    config = written(tmp_path, test_model, "right")
    before = config.read_bytes()
    out = tmp_path / "out"
    done = swap(config, "wrong", "--gate", suite, "--out", str(out), *FAST)
    assert done.returncode == 1, done.stderr
    assert "REGRESSION" in done.stdout
    assert "overall: " in done.stdout
    assert "right stays the active model; nothing changed" in done.stderr
    assert config.read_bytes() == before
    assert (out / "wrong" / "report.html").is_file()

    config = written(tmp_path, test_model, "wrong")
    # What is known of a model needn't be measured again.
    done = swap(config, "right", "--gate", suite, "--baseline", str(out / "wrong"), "--out", str(out / "2"), *FAST)
    assert done.returncode == 0, done.stderr
    assert "NO REGRESSION SHOWN" in done.stdout
    assert "right is the active model now" in done.stdout
    assert config.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".config")] == []


@pytest.mark.parametrize("options", [("--options", 'a "b'), ("--days", "nan")])
def test_wrong_options(tmp_path: Path, test_model: Path, options: tuple[str, str]) -> None:
    done = swap(written(tmp_path, test_model, "right"), "wrong", *options)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert f"Invalid value for '{options[0]}'" in done.stderr


ECHOES = "active_model: one\nmodels: {one: {runtime: echo}, two: {runtime: echo}}\n"
FEW = "--limit 2 --quiet --no-png --no-html"


@pytest.mark.parametrize("option", ["--dry-run", "--help", "-h", "--thresholds"])
def test_a_run_without_a_score_is_refused(tmp_path: Path, option: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(ECHOES)
    done = swap(config, "two", "--gate", "smoke", "--out", "out", f"--options={FEW} {option}")
    assert (done.returncode, config.read_text()) == (2, ECHOES)
    assert f"a run with {option} has no score" in done.stderr


def test_only_a_comparison_promotes(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    for baseline, code, says in (([], 0, ""), (["--baseline", "none"], 5, "two was compared with no other model")):
        config.write_text(ECHOES)
        # What the first swap leaves in the folder says nothing about the second.
        done = swap(config, "two", "--gate", "smoke", "--out", "out", "--options", FEW, *baseline)
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
        assert (config.read_text() == ECHOES) == (code != 0)


def test_its_own_options_are_the_ones_that_count(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(ECHOES)
    theirs = f"{FEW} --baseline none --model one --out elsewhere"
    done = swap(config, "two", "--gate", "smoke", "--out", "out", "--options", theirs)
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "out" / "two")
    assert (found["target"]["model"], found["gate"]["verdict"]) == ("two", "no regression shown")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("right", 0, "right is the active model already"),
        ("vectors", 2, "vectors is for embedding, not for chat"),
        ("nobody", 1, "there is no model 'nobody'"),
        ("absent", 69, "absent isn't on this machine: put it at"),
    ],
)
def test_what_needs_no_test(tmp_path: Path, test_model: Path, name: str, code: int, says: str) -> None:
    done = swap(written(tmp_path, test_model, "right"), name)
    assert done.returncode == code
    assert says in done.stdout + done.stderr


def test_another_server_isnt_taken_for_the_candidate(tmp_path: Path, test_model: Path) -> None:
    with listening() as port:
        done = swap(written(tmp_path, test_model, "right", port), "ported")
    assert done.returncode == 2
    assert f"another server holds port {port}" in done.stderr


def test_a_value_from_elsewhere_is_left_alone(tmp_path: Path, test_model: Path) -> None:
    config = written(tmp_path, test_model, '"${MODEL:-right}"', free_port())
    before = config.read_bytes()
    done = swap(config, "wrong")
    assert done.returncode == 2
    assert "active_model isn't a plain name in the file" in done.stderr
    assert config.read_bytes() == before


def test_a_candidate_that_cannot_run_changes_nothing(tmp_path: Path, test_model: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    config = written(tmp_path, test_model, "right")
    with config.open("a", encoding="utf-8") as file:
        file.write(f"  broken: {{runtime: llama.cpp, path: {broken}, context_window: 1024}}\n")
    before = config.read_bytes()
    options = ("--options", "--no-png --quiet --limit 3 --timeout 30")
    done = swap(config, "broken", "--gate", "smoke", "--out", str(tmp_path / "out"), *options)
    assert done.returncode == 3, done.stderr
    assert "right stays the active model" in done.stderr
    assert config.read_bytes() == before


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_its_gateway_ends_with_it(tmp_path: Path, test_model: Path, end: signal.Signals) -> None:
    """SIGTERM reaches swap alone; a terminal's Ctrl-C all that runs in it."""
    config = written(tmp_path, test_model, "right")
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "swap", "wrong", "--config", str(config), "--out", str(tmp_path / "out")],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = served(tmp_path / "out")
        if end == signal.SIGINT:
            os.killpg(process.pid, end)
        else:
            process.send_signal(end)
        assert process.wait(PATIENCE) == 130
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    finally:
        process.kill()
        process.wait()


def test_a_run_that_a_signal_has_ended(
    tmp_path: Path, test_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python itself does this to a run that was interrupted at the wrong moment."""
    run = tmp_path / "run.py"
    run.write_text("import os, signal\nsignal.signal(2, signal.SIG_DFL)\nos.kill(os.getpid(), 2)\n")
    monkeypatch.setattr("gateway.features.evaluation.commands.swap.MODEL_TEST", (sys.executable, str(run)))
    assert main(["swap", "wrong", "--config", str(written(tmp_path, test_model, "right"))]) == 130
    assert "right stays the active model" in capsys.readouterr().err


def served(out: Path) -> int:
    """The port of the gateway that the run has started, once it answers."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for log in out.rglob("*.log"):
            if (found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", log.read_text("utf-8"))) is not None:
                return int(found[1])
        time.sleep(0.05)
    raise AssertionError("no gateway was started")

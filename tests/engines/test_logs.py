"""Engines' logs: bounded, and shown by `ctxgate logs`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from gateway.config import Engines, Model, Residence
from gateway.engines import Engine, Residency
from gateway.engines.logfile import LogFile, last_lines, log_path, rotated
from gateway.engines.process import Process
from gateway.engines.recipe import Machine
from gateway.errors import ProviderModelNotLoaded, ProviderUnavailable
from tests.cli.commands import ctxgate, environment
from tests.support.shared_memory import gateway_of, whole


def test_there_are_two_files_and_neither_grows(tmp_path: Path) -> None:
    path = tmp_path / "logs/m.log"
    log = LogFile(path, max_bytes=1000)
    for number in range(500):
        log.write(f"line {number}")
    log.close()
    assert path.stat().st_size <= 1000
    assert rotated(path).stat().st_size <= 1000
    assert len(list(path.parent.iterdir())) == 2
    assert list(last_lines(path, 100)) == [f"line {number}" for number in range(400, 500)]
    again = LogFile(path, max_bytes=1000)
    again.write("more")
    again.close()
    assert list(last_lines(path, 2)) == ["line 499", "more"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_keeps_a_megabyte_before_it_begins_another(tmp_path: Path) -> None:
    path = tmp_path / "logs/m.log"
    log = LogFile(path)
    for number in range(1024):
        assert not rotated(path).exists(), number
        log.write("x" * 1023)
    log.write("more")
    log.close()
    assert (path.stat().st_size, rotated(path).stat().st_size) == (5, 1024 * 1024)


def test_a_folder_that_cannot_be_written_ends_the_log_alone(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    log = LogFile(tmp_path / "logs/m.log")
    log.write("x")
    log.note("y")
    assert isinstance(log.failure, OSError)


async def test_a_log_has_the_start_and_the_end(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    engine = Engine(model, residency=Residency(state_dir=tmp_path), machine=xllamacpp)
    await engine.requests.ensure()
    pid = engine.pid
    assert os.listdir(tmp_path / "engines") == [f"{pid}.json"]
    await engine.stop()
    assert os.listdir(tmp_path / "engines") == []
    lines = list(last_lines(log_path(tmp_path, "tiny"), 1000))
    assert lines[0].startswith("--- 20")
    assert lines[0].endswith(f" xllamacpp started, pid {pid}")
    assert lines[-1].endswith(" xllamacpp was killed by SIGTERM")


async def test_an_engine_without_pid_file_serves(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "engines").write_text("a file, where the folder of pid files should be")
    engine = Engine(model, residency=Residency(state_dir=tmp_path), machine=xllamacpp)
    await engine.requests.ensure()
    assert "can't write the pid file of model tiny's engine" in caplog.text
    await engine.stop()


async def test_a_failed_start_and_the_command(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    engine = Engine(replace(model, path=broken), residency=Residency(state_dir=tmp_path), machine=xllamacpp)
    with pytest.raises(ProviderModelNotLoaded) as caught:
        await engine.requests.ensure()
    file = tmp_path / "config.yaml"
    models = {name: {"runtime": "llama.cpp", "path": str(broken)} for name in ("tiny", "quiet")}
    file.write_text(yaml.safe_dump({"active_model": "tiny", "models": models, "state_dir": str(tmp_path)}))

    done = ctxgate("logs", "--config", file, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert caught.value.message.splitlines()[-1] in done.stdout
    assert "exited with code 1" in done.stdout

    done = ctxgate("logs", "tiny", "-n", "1", "--config", file, cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 1

    done = ctxgate("logs", "quiet", "--config", file, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no engine of quiet has written anything yet" in done.stderr

    done = ctxgate("logs", "nobody", "--config", file, cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no model 'nobody'" in done.stderr


def test_following_goes_on_over_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"active_model: m\nmodels: {{m: {{runtime: echo}}}}\nstate_dir: {tmp_path}\n")
    log = LogFile(log_path(tmp_path, "m"), max_bytes=40)
    log.write("before")
    command = [sys.executable, "-m", "gateway", "logs", "-f", "--config", str(file)]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "before\n"
            for number in range(12):
                log.write(f"after {number}")
                assert process.stdout.readline() == f"after {number}\n"
        finally:
            process.terminate()
    log.close()


async def test_an_engine_without_a_folder_of_its_own_serves(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "work").write_text("in the way")
    async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        assert b"chat.completion" in await whole(gateway, "one")
    assert "model one's engine works in the gateway's folder" in caplog.text


async def test_a_system_that_starts_no_process(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*args: object, **more: object) -> Process:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(Process, "start", full)
    async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        with pytest.raises(ProviderUnavailable, match="can't start a process for xllamacpp: "):
            await whole(gateway, "one")

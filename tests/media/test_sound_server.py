"""The speech engine as a process, with a double of piper: one request's fault is that request's alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.features import media
from tests.patience import PATIENCE

PIPER = """
class PiperVoice:
    @classmethod
    def load(cls, model):
        voice = cls()
        voice.config = type("Config", (), {"speaker_id_map": {}})
        return voice
"""
CONFIG = """
def SynthesisConfig(speaker_id, length_scale):
    raise RuntimeError("this input is too much for me")
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine") / "log"


@pytest.fixture(scope="module")
def engine(log: Path) -> Iterator[httpx.Client]:
    with started(log) as (http, _):
        yield http


@contextmanager
def started(log: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    folder = log.parent
    (folder / "piper").mkdir()
    (folder / "piper" / "__init__.py").write_text(PIPER)
    (folder / "piper" / "config.py").write_text(CONFIG)
    script = Path(media.__path__[0]) / "sound_server.py"
    command = [sys.executable, "-P", str(script), "--runtime", "piper", "--model", "en_US-joe-medium.onnx"]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "PYTHONPATH": str(folder)}
        ) as process,
    ):
        assert process.stdout is not None
        at = json.loads(process.stdout.readline())["ctxgate"]
        try:
            with httpx.Client(base_url=f"http://{at['host']}:{at['port']}", timeout=PATIENCE, trust_env=False) as http:
                yield http, process
        finally:
            process.kill()


def speak(engine: httpx.Client, voice: Any) -> tuple[int, dict[str, Any]]:
    answer = engine.post("/v1/audio/speech", json={"input": "Hi.", "voice": voice})
    return answer.status_code, answer.json()["error"]


def goes_on(engine: httpx.Client) -> bool:
    status, error = speak(engine, "nobody")
    return (status, error["code"]) == (400, "voice_not_found")


@pytest.mark.parametrize("voice", [5, ["joe"], {"id": 5}, {"id": ["joe"]}, {"id": {"id": "joe"}}], ids=str)
def test_a_voice_that_is_no_text(voice: Any, engine: httpx.Client) -> None:
    status, error = speak(engine, voice)
    assert (status, error["param"], error["type"]) == (400, "voice", "invalid_request_error")
    assert goes_on(engine)


def test_what_the_model_fails_on(engine: httpx.Client, log: Path) -> None:
    status, error = speak(engine, {"id": "joe"})
    assert (status, error["code"], error["type"]) == (500, "engine_failed", "server_error")
    assert "this input is too much for me" in log.read_text()
    assert goes_on(engine)


def test_a_model_that_only_fails_ends_its_process(tmp_path: Path) -> None:
    """The gateway starts another one, which may find its device working again."""
    with started(tmp_path / "log") as (engine, process):
        for _ in range(2):
            assert speak(engine, {"id": "joe"})[0] == 500
        with pytest.raises(httpx.TransportError):
            speak(engine, {"id": "joe"})
        assert process.wait(PATIENCE) == 1

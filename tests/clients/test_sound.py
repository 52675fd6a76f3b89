"""Clients that speak and listen, on the real models of `ctxgate[audio]`. What `openai` for Python does: tests/media."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from gateway.config import Model
from tests.clients.libraries import PROGRAMS, run
from tests.media.conftest import tiny_whisper as tiny_whisper  # a fixture
from tests.media.conftest import voice as voice  # a fixture
from tests.patience import PATIENCE
from tests.support.sound import SENTENCE, ears, gateway, mouth, speak, words


@pytest.fixture(scope="module")
def openai(tiny_whisper: Path, voice: Path) -> Iterator[OpenAI]:
    """Of a gateway that hears, speaks, and chats about what it hears."""
    chat = Model(name="chat", runtime="echo", transcribe_with="ears")
    with gateway(chat, ears(tiny_whisper), mouth(voice)) as client:
        yield client


@pytest.mark.clients
def test_node(openai: OpenAI, clients: Path, environment: dict[str, str]) -> None:
    if not (clients / "node/node_modules/openai").is_dir():
        pytest.skip("the node clients are not installed: scripts/clients node does it")
    program: list[str | Path] = ["node", PROGRAMS / "sound.mjs", str(openai.base_url), clients, SENTENCE]
    said = json.loads(run(program, environment))
    assert words(said["heard"]) == words(said["streamed"]) == words(SENTENCE)
    assert said["next"]


@pytest.mark.clients
def test_llm(openai: OpenAI, clients: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """An attachment, for a model that reads text."""
    python = clients / "python/bin/python"
    if not python.exists():
        pytest.skip("the Python clients are not installed: scripts/clients python does it")
    sound = tmp_path / "question.wav"
    sound.write_bytes(speak(openai))
    output = run([python, PROGRAMS / "attachment.py", str(openai.base_url), sound], environment)
    assert words(output) == words(f"Heard: {SENTENCE}")


def test_open_webui_s_calls(openai: OpenAI) -> None:
    """As its backend makes them, with the headers of its user and a file's name of its own."""
    head = {"Authorization": "Bearer unused", "X-OpenWebUI-User-Name": "Ann"}
    with httpx.Client(base_url=str(openai.base_url), headers=head, timeout=PATIENCE) as client:
        voices = client.get("audio/voices").json()["voices"]
        assert {voice["id"]: voice["name"] for voice in voices} == {"joe": "joe"}
        spoken = client.post("audio/speech", json={"input": SENTENCE, "voice": "joe", "model": "joe"})
        assert (spoken.status_code, spoken.headers["content-type"]) == (200, "audio/mpeg")
        named = ("1c6de9b2-6a3e-4d5c-9a51-2f0f2ac2e2f5.mp3", spoken.content)
        heard = client.post("audio/transcriptions", files={"file": named}, data={"model": "ears", "language": "en"})
        assert words(heard.json()["text"]) == words(SENTENCE)
        wrong = client.post("audio/speech", json={"input": SENTENCE, "voice": "alloy", "model": "joe"})
        assert wrong.json()["error"]["message"] == "the engine answered 400: voice: there is no 'alloy'; there are: joe"

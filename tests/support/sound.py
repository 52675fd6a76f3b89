"""Real models that speak and hear, behind a gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI

from gateway.app import build
from gateway.config import Config, Engines, Model, Server
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.provider.server import serve

SENTENCE = "The library opens early in the morning."


@contextmanager
def gateway(*models: Model, memory: int | None = None) -> Iterator[OpenAI]:
    echo = Model(name="echo", runtime="echo")
    config = Config(
        source=Path(__file__),
        active_model="echo",
        models={model.name: model for model in (echo, *models)},
        server=Server(**NO_COMMENTS),
        engines=Engines(memory_budget=memory),
    )
    with (
        serve(build(config), lifespan="on", http=FAST) as url,
        OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=PATIENCE, max_retries=0) as client,
    ):
        yield client


def ears(path: Path) -> Model:
    return Model(name="ears", runtime="faster-whisper", role="transcription", path=path)


def mouth(path: Path) -> Model:
    return Model(name="joe", runtime="piper", role="speech", path=path)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def speak(client: OpenAI, text: str = SENTENCE, format: str = "wav") -> bytes:
    return client.audio.speech.create(model="joe", voice="joe", input=text, response_format=format).content  # type: ignore[arg-type]


def states(client: OpenAI) -> dict[str, str]:
    status = client.get("/../-/status", cast_to=object)
    assert isinstance(status, dict)
    return {model["name"]: model["state"] for model in status["models"] if model["name"] != "echo"}

"""What `/api/show` says that a model can do: clients offer tools, images and thinking by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.ollama.abilities import abilities
from tests.backends.ollama_double import OllamaDouble
from tests.conftest import ROOT
from tests.gateway.before_ollama import before
from tests.gateway.running import running

TEMPLATES = ROOT.parent / "shared/conformance/templates"

SHOWN: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "Qwen 2.5": ("lcpp-Qwen-Qwen2.5-7B-Instruct", {}, ["tools"]),
    "Qwen 3.5": ("lcpp-Qwen3.5-4B", {}, ["tools", "thinking"]),
    "Mistral Nemo": ("lcpp-mistralai-Mistral-Nemo-Instruct-2407", {}, ["tools"]),
    "Ministral, reasoning": ("lcpp-mistralai-Ministral-3-14B-Reasoning-2512", {}, ["tools", "thinking"]),
    "Gemma 2": ("lcpp-google-gemma-2-2b-it", {}, []),
    "Gemma 4": ("lcpp-google-gemma-4-31B-it", {}, ["tools", "thinking"]),
    "Cohere": ("lcpp-CohereForAI-c4ai-command-r7b-12-2024-tool_use", {}, ["tools", "thinking"]),
    "gpt-oss": ("lcpp-openai-gpt-oss-120b", {}, ["tools", "thinking"]),
    "thoughts alone": ("lcpp-deepseek-ai-DeepSeek-R1-Distill-Llama-8B", {}, ["thinking"]),
    "calls that we read": ("lcpp-google-gemma-2-2b-it", {"tool_call_format": "pythonic"}, ["tools"]),
    "a format that is found": ("lcpp-Qwen-Qwen2.5-7B-Instruct", {"tool_call_format": "auto"}, ["tools"]),
    "as a person says": ("lcpp-google-gemma-2-2b-it", {"capabilities": ("text", "tool_calling")}, ["tools"]),
    "as a person denies": ("lcpp-Qwen-Qwen2.5-7B-Instruct", {"capabilities": ("text", "vision")}, ["vision"]),
    "thinking, as a person says": ("lcpp-google-gemma-2-2b-it", {"capabilities": ("text", "reasoning")}, ["thinking"]),
}


@pytest.mark.parametrize("name", SHOWN)
async def test_by_the_chat_template(name: str, tmp_path: Path) -> None:
    file, settings, expected = SHOWN[name]
    template = TEMPLATES / f"{file}.jinja"
    if not template.is_file():
        pytest.skip("the shared templates aren't here")
    (tmp_path / "chat_template.jinja").write_text(template.read_text())
    model = Model(name="m", runtime="mlx", path=tmp_path, **settings)
    config = Config(
        source=tmp_path / "config.yaml", active_model="m", models={"m": model}, state_dir=tmp_path / "state"
    )
    async with Gateway(config) as gateway:
        assert await abilities(gateway.routes["m"]) == ["completion", *expected]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("m", ["tools"]),
        ("plain", []),
        ("thinker", ["tools", "thinking"]),
        ("sees", ["tools", "vision"]),
        ("coder", ["insert"]),
        ("old", ["tools"]),
    ],
)
async def test_as_ollama_says(model: str, expected: list[str]) -> None:
    able = {
        "m": ["completion", "tools"],
        "plain": ["completion"],
        "thinker": ["completion", "tools", "thinking"],
        "sees": ["completion", "tools", "vision"],
        "coder": ["completion", "insert"],
        "old": None,
    }
    async with before(OllamaDouble(able), model) as gateway:
        shown = (await gateway.ask({"model": "m"}, "/api/show")).json
    assert shown["capabilities"] == ["completion", *expected]


ROLES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "embedding": ({"role": "embedding"}, ["embedding"]),
    "rerank": ({"role": "rerank"}, []),
    "a server that doesn't tell": ({}, ["completion", "tools"]),
    "a server that sees, as a person says": (
        {"capabilities": ("text", "tool_calling", "vision")},
        ["completion", "tools", "vision"],
    ),
    "a server that is down": (
        {"runtime": "ollama", "base_url": "http://127.0.0.1:9"},
        ["completion", "tools"],
    ),
}


@pytest.mark.parametrize("name", ROLES)
async def test_of_any_server(name: str) -> None:
    settings, expected = ROLES[name]
    async with running(**settings) as gateway:
        assert (await gateway.ask({"model": "m"}, "/api/show")).json["capabilities"] == expected


async def test_by_the_projector(test_model: Path, tmp_path: Path) -> None:
    model = Model(name="m", runtime="llama.cpp", path=test_model, mmproj_path=test_model)
    config = Config(
        source=tmp_path / "config.yaml", active_model="m", models={"m": model}, state_dir=tmp_path / "state"
    )
    async with Gateway(config) as gateway:
        assert await abilities(gateway.routes["m"]) == ["completion", "tools", "vision"]
        assert (engine := gateway.routes["m"].engine) is not None
        assert engine.state == "stopped"

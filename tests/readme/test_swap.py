"""README.md's way to change the model: its commands, and nothing else, between two runs of one unchanged program."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.patience import PATIENCE
from tests.readme.examples import PAGE, ROOT, gateway

SECTION = PAGE.read_text("utf-8").partition("## To change the model\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^ *```sh\n *(.*)\n *```$", SECTION, re.MULTILINE)
EXAMPLE = "lfm25-1.2b"

TOOL = {
    "name": "get_weather",
    "description": "Current weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def program(address: str) -> dict[str, Any]:
    """The application whose code doesn't change."""
    request = {
        "model": "default",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": TOOL}],
        "max_tokens": 30,
    }
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        answer = client.post(f"http://{address}/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_six_steps_one_command_each() -> None:
    """The first and the last two are run by tests/evaluation/model_test/test_procedure.py."""
    words = [" ".join(command.split()[: 1 if command.startswith("sed") else 2]) for command in COMMANDS]
    test = "ctxgate model-test"
    assert words == [test, "ctxgate pull", "sed", "ctxgate serve", test, test]


def test_swap(smollm2: str, test_model: Path, tmp_path: Path) -> None:
    models = tmp_path / "_models"
    (models / "test").mkdir(parents=True)
    for place in ("config.yaml", f"{smollm2}.gguf", f"test/{test_model.name}"):
        shutil.copy(ROOT / "_models" / place, models / place)
    config = models / "config.yaml"
    before = config.read_text("utf-8")
    _, download, edit, *_ = COMMANDS

    with gateway(tmp_path, config) as address:
        answer = program(address)
    assert answer["model"] == smollm2

    # The test model is part of the repository: there is nothing to download.
    subprocess.run(
        ["sh", "-c", edit.replace(EXAMPLE, "ctxgate-test-tools")], cwd=tmp_path, timeout=PATIENCE, check=True
    )
    with gateway(tmp_path, config) as address:
        answer = program(address)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (answer["model"], call["function"]["name"]) == ("ctxgate-test-tools", "get_weather")

    # And back, with the download, which finds the weights in their place.
    pull = [sys.executable, "-m", "gateway", *download.replace(EXAMPLE, smollm2).split()[1:]]
    done = subprocess.run(
        pull, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == f"{models / smollm2}.gguf\n"
    subprocess.run(["sh", "-c", edit.replace(EXAMPLE, smollm2)], cwd=tmp_path, timeout=PATIENCE, check=True)
    assert config.read_text("utf-8") == before
    with gateway(tmp_path, config) as address:
        assert program(address)["model"] == smollm2

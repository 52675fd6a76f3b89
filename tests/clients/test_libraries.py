"""Libraries that people use, unpatched, with the real engine and the project's real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.libraries import PROGRAMS, run

PYTHON = sorted(path.stem for path in PROGRAMS.glob("*_*.py"))

pytestmark = pytest.mark.clients


def holds(output: str) -> None:
    said = json.loads(output.strip().splitlines()[-1])
    assert said["plain"] == "Hello! How can I help you?"
    assert said["streamed"] == said["plain"]
    assert said["called"] == {"city": "Paris", "unit": "celsius"}
    assert said["result"] == "The result is 21."


@pytest.mark.parametrize("program", PYTHON)
def test_python(program: str, real: str, clients: Path, environment: dict[str, str]) -> None:
    python = clients / "python/bin/python"
    if not python.exists():
        pytest.skip("the Python clients are not installed: scripts/clients python does it")
    holds(run([python, PROGRAMS / f"{program}.py", real], environment))


def test_node(real: str, clients: Path, environment: dict[str, str]) -> None:
    if not (clients / "node/node_modules/openai").is_dir():
        pytest.skip("the node clients are not installed: scripts/clients node does it")
    holds(run(["node", PROGRAMS / "openai_node.mjs", real, clients], environment))

"""The pages of docs/clients: what they tell to write is what the doctor tells, and what they show is what comes."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import load
from gateway.features.clients.contracts import ADDRESS, CONTRACTS, filled
from tests.clients import pages
from tests.clients.pages import blocks, configured, here
from tests.clients.table import CLIENTS, is_installed
from tests.conftest import ROOT
from tests.patience import PATIENCE

NAMES = sorted(path.stem for path in pages.FOLDER.glob("*.md") if path.stem not in ("README", "table"))
SHOWN = [name for name in NAMES if any(kind == "text" for _, kind, _ in blocks(name)) and name != "cline"]
"""Pages whose program is run, and its output compared."""
READS: dict[str, Any] = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}


def test_every_page_is_in_the_table_and_known_to_the_doctor() -> None:
    text = (pages.FOLDER / "README.md").read_text("utf-8")
    assert sorted(name for name in NAMES if f"[{name}]({name}.md)" in text) == NAMES
    assert sorted(CONTRACTS) == NAMES


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_the_doctor_tells_the_same(name: str) -> None:
    model = load(ROOT / "_models/config.yaml", {}).models[pages.model_of(name)]
    contract = CONTRACTS[name]
    shown = [(file, text) for file, _, text in blocks(name)]
    for text in (contract.snippet, *contract.also.values()):
        assert filled(text, ADDRESS, model.name, model.context_window) in [text for _, text in shown]
    files = [file for file, _ in shown if file is not None and file.startswith("~/")]
    assert name == "llm" or files == [place for place in (contract.place, *contract.also) if place.startswith("~/")]


AT_ONCE = ("smollm2-135m-instruct", "ctxgate-test-tools")
"""The models that need no download of gigabytes."""


@pytest.mark.parametrize("name", sorted(name for name, contract in CONTRACTS.items() if contract.first_request))
def test_an_agents_guide_names_a_model_that_has_the_room(name: str) -> None:
    contract, shipped = CONTRACTS[name], load(ROOT / "_models/config.yaml", {})
    model = shipped.models[pages.model_of(name)]
    assert (model.context_window or 0) >= contract.window > contract.first_request
    assert "tool_calling" in model.capabilities
    text = (pages.FOLDER / f"{name}.md").read_text("utf-8")
    for small in AT_ONCE:
        assert (shipped.models[small].context_window or 0) < contract.window
        assert f"`{small}`" in text
    assert f"ctxgate pull {model.name}" in text
    for row in re.findall(r"^\| `([\w.-]+)` \| ([\d,]+) \|", text, re.M):
        assert f"{shipped.models[row[0]].context_window:,}" == row[1]


@pytest.mark.parametrize("name", NAMES)
def test_what_it_tells_to_write_can_be_read(name: str) -> None:
    found = [READS[kind](text) for _, kind, text in blocks(name) if kind in READS]
    assert all(pages.model_of(name) in json.dumps(one) for one in found)
    assert not found or any(ADDRESS in json.dumps(one) for one in found)


@pytest.mark.clients
@pytest.mark.parametrize("name", SHOWN)
def test_what_it_shows_comes(
    name: str, real: str, clients: Path, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    client = next((client for client in CLIENTS if client.page == name), None)
    if client is not None and not is_installed(client):
        pytest.skip(f"{client.name} is not installed: scripts/clients does it")
    environment |= configured(name, real, "tiny", home)
    (language,) = {kind for _, kind, _ in blocks(name)} & {"python", "js"}
    program = tmp_path / ("program.mjs" if language == "js" else "program.py")
    code = "\n\n".join(text for _, kind, text in blocks(name) if kind == language)
    program.write_text(here(code, real, "tiny", name), "utf-8")
    # Where node looks for the packages.
    (tmp_path / "node_modules").symlink_to(clients / "node/node_modules")
    place = "python" if client is None else client.environment
    runs = "node" if language == "js" else clients / place / "bin/python"
    done = subprocess.run([runs, program], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    (expected,) = [text for _, kind, text in blocks(name) if kind == "text"]
    assert done.stdout == expected

"""The pages of docs/clients: what they tell to write is what the doctor tells, and what they show is what comes."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.contracts import ADDRESS, CONTRACTS, snippet
from tests.clients import pages
from tests.clients.pages import blocks, configured, here
from tests.patience import PATIENCE

NAMES = sorted(path.stem for path in pages.FOLDER.glob("*.md") if path.stem != "README")
SHOWN = [name for name in NAMES if any(kind == "text" for _, kind, _ in blocks(name)) and name != "cline"]
"""Pages whose program is run, and its output compared."""
READS: dict[str, Any] = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}


def test_the_table_names_every_page() -> None:
    text = (pages.FOLDER / "README.md").read_text("utf-8")
    assert sorted(name for name in NAMES if f"[{name}]({name}.md)" in text) == NAMES
    assert set(CONTRACTS) <= set(NAMES)


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_the_doctor_tells_the_same(name: str) -> None:
    told = snippet(CONTRACTS[name], ADDRESS, pages.MODEL, None)
    assert told in [text for _, _, text in blocks(name)]


@pytest.mark.parametrize("name", NAMES)
def test_what_it_tells_to_write_can_be_read(name: str) -> None:
    found = [READS[kind](text) for _, kind, text in blocks(name) if kind in READS]
    assert all(ADDRESS in json.dumps(one) and pages.MODEL in json.dumps(one) for one in found)


@pytest.mark.clients
@pytest.mark.parametrize("name", SHOWN)
def test_what_it_shows_comes(
    name: str, real: str, clients: Path, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    python = clients / "python/bin/python"
    if not python.exists():
        pytest.skip("the Python clients are not installed: scripts/clients python does it")
    environment |= configured(name, real, "tiny", home)
    program = tmp_path / "program.py"
    code = "\n\n".join(text for _, kind, text in blocks(name) if kind == "python")
    program.write_text(here(code, real, "tiny"), "utf-8")
    done = subprocess.run([python, program], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    (expected,) = [text for _, kind, text in blocks(name) if kind == "text"]
    assert done.stdout == expected

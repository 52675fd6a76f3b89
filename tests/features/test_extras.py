"""A section of config.yaml whose feature lacks packages says which, and how to install them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.feature import Extra, Feature, lacking
from tests.cli.commands import config, environment
from tests.patience import PATIENCE

CHECK = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # as if it weren't installed
from gateway.cli.main import main
sys.exit(main(["check"]))
"""
MODELS = "active_model: echo\nmodels: {echo: {runtime: echo}}\n"
CLUSTER = f"{MODELS}store: postgresql://host/name\ncluster: {{ray: '127.0.0.1:1'}}\n"
MCP = f"{MODELS}mcp: {{servers: {{time: {{command: uvx mcp-server-time}}}}}}\n"


def checked(folder: Path, text: str, *missing: str) -> str:
    config(folder, text)
    done = subprocess.run(
        [sys.executable, "-c", CHECK, *missing],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("text", "missing", "told"),
    [
        (CLUSTER, ["ray"], ":4:1: cluster: not installed: ray; pip install 'ctxgate[cluster]'"),
        (CLUSTER, ["ray", "psycopg"], "cluster: not installed: ray, psycopg; pip install 'ctxgate[cluster]'"),
        (MCP, ["mcp"], ":3:1: mcp: not installed: mcp; pip install 'ctxgate[mcp]'"),
    ],
)
def test_the_section_says_so(tmp_path: Path, text: str, missing: list[str], told: str) -> None:
    assert told in checked(tmp_path, text, *missing)


def test_a_file_without_the_section_says_nothing(tmp_path: Path) -> None:
    assert "note" not in checked(tmp_path, MODELS, "ray", "psycopg", "mcp")


def test_the_package_of_another_feature_is_named() -> None:
    extra = Extra("sound", ("no_such_module", "json"), package="choir")
    told = "not installed: no_such_module; pip install 'choir[sound]'"
    assert lacking(Feature(name="choir", extra=extra)) == told
    assert lacking(Feature(name="choir")) == ""

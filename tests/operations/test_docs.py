"""The examples of docs/operations.md and its reference, run as they stand against a real gateway."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.answer import capture
from gateway.backends import choice, replicas
from gateway.config import load
from gateway.config.diff import at_start
from gateway.features.operations import metrics
from gateway.observe import request_log
from tests.cli.commands import environment
from tests.conftest import ROOT
from tests.operations.running import QUESTION, Gateway, gateway
from tests.patience import PATIENCE

PAGE = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("operations.md", "operations-reference.md"))
WORDS = " ".join(PAGE.split())
FILES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CONSOLES = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [part for console in CONSOLES for part in re.split(r"^(?=\$ )", console, flags=re.MULTILINE) if part]
EXAMPLES = [re.match(r"\$ (.*)\n((?s:.*))", command) for command in COMMANDS]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def running(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    folder = tmp_path_factory.mktemp("docs")
    (folder / "_models/test").mkdir(parents=True)
    (folder / "_models/test/ctxgate-test-tools.gguf").symlink_to(test_model)
    with gateway(folder, FILES[0], PATH="") as running:
        asked = {key: value for key, value in QUESTION.items() if key != "model"}
        assert running.http.post("/v1/chat/completions", json=asked).status_code == 200
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples need curl")
def test_the_examples_give_what_the_page_shows(running: Gateway) -> None:
    """In the page's order: each finds what the ones before it have left."""
    folder = running.file.parents[1]
    url = str(running.http.base_url).rstrip("/")
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "ctxgate"
    program.write_text(f'#!/bin/sh\ncommand=$1; shift\nexec {sys.executable} -m gateway "$command" --url {url} "$@"\n')
    program.chmod(0o755)
    env = environment(folder, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    env["PATH"] = f"{programs}:{env['PATH']}"
    assert len(EXAMPLES) == 7
    for example in EXAMPLES:
        assert example is not None
        command = example[1].replace("http://127.0.0.1:4000", url)
        done = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        printed, wanted = done.stdout + done.stderr, example[2]
        if not doctest.OutputChecker().check_output(wanted, printed, FLAGS):
            pytest.fail(f"$ {command}\n{printed}\n\nwanted:\n{wanted}")
        if "config.yaml" in command and "edited" not in command:
            # The gateway sees a saved file within a second; what follows needs that it has.
            if "runtim:" in running.file.read_text():
                running.until(lambda status: bool(status["config"]["problems"]))
            else:
                running.until(lambda status: not status["config"]["problems"])


@pytest.mark.parametrize("text", FILES, ids=["first", "routes", "spans"])
def test_the_files_are_right(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert load(file, {}).notes == ()


def test_the_pages_name_every_metric() -> None:
    source = Path(metrics.__file__).read_text("utf-8")
    for name in re.findall(r'"(ctxgate_\w+)"', source):
        assert name in PAGE or re.search(r"\^ctxgate_\(.*\b" + name.removeprefix("ctxgate_") + r"\b", PAGE), name


def test_the_pages_numbers_are_the_code_s() -> None:
    for key in at_start():
        assert key in PAGE or key.removeprefix("server.") in PAGE, key
    assert f"up to {capture.MAX_RECORDING >> 20} MB each and {request_log.MAX_RECORDED >> 20} MB together" in WORDS
    probes = replicas.PROBES
    assert f"probed after {probes.first} s, then at growing intervals of up to {probes.longest:g} s" in WORDS
    assert choice.SLACK == 2
    assert "a difference of two requests" in WORDS

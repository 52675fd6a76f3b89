"""docs/ctx.md shows what happens: its examples run on a real tree, one after another."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from gateway.ctx.availability import BUSY, OFFLINE, READY, UNCONFIGURED
from gateway.ctx.drivers import DRIVERS
from gateway.engines.states import TABLE
from tests.conftest import ROOT
from tests.ctx.served import tree

PAGE = (ROOT / "docs/ctx.md").read_text("utf-8")
CONSOLE = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [
    example for block in CONSOLE for example in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]

# As `nc -U` does it, which isn't installed everywhere.
SOCKET = """\
#!{python}
import os, socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect(os.path.join(os.environ["CTX_ROOT"], "model", sys.argv[1] + ".sock"))
    client.sendall(sys.stdin.buffer.read())
    client.shutdown(socket.SHUT_WR)
    while data := client.recv(65536):
        sys.stdout.buffer.write(data)
"""


def test_the_page_shows_all_three_ways() -> None:
    commands = " ".join(command for command, _ in EXAMPLES)
    for way in ("/ctx/model/debug/echo", "ctxgate ctx ls", "ctxgate ctx export", "ctx-socket", "tail -n +2"):
        assert way in commands


def test_examples(short: Path, small: dict[str, Any]) -> None:
    programs = short / "bin"
    programs.mkdir()
    (programs / "ctxgate").write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
    (programs / "ctx-socket").write_text(SOCKET.format(python=sys.executable))
    for program in programs.iterdir():
        program.chmod(0o700)
    with tree(short, small) as made:
        (short / "_models").mkdir()
        made.config.rename(short / "_models/config.yaml")
        for command, printed in EXAMPLES:
            done = made.sh(command, PATH=f"{programs}:{made.env['PATH']}")
            assert done.stderr == "", command
            assert done.stdout.replace(str(made.root), "/ctx") == printed, command


def test_words_that_the_page_explains() -> None:
    status = next(line for line in PAGE.splitlines() if line.startswith("| `status` |"))
    assert {READY, BUSY, OFFLINE, UNCONFIGURED} | {state for state, _ in TABLE} == set(
        re.findall(r"`(\w+)`", status)
    ) - {"status"}
    assert all(f"`{driver}`" in PAGE for driver in DRIVERS)

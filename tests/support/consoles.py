"""Runs a page's console examples."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.commands import environment
from tests.patience import PATIENCE


def typed(console: str, folder: Path, port: int) -> None:
    """The block's commands in one shell, as it would be typed: each prints what stands below it."""
    found = [
        re.match(r"\$ (.*(?:\n> .*)*)\n((?s:.*))", part)
        for part in re.split(r"^(?=\$ )", console, flags=re.MULTILINE)
        if part
    ]
    wanted = [(example[1].replace("\n> ", "\n"), example[2]) for example in found if example is not None]
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "ctxgate").write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
    (programs / "ctxgate").chmod(0o755)
    env = environment(folder)
    env["PATH"] = f"{programs}:{env['PATH']}"
    mark = "### next\n"
    script = f"printf '{mark}'\n".join(f"{command}\n" for command, _ in wanted)
    script = script.replace("127.0.0.1:4000", f"127.0.0.1:{port}")
    done = subprocess.run(
        ["sh", "-c", f"exec 2>&1\n{script}"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout.count(mark) == len(wanted) - 1, done.stdout
    for (command, shown), printed in zip(wanted, done.stdout.split(mark), strict=True):
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(shown, printed, flags), f"$ {command}\n{printed}\nwanted:\n{shown}"

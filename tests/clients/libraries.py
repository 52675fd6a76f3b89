"""Runs the programs in `programs/`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.patience import PATIENCE

PROGRAMS = Path(__file__).parent / "programs"


def run(command: list[str | Path], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

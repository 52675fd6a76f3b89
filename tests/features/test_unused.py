"""A gateway that uses no feature imports nothing of one but its description."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gateway.feature import FEATURES
from tests.cli.commands import environment
from tests.patience import PATIENCE

SCRIPT = """
import sys
from gateway.api import routes
from gateway.app import build
from gateway.cli.main import commands
from gateway.config import load

build(load("config.yaml", text="active_model: echo\\nmodels: {echo: {runtime: echo}}"))
assert routes.routes_of("/llm/room").finishes
assert "room" in commands()
print(*(name for name in sys.modules if name.startswith("gateway.features.")))
"""


def test_only_descriptions_are_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    descriptions = {name.partition(":")[0] for name in FEATURES}
    assert set(done.stdout.split()) == descriptions | {name.removesuffix(".feature") for name in descriptions}

"""What reading the configuration costs a start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

TEXT = """\
active_model: one
server:
  api_keys: ["${CTXGATE_KEY:-}"]
models:
  one:
    runtime: echo
"""


def test_a_start_after_an_edit_builds_only_what_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT, "utf-8")
    script = (
        "import os, sys; from gateway.config import load; load(sys.argv[1])\n"
        "print(*(name for name in sys.modules if name.startswith('gateway.features.') and 'settings' in name))\n"
        "print(os.environ['PYDANTIC_DISABLE_PLUGINS'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(file)],
        env=os.environ | {"PYDANTIC_DISABLE_PLUGINS": "theirs"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    assert said == "\ntheirs\n"

"""Writes what README.md's examples print now into it: `python -m tests.readme`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.readme.examples import PAGE, gateway, rewritten

with tempfile.TemporaryDirectory() as home, gateway(Path(home)) as address:
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), lambda example: example.run(address)), "utf-8")

"""`ctxgate swap` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.commands import environment
from tests.patience import PATIENCE

FAST = ("--options", "--no-png --max-tokens 128 --quiet")

CONFIG = """\
# The file of somebody who writes comments.
active_model:   {active}   # the one that answers

models:
  right:          # reads what the model writes
    runtime: llama.cpp
    path: {model}
    context_window: 1024
    tool_call_format: pythonic
    max_tokens: 256
  wrong: {{runtime: llama.cpp, path: {model}, context_window: 1024, max_tokens: 256, tool_call_format: hermes}}
  ported: {{runtime: llama.cpp, path: {model}, port: {port}}}
  vectors: {{runtime: llama.cpp, role: embedding, path: {model}}}
  absent: {{runtime: llama.cpp, path: {model}.not-there}}
"""


def written(folder: Path, model: Path, active: str, port: int = 1) -> Path:
    file = folder / "config.yaml"
    file.write_text(CONFIG.format(active=active, model=model, port=port), "utf-8")
    return file


def swap(config: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "swap", "--config", str(config), *args],
        cwd=config.parent,
        env=environment(config.parent),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

"""A configuration that somebody wrote, and the commands that change it, as processes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from tests.cli.commands import environment
from tests.models.pull.sources import Source
from tests.patience import PATIENCE

FILE = """\
# my models
active_model: echo  # for now

models:
  # it repeats
  echo: {runtime: echo}
  big: {runtime: llama.cpp, path: big.gguf}  # not fetched yet

log: {level: info}  # and nothing else
"""


def ctxgate(
    config: Path, *args: str | Path, maximum: int | None = None, hub: Source | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """maximum: bytes that a file may have; what the command writes beyond fails as on a full disk."""
    name, *rest = map(str, args)
    if hub is not None:
        environ |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(config.parent.parent / "hf")}
    return subprocess.run(
        [sys.executable, "-m", "gateway", name, "--config", str(config), *rest],
        env=environment(config.parent.parent, NO_PROXY="127.0.0.1", **environ),
        cwd=config.parent.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=None if maximum is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (maximum, maximum)),
    )

"""The example of docs/media.md works as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.hostile.running import started_at
from tests.media.conftest import weights_of
from tests.patience import PATIENCE
from tests.ports import free_port

PAGE = (ROOT / "docs/media.md").read_text("utf-8")


def test_the_example(tmp_path: Path) -> None:
    places = {
        "models/whisper-base": weights_of("whisper-base"),
        "models/en_US-joe-medium.onnx": weights_of("piper-joe") / "en_US-joe-medium.onnx",
    }
    (written,) = re.findall(r"```yaml\n(active_model: chat\nmodels:\n  chat:\n.*?)```", PAGE, re.DOTALL)
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    config = yaml.safe_load(written)
    for model in config["models"].values():
        if "path" in model:
            model["path"] = str(places[model["path"]])
    port = free_port()
    with started_at(port, tmp_path, config):
        done = subprocess.run(
            [sys.executable, "-c", script.replace(":4000/", f":{port}/")],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The library opens early in the morning.\n"

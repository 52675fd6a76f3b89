"""README.md's six steps: the first and the last two, as they stand there, around a real change of the model."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from gateway.config import Config
from gateway.features.evaluation import endpoints
from gateway.features.evaluation.model_test import target
from tests.cli.commands import answering, environment, serving
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "README.md").read_text("utf-8").partition("## To change the model\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^ *```sh\n *(.*)\n *```$", SECTION, re.MULTILINE)

CONFIG = """\
active_model: old
models:
  old: {{runtime: llama.cpp, path: {model}, context_window: 1024, tool_call_format: pythonic, max_tokens: 256}}
  lfm25-1.2b: {{runtime: llama.cpp, path: {model}, context_window: 1024, tool_call_format: hermes, max_tokens: 256}}
server: {{port: {port}}}
"""


def step(command: str, folder: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    """`ctxgate model-test ...`, its files below `folder`."""
    words = shlex.split(command)
    assert words[:2] == ["ctxgate", "model-test"]
    moved = [re.sub(r"^(runs|benchmarks/baselines)/", f"{folder}/", word) for word in words[2:]]
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli.model_test", *moved, *map(str, more)],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_six_steps(tmp_path: Path, test_model: Path) -> None:
    """Step 2 has nothing to download here; step 4 is `ctxgate serve`. The change is for the worse, and is found."""
    keep, _, edit, _, test, compare = COMMANDS
    port = free_port()
    config = tmp_path / "_models" / "config.yaml"
    config.parent.mkdir()
    config.write_text(CONFIG.format(model=test_model, port=port), "utf-8")
    few = ("--config", config, "--suite", "smoke", "--quiet", "--no-png", "--max-tokens", "128")
    done = step(keep, tmp_path, *few, "--baselines", tmp_path, "--out", tmp_path / "old")
    assert (tmp_path / "before.json").is_file(), done.stderr
    subprocess.run(["sh", "-c", edit], cwd=tmp_path, timeout=PATIENCE, check=True)
    with serving(tmp_path, "--config", config), answering(port):
        done = step(test, tmp_path, *few)
        assert done.returncode == 6, done.stderr  # calls came out as text
        assert "must pass: " in done.stdout
    done = step(compare, tmp_path, "--baselines", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "REGRESSION" in done.stdout
    assert "changed: target.tool_call_format: pythonic → hermes" in done.stdout


def test_the_page_lists_what_the_steps_write(tmp_path: Path) -> None:
    """A checkout's runs, where the configuration is the checkout's."""
    assert (target.CHECKOUT, target.BASELINES, target.RUNS) == (ROOT, ROOT / "benchmarks/baselines", ROOT / "runs")
    config = Config(source=ROOT / "_models/config.yaml", active_model="m", models={}, state_dir=tmp_path)
    own = tmp_path / "evaluations"
    assert endpoints.folders(config) == [own, ROOT / "runs", ROOT / "runs/model-test", ROOT / "runs/add"]
    assert endpoints.folders(replace(config, source=tmp_path / "config.yaml")) == [own]
    for place in (
        tmp_path / "a" / "after",
        tmp_path / "b" / "after",
        tmp_path / "b" / "other",
        tmp_path / "b" / "empty",
    ):
        place.mkdir(parents=True)
        if place.name != "empty":
            (place / endpoints.RESULTS).write_text("{}")
    found = endpoints.runs([tmp_path / "a", tmp_path / "missing", tmp_path / "b"])
    assert {name: path.parent.name for name, path in found.items()} == {"after": "a", "other": "b"}

"""docs/turns.md: its numbers are the code's, its examples run."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import pytest

from gateway.config import Engines, load
from gateway.config.values import Log
from gateway.engines.admission import STAY_SECONDS
from gateway.features.keys.words import NAMES
from gateway.features.operations.commands.status import queued_text, waiting_text
from gateway.prompts.speed import ReadingSpeed, Waits
from gateway.server.keys import FILE, KeyFile
from gateway.server.principal import MAX_CLIENTS
from gateway.wire.chat import TIERS
from tests.cli.commands import config, ctxgate
from tests.conftest import ROOT

PAGE = (ROOT / "docs/turns.md").read_text("utf-8")
WORDS = " ".join(PAGE.split())
(YAML,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(SHELL,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "said",
    [
        f"after `engines.flex_max_wait_seconds` ({Engines().flex_max_wait_seconds:.0f})",
        f"has waited for `engines.swap_after_seconds` ({Engines().swap_after_seconds:.0f})",
        f"({STAY_SECONDS[0]} to {STAY_SECONDS[1]:.0f} seconds)",
        f"(at most {MAX_CLIENTS} are distinguished",
        f"`log.usage_days` ({Log().usage_days:.0f})",
    ],
)
def test_numbers(said: str) -> None:
    assert said in WORDS


@pytest.mark.parametrize(
    ("name", "tiers", "aside", "waits_for", "held_by", "waited"),
    [
        ("large", (0, 1, 1), 0, "memory", ["small"], 7.2),
        ("small", (0, 0, 3), 1, "place", [], 11.6),
        ("remote", (0, 0, 1), 0, "place", [], 4.0),
    ],
)
def test_what_waits(
    name: str, tiers: tuple[int, ...], aside: int, waits_for: str, held_by: list[str], waited: float
) -> None:
    model = {
        "waiting": sum(tiers), "waiting_tiers": dict(zip(TIERS, tiers, strict=True)), "put_aside": aside,
        "waits_for": waits_for, "held_by": held_by, "waited": waited,
    }  # fmt: skip
    assert f"\n{name}: {waiting_text(model)}\n" in PAGE


def test_what_waits_for_a_prefix() -> None:
    speed = ReadingSpeed()
    speed.assume(0.005)
    told = Waits("prefix", 9.56, speed, time.monotonic() - 1.56).describe()
    assert told == "queued for=prefix reads=1912 left=8"
    assert f"\nsmall: {queued_text(told)}\n" in PAGE
    assert Waits("slot", 1.0, speed).describe() == "queued for=slot reads=200 left=1"


def test_every_limit_has_its_row() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE[PAGE.index("## Limits of keys") :], re.MULTILINE)
    assert [name.strip("`") for row in rows for name in row.split(", ")] == list(NAMES)


def test_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").touch()
    file = tmp_path / "config.yaml"
    file.write_text(YAML)
    assert load(file).models["small"].tiers == {"nightly": "flex"}


def test_the_commands(tmp_path: Path) -> None:
    state = tmp_path / "state"
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nstate_dir: {state}\n")
    for line in SHELL.splitlines():
        program, *args = shlex.split(line)
        done = ctxgate(*args, cwd=tmp_path)
        assert (program, done.returncode) == ("ctxgate", 0), done.stderr
    assert [(key.user, key.scopes) for key in KeyFile(state / FILE).read()] == [
        ("nightly", ("models",)),
        ("guest", ("models",)),
    ]
    listed = ctxgate("keys", "list", cwd=tmp_path)
    assert "tokens/day=2000000 parallel=8 tier=flex" in listed.stdout
    shown = json.loads(ctxgate("keys", "list", "--json", cwd=tmp_path).stdout)["keys"]
    assert shown[1]["limits"] == {"requests_per_minute": 20, "models": ["smollm2-135m-instruct"]}
    refused = ctxgate("keys", "add", "--scope", "rooms", "--limit", "parallel=1", cwd=tmp_path)
    assert (refused.returncode, "can't have the scope" in refused.stderr) == (2, True)

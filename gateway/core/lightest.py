"""The lightest configured chat model, for small tasks."""

from __future__ import annotations

from gateway.config import Config, Model
from gateway.engines.memory import files

LEAST_WINDOW = 2048
"""A model with a smaller window, in tokens, is chosen only if there is no larger one."""


def lightest(config: Config) -> Model:
    """The chat model whose weights on this machine are smallest; the active model if there are no weights.

    Reads the sizes of files, so it blocks a moment. A model without weights here may cost money, so it isn't chosen.
    """
    sizes = {name: size for name, model in config.models.items() if "chat" in model.roles and (size := _size(model))}
    windows = {name: config.models[name].context_window or LEAST_WINDOW for name in sizes}
    able = {name: size for name, size in sizes.items() if windows[name] >= LEAST_WINDOW} or sizes
    return config.models[min(able, key=able.__getitem__)] if able else config.resolve(None)


def _size(model: Model) -> int:
    if model.path is None:
        return 0
    try:
        return sum(file.stat().st_size for file in files(model.path))
    except OSError:
        return 0

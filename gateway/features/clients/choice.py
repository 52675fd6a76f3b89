"""Which model a client can work with: one that is here, with a window and tools that suffice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gateway.errors import ProviderInvalidModel, ProviderModelNotLoaded

if TYPE_CHECKING:
    from gateway.config import Config, Model
    from gateway.features.clients.contracts import Contract


class NoneHere(ProviderModelNotLoaded):
    """command: of ctxgate, which brings a model that suffices."""

    def __init__(self, message: str, command: tuple[str, ...]) -> None:
        super().__init__(f"{message}: `ctxgate {' '.join(command)}` brings one")
        self.command = command


def choose(config: Config, client: str, contract: Contract, name: str | None) -> Model:
    """The model named, else the active one if it suffices, else the first one that does.

    A window that the file doesn't tell passes for large enough if no other is known to be. Raises NoneHere without any,
    ProviderInvalidModel for a named one with which the client can't even begin.
    """
    if name is not None:
        return _named(config, client, contract, config.resolve(name, "chat"))
    models = [config.resolve(None), *config.models.values()]
    able = [one for one in models if lacks(contract, one) is None]
    here = [one for one in able if _is_here(one)]
    for found in (*(one for one in here if one.context_window is not None or not contract.window), *here):
        return found
    needs = f"no model here suffices for {client}, which needs {needed(contract)}"
    for one in able:
        if one.pull is not None:
            raise NoneHere(needs, ("pull", one.name))
    raise NoneHere(needs, ("add", *_shipped(contract)))


def lacks(contract: Contract, model: Model) -> str | None:
    """What the client misses in the model; None: nothing that is known."""
    if "chat" not in model.roles:
        return "it isn't for chats"
    if (contract.tools or contract.window) and model.runtime == "echo":
        return "it is no model"
    if contract.tools and model.capabilities and "tool_calling" not in model.capabilities:
        return "it doesn't call tools"
    if (model.context_window or contract.window) < contract.window:
        return f"its window has {model.context_window:,} tokens"
    return None


def needed(contract: Contract) -> str:
    window = f"a window of {contract.window:,} tokens" if contract.window else "no special one"
    return f"{window} and tool calls" if contract.tools else window


def _named(config: Config, client: str, contract: Contract, model: Model) -> Model:
    if not _is_here(model):
        if model.pull is not None:
            raise NoneHere(f"{model.name} isn't on this machine", ("pull", model.name))
        raise ProviderModelNotLoaded(f"{model.name} isn't on this machine: there is no file {model.path}")
    window = model.context_window
    if window is not None and window <= contract.first_request:
        others = [one.name for one in config.models.values() if lacks(contract, one) is None]
        cure = f"; choose {' or '.join(others)}" if others else ""
        raise ProviderInvalidModel(
            f"{model.name} has a window of {window:,} tokens, but {client}'s first request alone takes "
            f"{contract.first_request:,} or more{cure}"
        )
    return model


def _is_here(model: Model) -> bool:
    return model.path is None or model.path.exists()


def _shipped(contract: Contract) -> tuple[str, ...]:
    """What `ctxgate add` adds, from the default configuration."""
    from gateway.config import default

    for model in default.load().models.values():
        source = model.pull
        if lacks(contract, model) is None and model.context_window and source is not None and source.kind == "hub":
            quant = re.search(r"-(I?Q\d\w*)\.gguf$", source.file or "")
            window = ("--window", str(model.context_window)) if contract.window else ()
            return (f"hf:{source.name}{f':{quant[1]}' if quant else ''}", *window)
    return ("--help",)

"""What the section `ctx` of config.yaml says together with the rest of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gateway.config import Config
from gateway.features.ctx.projection import NAMING, is_component, projection
from gateway.features.ctx.settings import Ctx
from gateway.features.rooms.schemas import MAX_PROSE

if TYPE_CHECKING:
    from pydantic import SecretStr

    from gateway.config.source import Document, KeyPath


def settle(document: Document, config: Config) -> Config:
    """See `gateway.feature.Feature.settle`. Sets the `api_key` of models with a credential."""
    from gateway.config.explain import did_you_mean

    ctx, models = config.section(Ctx), dict(config.models)
    for name, settings in ctx.models.items():
        at: KeyPath = ("ctx", "models", name)
        if name not in models:
            cure = did_you_mean(name, models) or f"models: {', '.join(models)}"
            document.problem(at, f"ctx.models: there is no model {name}", cure, key=True)
        elif settings.credential is not None and models[name].api_key is None:
            models[name] = replace(models[name], api_key=_key(document, name, settings.credential))
    for name, agent in ctx.agents.items():
        if len(agent.instructions) > MAX_PROSE:
            at = ("ctx", "agents", name, "instructions")
            document.problem(at, f"{'.'.join(at)}: longer than {MAX_PROSE} characters", "shorten them")
        if not is_component(name):
            document.problem(("ctx", "agents", name), f"{name!r} can't be an agent of /ctx", f"use {NAMING}", key=True)
    config = replace(config, models=models)
    for misfit in projection(config).misfits if ctx.enabled else ():
        document.problem(misfit.at, misfit.message, misfit.cure)
    return config


def _key(document: Document, model: str, name: str) -> SecretStr | None:
    """None if there is none: requests for the model then fail as not configured."""
    from gateway.config.problems import BadValue
    from gateway.config.secret import credential

    try:
        return credential(name, document.environ)
    except BadValue as error:
        at = ("ctx", "models", model, "credential")
        document.note(at, f"{'.'.join(at)}: {error}; {error.cure}")
        return None

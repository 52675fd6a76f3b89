"""An agent's present settings, from its `.d` folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.errors import NotFound
from gateway.features.ctx.objects import ObjectName, Triple, name_at
from gateway.features.ctx.policy import parse_limits, parse_policy
from gateway.features.ctx.projection import is_component, is_model_id, projection
from gateway.features.ctx.settings import CtxTools
from gateway.features.ctx.tree import read_control, read_text


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """object: the model's, `provider/model`. model: that of config.yaml."""

    name: str
    object: str
    model: str
    instructions: str
    policy: CtxTools
    limits: Mapping[str, float]


def read_settings(triple: Triple, root: Path, config: Config) -> AgentSettings:
    """Reads an agent's files.

    Raises NotFound, BadControlFile, NotPermitted, and ProviderInvalidRequest for a model that doesn't chat.
    """
    if not triple.entry.is_file():
        raise NotFound(f"no object {triple.name}")
    named = read_text(triple.control / "model").strip()
    object = _object(root, config, named)
    if object is None:
        raise NotFound(f"{triple.name}: its model {named!r} is no model of this tree: correct {triple.name}.d/model")
    id = read_control(Triple.of(root, object)).id
    model = projection(config).objects.get(id)
    if model is None or config.models[model].role != "chat":
        raise ProviderInvalidRequest(f"{triple.name}: its model {named} can't be asked by an agent")
    return AgentSettings(
        name=triple.name.name,
        object=object.name,
        model=model,
        instructions=read_text(triple.control / "system.md").strip(),
        policy=parse_policy(read_text(triple.control / "policy")),
        limits=parse_limits(read_text(triple.control / "limits")),
    )


def _object(root: Path, config: Config, named: str) -> ObjectName | None:
    """The model that a name stands for: an alias or an object of the tree, or a model of config.yaml."""
    if (is_component(named) or is_model_id(named)) and (root / "model" / named).is_file():
        return name_at(root, root / "model" / named)
    found = projection(config).object_of(named)
    return ObjectName("model", found) if found is not None else None

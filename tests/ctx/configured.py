"""Configurations whose models are objects of a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.config import Config, Model
from gateway.features.ctx.settings import Ctx


def config(*names: str, **ctx: Any) -> Config:
    models = {name: Model(name=name, runtime="mlx", path=Path(f"/nowhere/{name}")) for name in names}
    return Config(
        source=Path("x"),
        active_model=names[0],
        models=models,
        sections={"ctx": Ctx(enabled=True, **{"compile": False, **ctx})},
    )

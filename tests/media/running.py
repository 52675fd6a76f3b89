"""A gateway before the scripted engines of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.features.media.settings import Media
from tests.gateway.running import FAST, NO_COMMENTS
from tests.provider.server import serve


@contextmanager
def in_front_of(*models: Model) -> Iterator[str]:
    """Its address. The first model is the active one."""
    config = Config(
        source=Path(__file__),
        active_model=models[0].name,
        models={model.name: model for model in models},
        server=Server(**NO_COMMENTS),
        sections={"media": Media()},
    )
    with serve(build(config), lifespan="on", http=FAST) as url:
        yield url

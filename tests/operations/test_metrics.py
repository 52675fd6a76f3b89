"""/metrics of a gateway with thousands of models."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.operations.metrics import TOGETHER, exposition
from gateway.observe.vitals import Vitals

MODELS = 2000


async def test_others_have_their_turn(tmp_path: Path) -> None:
    models = {name: Model(name=name, runtime="echo") for name in (f"m{at}" for at in range(MODELS))}
    config = Config(source=tmp_path / "config.yaml", active_model="m0", models=models, state_dir=tmp_path)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Gateway(config) as gateway:
        task = asyncio.create_task(other())
        text, _ = await exposition(gateway, None, Vitals(), "")
        task.cancel()
    assert turns >= 3 * (MODELS // TOGETHER)
    assert text.count(b'ctxgate_requests_in_flight{model="') == MODELS

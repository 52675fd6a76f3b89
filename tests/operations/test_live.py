"""`/-/events?follow=1`: what listeners cost a gateway with many models."""

from __future__ import annotations

import asyncio
from collections.abc import ItemsView
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.operations import live
from gateway.features.operations.live import Live
from gateway.services import Services
from tests.patience import PATIENCE

LISTENERS = 4
CHANGES = 3


class Walked(dict[str, Any]):
    """A state that counts who goes through it."""

    walks = 0

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self.walks += 1
        return super().items()


async def test_each_state_is_gone_through_once_however_many_listen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Walked] = []

    def snapshot(*_: object) -> Walked:
        made.append(Walked(number=len(made), since=len(made)))
        return made[-1]

    monkeypatch.setattr(live, "snapshot", snapshot)
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.001)
    monkeypatch.setattr(live, "STATUS_SECONDS", 0.05)

    async def listen(events: Live) -> None:
        changes = 0
        async for event in events.events("", follow=True):
            changes += b"event: status" in event
            if changes == CHANGES:
                return

    models = {"echo": Model(name="echo", runtime="echo")}
    config = Config(source=tmp_path / "config.yaml", active_model="echo", models=models, state_dir=tmp_path)
    async with Gateway(config) as gateway, asyncio.timeout(PATIENCE):
        services = SimpleNamespace(gateway=gateway, reloader=None, ending=asyncio.Event())
        events = Live(cast(Services, services))
        await asyncio.gather(*(listen(events) for _ in range(LISTENERS)))
    assert len(made) > CHANGES
    assert [each.walks for each in made] == [1] * len(made)

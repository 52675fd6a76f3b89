"""`/-/events?follow=1`: what listeners cost a gateway with many models; and its requests, also across a reload."""

from __future__ import annotations

import asyncio
from collections.abc import ItemsView
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gateway.config import Config, Model
from gateway.config.values import Log
from gateway.core import Gateway
from gateway.features.operations import live
from gateway.features.operations.live import Live
from gateway.features.operations.metrics import exposition
from gateway.observe.vitals import Vitals
from gateway.services import Services
from tests.gateway.double import endless
from tests.patience import PATIENCE
from tests.support.doubles import doubles, request

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


@pytest.mark.parametrize("change", ["setting", "server", "removed"])
async def test_a_running_answer_is_found_across_a_reload(tmp_path: Path, change: str) -> None:
    async with doubles((endless,)) as (double,):
        url = f"http://127.0.0.1:{double.address.port}"
        model = Model(name="m", runtime="openai", base_url=url)
        models = {"echo": Model(name="echo", runtime="echo"), "m": model}
        source, log = tmp_path / "config.yaml", Log(bodies=True)
        config = Config(source=source, active_model="echo", models=models, state_dir=tmp_path, log=log)
        async with Gateway(config) as gateway:
            with await gateway.chat(request(model="m", stream=True)) as run:
                await run.payloads()
                (before,) = live.in_flight(gateway)
                changed = {
                    "setting": {"m": replace(model, defaults={"seed": 1})},
                    "server": {"m": replace(model, base_url=f"{url}/other")},
                    "removed": {},
                }
                gateway.apply(replace(config, models={"echo": models["echo"], **changed[change]}))
                (after,) = live.in_flight(gateway)
                assert (after["key"], after["recorded"]) == (before["key"], True)
                for key in (before["key"], "chatcmpl-1"):
                    found = live.find(gateway, key)
                    assert found is not None
                    assert found[1] is run.answer.recording
                text, _ = await exposition(gateway, None, Vitals(), "")
                assert text.count(b'ctxgate_requests_in_flight{model="m"}') == 1
                assert b'ctxgate_requests_in_flight{model="m"} 1.0' in text
            assert live.find(gateway, before["key"]) is None

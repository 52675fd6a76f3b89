"""The events that are kept of background responses: bounded by bytes, and a share for each tenant."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.api.streaming import write_events
from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.responses import background
from gateway.features.responses.background import Background, Backgrounds
from gateway.server.principal import Principal
from gateway.services import Services
from tests.patience import PATIENCE


@pytest.fixture
def all() -> Backgrounds:
    models = {"echo": Model(name="echo", runtime="echo")}
    return Backgrounds(Services(Gateway(Config(source=Path(__file__), active_model="echo", models=models))))


def of(tenant: str) -> Principal:
    return Principal(tenant, "someone", frozenset(("models",)))


def events(number: int, size: int = 50) -> list[dict[str, Any]]:
    return [{"type": "x", "sequence_number": at, "delta": "x" * size} for at in range(number)]


async def finished(all: Backgrounds, id: str, tenant: str, made: list[dict[str, Any]]) -> Background:
    async def save() -> None:
        pass

    async def work(running: Background) -> None:
        running.add(made)

    one = all.start(id, of(tenant), None, save, work)
    async with asyncio.timeout(PATIENCE):
        assert b"".join([piece async for piece in one.events(-1)]) == write_events(made)
    return one


async def test_a_follower_gets_pieces(all: Backgrounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PIECE", 1_000)
    made = [*events(100), {"type": "x", "sequence_number": 100, "delta": "x" * 3_000}]
    one = await finished(all, "r", "a", made)
    for after in (-1, 0, 40, 99, 100, 2**31):
        pieces = [piece async for piece in one.events(after)]
        assert b"".join(pieces) == write_events(made[after + 1 :])
        assert [len(piece) for piece in pieces if len(piece) > 1_000] == [len(write_events(made[-1:]))] * (after < 100)
        assert len(pieces) <= 15, "each is nearly as large as it may be"


async def test_what_changes_later_is_told_as_it_was(all: Backgrounds) -> None:
    made = events(1)
    one = await finished(all, "r", "a", made)
    before = write_events(made)
    made[0]["delta"] = "other"
    assert [piece async for piece in one.events(-1)] == [before]


@pytest.mark.parametrize(("maximum", "bytes"), [(6, 2**30), (64, 12_000)])
async def test_a_tenant_keeps_what_others_dont_push_out(
    all: Backgrounds, monkeypatch: pytest.MonkeyPatch, maximum: int, bytes: int
) -> None:
    monkeypatch.setattr(background, "MAXIMUM", maximum)
    monkeypatch.setattr(background, "MAX_BYTES", bytes)
    size = (await finished(all, "b1", "b", events(20))).size
    assert size == len(write_events(events(20)))
    ids = [f"a{number}" for number in range(30)]
    for id in ids:
        await finished(all, id, "a", events(20))
    kept = [id for id in ids if all.get(id, of("a")) is not None]
    assert kept == ids[-len(kept) :], "the oldest go"
    assert 3 <= len(kept) <= 6
    assert all.get("b1", of("b")) is not None

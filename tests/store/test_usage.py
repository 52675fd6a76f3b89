"""Usage in both databases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, Model
from gateway.config.values import Log
from gateway.errors import ProviderInvalidRequest
from gateway.features.operations import usage_table as usage
from gateway.store import Store

DAYS = ("2026-11-21", "2026-11-22", "2026-11-23")


def row(day: str, key: str = "", model: str = "m", client: str = "curl", **sums: Any) -> dict[str, Any]:
    zero = dict.fromkeys(usage.SUMS, 0)
    return {"day": day, "key": key, "model": model, "client": client, **zero, **sums}


async def test_sums_add_up_and_are_reported_by_each_column(url: str) -> None:
    store = await Store.open(url)
    try:
        for _ in range(2):
            await usage.add(
                store,
                [
                    row(DAYS[0], requests=1, prompt_tokens=10, completion_tokens=5, seconds=0.5),
                    row(DAYS[1], key="k", requests=2, errors=1, prompt_tokens=3, cached_tokens=2, seconds=0.25),
                    row(DAYS[1], key="k", model="n", client="OpenAI/Python", requests=1, completion_tokens=2**40),
                    row(DAYS[1], model="ears", requests=1, sound_seconds=1.25, characters=3, pictures=2),
                ],
            )
        by_day = await usage.report(store, "day", DAYS[0])
        assert [(each["day"], each["requests"], each["seconds"]) for each in by_day] == [
            (DAYS[0], 2, 1.0),
            (DAYS[1], 8, 0.5),
        ]
        assert all(type(each[name]) is int for each in by_day for name in usage.SUMS if name not in usage.FRACTIONS)
        none = {"sound_seconds": 0.0, "characters": 0, "pictures": 0}
        _, by_key = await usage.report(store, "key", DAYS[1])
        expected = {"requests": 6, "errors": 2, "prompt_tokens": 6, "cached_tokens": 4, "completion_tokens": 2**41}
        assert by_key == {"key": "k", **expected, "seconds": 0.5, **none}
        ears, *others = await usage.report(store, "model", DAYS[0])
        assert [each["model"] for each in others] == ["m", "n"]
        assert {unit: ears[unit] for unit in none} == {"sound_seconds": 2.5, "characters": 6, "pictures": 4}
        assert [each["client"] for each in await usage.report(store, "client", DAYS[1])] == ["OpenAI/Python", "curl"]
        assert await usage.report(store, "day", DAYS[2]) == []
        assert await usage.tokens(store, DAYS[1], "k") == 6 + 2**41
        assert await usage.tokens(store, DAYS[2], "k") == 0
    finally:
        await store.aclose()


async def test_two_gateways_of_one_database_add_up(url: str) -> None:
    stores = [await Store.open(url) for _ in range(2)]
    try:
        adds = [usage.add(stores[at % 2], [row(DAYS[0], requests=1)]) for at in range(40)]
        await asyncio.gather(*adds)
        (found,) = await usage.report(stores[0], "day", DAYS[0])
        assert found["requests"] == 40
    finally:
        for store in stores:
            await store.aclose()


async def test_old_days_go(url: str) -> None:
    store = await Store.open(url)
    config = Config(
        source=Path(__file__), active_model="e", models={"e": Model(name="e", runtime="echo")}, log=Log(usage_days=2.0)
    )
    try:
        await usage.add(store, [row(day, requests=1) for day in DAYS])
        now = 1795478400.0 + 3600  # 2026-11-24, an hour after midnight
        assert usage.day_of(now) == "2026-11-24"
        assert await usage.prune(store, config, now) == 1
        assert [each["day"] for each in await usage.report(store, "day", DAYS[0])] == [*DAYS[1:]]
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("since", "day"), [("2026-11-02", "2026-11-02"), ("1d", "2026-11-24"), ("7d", "2026-11-18"), ("0d", "2026-11-24")]
)
def test_the_first_day(since: str, day: str) -> None:
    assert usage.first_day(since, 1795478400.0 + 3600) == day


@pytest.mark.parametrize("since", ["", "d", "yesterday", "2026-13-01", "-3d", "٣d", "x" * 1000])
def test_what_is_no_day(since: str) -> None:
    with pytest.raises(ProviderInvalidRequest, match="is not a day: write"):
        usage.first_day(since, 0.0)

"""Two tenants side by side: whatever one of them does, the other one finds room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.server.keys import FILE, KeyFile
from gateway.server.principal import Limits
from tests.gateway.double import Exchange
from tests.hostile.running import Gateway, Upstream, configuration, polite, started

Keys = dict[str, dict[str, str]]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """The header of each tenant; `one` may have one request at a time, `two` two a minute."""
    file = KeyFile(tmp_path / "state" / FILE)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    limits = {"one": Limits(parallel=1), "two": Limits(requests_per_minute=2), "greedy": None, "other": None}
    made = {
        tenant: file.add(tenant=tenant, user="x", scopes=["models"] if limits else ["models", "rooms"], limits=limits)[
            1
        ]
        for tenant, limits in limits.items()
    }
    return {tenant: {"Authorization": f"Bearer {key}"} for tenant, key in made.items()}


@pytest.fixture
def shared(keys: Keys, upstream: Upstream, tmp_path: Path, test_model: Path) -> Iterator[Gateway]:
    config = configuration(upstream, tmp_path, test_model)
    config["server"] = {"max_bodies_bytes": 8_000_000}
    with started(tmp_path, config) as gateway:
        yield gateway


async def silent(exchange: Exchange) -> None:
    """An engine that takes a request and says nothing."""
    await (polite(exchange) if not exchange.body else asyncio.Event().wait())


BACKGROUND = {"input": "Hi", "background": True}


def test_a_background_response_keeps_its_place(shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    upstream.script = silent
    first = shared.ask("POST", "/v1/responses", BACKGROUND, keys["one"])
    assert first.status == 200, first
    for _ in range(3):
        assert shared.ask("POST", "/v1/responses", BACKGROUND, keys["one"]).status == 429
    assert shared.ask("POST", f"/v1/responses/{first.json['id']}/cancel", {}, keys["one"]).status == 200
    upstream.script = polite
    assert shared.chat(headers=keys["one"]).status == 200
    assert shared.chat(headers=keys["one"]).status == 200


def test_background_responses_have_a_share(shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    upstream.script = silent
    asked = [shared.ask("POST", "/v1/responses", BACKGROUND, keys["greedy"]).status for _ in range(64)]
    assert set(asked) == {200, 429}
    assert shared.ask("POST", "/v1/responses", BACKGROUND, keys["other"]).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_is_a_request(stream: bool, shared: Gateway, keys: Keys, upstream: Upstream) -> None:
    upstream.script = polite
    answer = shared.ask("POST", "/v1/completions", {"prompt": ["a"] * 20, "stream": stream}, keys["two"])
    assert answer.status == 429 or b"requests a minute" in answer.body, answer
    one = shared.ask("POST", "/v1/completions", {"prompt": ["a"] * 3, "stream": stream}, keys["one"])
    assert one.status == 200, one
    assert shared.chat(headers=keys["one"]).status == 200

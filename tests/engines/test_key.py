"""Engines that other machines reach ask for a key."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.backends import load
from gateway.config import Model
from gateway.engines.engine import Engine
from gateway.engines.machine import this_machine
from gateway.errors import ProviderAuthentication
from tests.patience import PATIENCE

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.mark.parametrize("runtime", ["llama.cpp", "mlx"])
async def test_who_has_no_key_is_refused(runtime: str, test_model: Path, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue("mlx_model") if runtime == "mlx" else test_model
    plain = Model(name="m", runtime=runtime, path=path, context_window=1024)
    model = replace(plain, api_key=SecretStr("secret"))
    engine = Engine(model, machine=lambda: replace(this_machine(), key="secret"))
    try:
        address = await engine.requests.ensure()
        async with httpx.AsyncClient(base_url=str(address), timeout=PATIENCE) as client:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                answer = await client.post("/v1/chat/completions", json={**CHAT, "model": "m"}, headers=headers)
                assert answer.status_code == 401
            assert (await client.get("/health")).status_code == 200
        backend = load(runtime)(replace(plain, api_key=SecretStr("wrong")), address)
        with pytest.raises(ProviderAuthentication):
            await backend.post("completions", {})
        await backend.aclose()
        assert engine.requests.backend is not None
        await engine.requests.backend.about()
    finally:
        await engine.stop()

"""Engines that die in the middle of an answer, as `Gateway` sees them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import Config, Model
from gateway.core import Gateway, Route, Run
from gateway.engines import Engine
from gateway.engines.machine import this_machine
from gateway.engines.recipe import Machine
from gateway.errors import ProviderUnavailable
from gateway.wire.chat import ChatRequest
from tests.engines.conftest import WINDOW


def asked(**more: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"messages": [{"role": "user", "content": "hi"}], **more}).encode())


LONG: dict[str, Any] = {"stream": True, "max_tokens": 450}
# With some 50 kB a token no buffer on the way holds the whole answer: the engine can't have finished.
WIDE: dict[str, Any] = {**LONG, "ignore_eos": True, "logprobs": True, "top_logprobs": 600}


@asynccontextmanager
async def gateway_of(model: Model, machine: Callable[[], Machine]) -> AsyncIterator[tuple[Gateway, Route]]:
    config = Config(source=Path("config.yaml"), active_model=model.name, models={model.name: model})
    async with Gateway(config) as gateway:
        route = gateway.route(None)
        assert route.engine is not None
        route.engine.launcher.machine = machine
        yield gateway, route


async def whole(gateway: Gateway) -> bytes:
    with await gateway.chat(asked(max_tokens=3)) as run:
        return await run.whole()


async def dies_in_its_answer(gateway: Gateway, route: Route, long: dict[str, Any]) -> None:
    engine = route.engine
    assert engine is not None
    error: ProviderUnavailable | None = None
    while error is None:
        with await gateway.chat(asked(**long)) as run:
            assert await run.payloads()
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            try:
                await _rest(run)  # on a slow machine all of it may have been written before: then once more
            except ProviderUnavailable as caught:
                error = caught
        assert b"chat.completion" in await _retried(gateway)
    assert error.status == 502


async def _rest(run: Run) -> list[bytes]:
    chunks: list[bytes] = []
    while payloads := await run.payloads():
        chunks += payloads
    return chunks


async def _retried(gateway: Gateway) -> bytes:
    """A client's next request. The gateway may not know of the death yet: one refusal is fair."""
    try:
        return await whole(gateway)
    except ProviderUnavailable:
        return await whole(gateway)


@pytest.mark.parametrize("machine", ["xllamacpp", "on_path"])
async def test_llama_cpp(model: Model, machine: str, request: pytest.FixtureRequest) -> None:
    async with gateway_of(model, request.getfixturevalue(machine)) as (gateway, route):
        await whole(gateway)
        await dies_in_its_answer(gateway, route, WIDE)


async def test_mlx_whose_answers_have_no_length(mlx_python: str, mlx_model: Path) -> None:
    model = Model(name="tiny", runtime="mlx", path=mlx_model, context_window=WINDOW)

    def machine() -> Machine:
        return replace(this_machine(), python=mlx_python, has=lambda module: True)

    async with gateway_of(model, machine) as (gateway, route):
        await whole(gateway)
        end: int = json.loads((mlx_model / "config.json").read_bytes())["eos_token_id"]
        await dies_in_its_answer(
            gateway, route, {**LONG, "logit_bias": {str(end): -1000}, "logprobs": True, "top_logprobs": 11}
        )


async def test_the_users_own_server_ends_and_ours_takes_over(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    users_own = Engine(model, machine=xllamacpp)
    address = await users_own.requests.ensure()
    try:
        adr = replace(model, port=address.port, base_url=str(address))
        async with gateway_of(adr, xllamacpp) as (gateway, route):
            assert b"chat.completion" in await whole(gateway)
            assert route.engine is not None
            assert route.engine.pid is None
            await users_own.stop()
            assert b"chat.completion" in await _retried(gateway)
            assert route.engine.pid is not None
            assert route.engine.address == address
    finally:
        await users_own.stop()


async def test_closing_the_gateway_ends_what_it_started(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    async with gateway_of(model, xllamacpp) as (gateway, route):
        runs = await asyncio.gather(*(whole(gateway) for _ in range(8)))
        assert len(runs) == 8
        assert route.engine is not None
        pid = route.engine.pid
        assert pid is not None
    assert route.engine.state == "stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

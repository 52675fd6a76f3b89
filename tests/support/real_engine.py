"""A gateway with the real engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.api.entry import API
from gateway.app import build
from gateway.config import Config, Model
from gateway.engines import Engine
from tests.gateway.client import Client, chat
from tests.patience import PATIENCE
from tests.provider.server import serve

needs_xllamacpp = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")


@asynccontextmanager
async def real(model: Path, http: str) -> AsyncIterator[tuple[int, Engine]]:
    """The port of a gateway with the real engine behind it, started by a first request."""
    tiny = Model(
        name="tiny", runtime="llama.cpp", path=model, context_window=1024, tool_call_format="pythonic"
    )  # fmt: skip
    app: API = build(Config(source=Path("config.yaml"), active_model="tiny", models={"tiny": tiny}))
    engine = app.chat.gateway.routes["tiny"].engine
    assert engine is not None
    async with asyncio.timeout(PATIENCE):
        with ExitStack() as stack:
            url = stack.enter_context(serve(app, lifespan="on", http=http))
            try:
                yield int(url.rpartition(":")[2]), engine
            finally:
                await asyncio.to_thread(stack.close)


async def ask(port: int, **fields: object) -> tuple[int, str]:
    async with await Client.connect(port) as client:
        answer = await client.ask(chat("Say hello.", **fields))
        return answer.status, answer.json["object"] if answer.status == 200 else answer.error["message"]

"""`ctxgate replay` of what an engine shouldn't have sent, and of what a person shouldn't have typed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from gateway.app import build
from gateway.config import Config, Model
from gateway.config.values import Log
from tests.cli.commands import ctxgate
from tests.gateway.double import Double, Exchange, chunk
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve

TORN = '{"id": "c", "choices": [{"index": 0, "delta": {"content": "b'
LIST = json.dumps({"choices": [{"index": 0, "delta": {"content": ["b"]}}]})


@pytest.mark.parametrize("odd", [TORN, LIST], ids=["torn", "list"])
async def test_a_payload_that_is_no_answer_is_shown_as_it_is(odd: str, tmp_path: Path) -> None:
    async def engine(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("a"), odd.encode(), chunk("c"), chunk(reason="stop"))
        await exchange.end()

    async with Double(engine).serve() as upstream:
        model = Model(name="m", runtime="openai", base_url=f"http://127.0.0.1:{upstream.address.port}")
        config = Config(
            source=tmp_path / "config.yaml",
            active_model="m",
            models={"m": model},
            state_dir=tmp_path / "state",
            log=Log(bodies=True),
        )
        with serve(build(config), lifespan="on", http=FAST) as url:
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
                await client.post("/v1/chat/completions", json=body)
            shown, missing, none = await asyncio.to_thread(
                lambda: [
                    ctxgate("replay", *words, cwd=tmp_path)
                    for words in (("1", "--url", url), ("../status", "--url", url), ("1", "--url", "http://["))
                ]
            )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"  no chat's answer: {odd}" in shown.stdout.splitlines()
    assert "Traceback" not in missing.stderr
    assert missing.returncode in (1, 2)
    assert (none.returncode, "Invalid value for '--url'" in none.stderr) == (2, True)

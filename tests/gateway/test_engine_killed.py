"""kill -9 of the real engine, with answers in flight."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from gateway.engines import Engine
from tests.engines.conftest import gone, stand_still
from tests.gateway.client import Client, chat
from tests.gateway.running import FAST
from tests.support.real_engine import ask, needs_xllamacpp, real

pytestmark = needs_xllamacpp

LONG = {"temperature": 0, "max_tokens": 900, "ignore_eos": True}
SHORT = {"temperature": 0, "max_tokens": 4}


def kill(engine: Engine) -> int:
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_in_mid_stream_it_is_an_error_frame_then_done_and_the_next_request_works(
    test_model: Path, http: str
) -> None:
    async with real(test_model, http) as (port, engine), await Client.connect(port) as client:
        killed = set()
        for _ in range(3):
            # So much that the engine can't write it all before it is read.
            await client.post(chat("Tell me a story.", stream=True, logprobs=True, top_logprobs=600, **LONG))
            _, status, _ = await client.head()
            assert status == 200
            seen = b""
            while b"data: " not in seen:  # before it, comments tell of the start
                seen += await client.part()
            killed.add(kill(engine))
            seen += b"".join([part async for part in client.parts()])
            *_, frame, done, _ = seen.split(b"\n\n")
            assert done == b"data: [DONE]"
            error = json.loads(frame.removeprefix(b"data: "))["error"]
            assert error["category"] == "provider_unavailable"
            assert "went away in the middle of its answer" in error["message"]
            # On the same connection, at once: an engine is started again.
            answer = await client.ask(chat("Say hello.", **SHORT))
            assert answer.status == 200, answer.body
            assert engine.pid not in killed
        assert len(killed) == 3


@pytest.mark.parametrize("kills", [1, 2])
async def test_a_whole_answer_that_loses_its_engine_is_asked_once_more(test_model: Path, http: str, kills: int) -> None:
    async with real(test_model, http) as (port, engine):
        assert (await ask(port, **SHORT))[0] == 200
        pid, first = engine.pid, engine.launcher.starts
        assert pid is not None
        stand_still(pid)

        def stands_still(engine: Engine) -> None:
            if engine.state == "ready" and engine.launcher.starts < first + kills and engine.pid is not None:
                stand_still(engine.pid)

        engine.on_change(stands_still)  # before any request is sent to it
        asking = [asyncio.create_task(ask(port, **{**LONG, "max_tokens": 500})) for _ in range(3)]
        for start in range(first, first + kills):
            # An engine that stands still doesn't tell what it was asked; its connections are seen from outside.
            while engine.launcher.starts < start or engine.in_flight < 3 or connections_to(engine) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            kill(engine)
        answers = sorted(await asyncio.gather(*asking))
        assert [status for status, _ in answers] == [200 if kills == 1 else 502] * 3
        assert all("went away" in message for status, message in answers if status == 502)
        assert await asyncio.gather(*(ask(port, **SHORT) for _ in range(4))) == [(200, "chat.completion")] * 4


def connections_to(engine: Engine) -> int:
    """TCP connections of this machine that stand, to the engine."""
    address = engine.address
    if address is None:
        return 0
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[2].endswith(f":{address.port:04X}") and line.split()[3] == "01" for line in lines)


async def test_killed_while_idle_nobody_notices(test_model: Path) -> None:
    async with real(test_model, FAST) as (port, engine):
        for _ in range(5):
            assert await ask(port, **SHORT) == (200, "chat.completion")
            assert await asyncio.to_thread(gone, kill(engine))

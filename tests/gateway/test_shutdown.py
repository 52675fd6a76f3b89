"""`ctxgate serve` as a process: SIGTERM with answers in flight."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.harness import proc
from benchmarks.harness.stacks import STACKS, Place
from gateway.api.entry import API
from gateway.app import GRACE_SECONDS
from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.server.asgi import Message
from gateway.services import Services
from tests.gateway.client import Client, chat
from tests.gateway.double import Double, Exchange, Script, chunk, completion, endless
from tests.gateway.running import NO_COMMENTS
from tests.patience import PATIENCE
from tests.ports import free_port


@asynccontextmanager
async def process(script: Script, folder: Path) -> AsyncIterator[tuple[proc.Server, Double]]:
    stack = STACKS["ctxgate"]
    async with asyncio.timeout(PATIENCE), Double(script).serve() as double:
        place = Place(double.address.port, free_port(), folder, folder)
        command = stack.command(place)
        with (folder / "config.yaml").open("a") as file:
            file.write(f"server: {json.dumps(NO_COMMENTS)}\n")
        server = proc.Server.start(command, place.port, folder / "log", env=stack.env, cwd=folder)
        try:
            await asyncio.to_thread(server.wait_ready, stack.ready, PATIENCE)
            yield server, double
        finally:
            await asyncio.to_thread(server.stop)


async def refused(port: int) -> None:
    """Waits until the port takes no connection."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_answers_in_flight_end_and_then_the_process_does(tmp_path: Path, how: signal.Signals) -> None:
    stopped = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        if exchange.json.get("stream"):
            await exchange.start()
            await exchange.event(chunk("one"))
            await stopped.wait()
            await exchange.event(chunk("two"), chunk(reason="stop"))
            await exchange.end()
        else:
            await stopped.wait()
            await exchange.whole(completion("all"))

    async with process(script, tmp_path) as (server, double), AsyncExitStack() as stack:
        stream, whole, idle = [await stack.enter_async_context(await Client.connect(server.port)) for _ in range(3)]
        await stream.post(chat(stream=True))
        await double.asked()
        await whole.post(chat())
        await double.asked(2)
        server.process.send_signal(how)
        assert await idle.closed()
        await refused(server.port)
        stopped.set()
        events = (await stream.answer()).events
        assert (len(events), events[-1]) == (4, b"[DONE]")
        assert (await whole.answer()).json == completion("all")
        assert await stream.closed()
        assert await whole.closed()
        code = await asyncio.to_thread(server.process.wait, PATIENCE)
        assert code in (0, -how, 128 + how), server.last_words()
        assert b"Traceback" not in server.log.read_bytes()


async def test_an_answer_without_end_is_cut_after_the_grace(tmp_path: Path) -> None:
    async with process(endless, tmp_path) as (server, double), await Client.connect(server.port) as client:
        await client.post(chat(stream=True))
        asked = await double.asked()
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await asked.gone
            rest = await client.reader.read()
        assert b"Hello" in rest
        await asyncio.to_thread(server.process.wait, PATIENCE)
        assert time.monotonic() - begun > GRACE_SECONDS - 1


class Stubborn:
    """A shared object that can't be closed."""

    def __init__(self, closed: list[Stubborn]) -> None:
        self._closed = closed

    async def aclose(self) -> None:
        self._closed.append(self)
        raise OSError("it won't")


async def test_every_shared_object_is_closed_even_if_closing_fails() -> None:
    closed: list[Stubborn] = []
    models = {"echo": Model(name="echo", runtime="echo")}
    gateway = Gateway(Config(source=Path("config.yaml"), active_model="echo", models=models))
    services = Services(gateway)
    app = API(services)
    told: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue()
    async with asyncio.timeout(PATIENCE):
        lifespan = asyncio.create_task(app({"type": "lifespan"}, told.get, sent.put))
        await told.put({"type": "lifespan.startup"})
        assert (await sent.get())["type"] == "lifespan.startup.complete"
        for _ in range(2):
            services.shared(lambda services: Stubborn(closed))
        await told.put({"type": "lifespan.shutdown"})
        with pytest.raises(OSError, match="it won't"):
            await lifespan
        assert (await sent.get())["type"] == "lifespan.shutdown.failed"
    assert len(closed) == 2

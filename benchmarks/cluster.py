"""What a cluster costs a request, and what more engines bring.

    python -m benchmarks.cluster              # a minute; --routing for the simulation alone, in seconds

Routing: `Replicas`' choice among 10, 100 and 1,000 engines that 10,000 conversations use, hashing of the messages
included. Added time: a whole answer of a double through a gateway that knows its engine from the cluster, against a
gateway that knows it from config.yaml, in alternating blocks; both ask the same double by the same code. Throughput:
doubles that answer two requests at a time, each in 100 ms without any work, behind 1, 2 and 3 engines of the cluster.
The doubles stand in the cluster's table as the placer would have written them; PostgreSQL is real, Ray isn't needed.
Goals: below 50 µs a request and linear or better; at most 5 % more time; at least 0.9 of the ideal throughput. Exit
code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvicorn
import yaml
from msgspec import Raw

from benchmarks.harness import proc
from gateway.backends.base import Address
from gateway.backends.choice import BalancedServer, ServerChoice
from gateway.backends.openai import OpenAIBackend
from gateway.config import Config, Model, load
from gateway.features.cluster import tables
from gateway.features.cluster.backend import ClusterBackend, Engine, Shared
from gateway.features.cluster.values import EngineRow, fingerprint
from tests.store.postgresql import start

WEIGHTS = Path(__file__).parents[1] / "_models/test/ctxgate-test-tools.gguf"
CONVERSATIONS = 10_000
MESSAGES = 10
REQUESTS = 20_000
BLOCKS, BLOCK = 24, 400
PACE_SECONDS, SLOTS = 0.1, 2
LIMIT_US, LIMIT_ADDED, LIMIT_THROUGHPUT = 50.0, 0.05, 0.9
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "chat",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


Talk = tuple[int, list[dict[str, str]], BalancedServer | None]
"""Who talks, what was said, and the server that has read it."""


# Routing


def routing(engines: int) -> tuple[float, float]:
    """µs of the processor for a choice, and the part of the turns that met the engine of the turn before."""
    from pydantic import SecretStr

    model = Model(name="m", runtime="openai")
    config = Config(source=Path("config.yaml"), active_model="m", models={"m": model})
    shared = Shared(lambda: config, lambda urgent: None)
    shared.key = SecretStr("k" * 43)
    backend = ClusterBackend(Model(name="m", runtime="openai"), shared)
    choice: ServerChoice[BalancedServer] = ServerChoice()
    for number in range(engines):
        row = EngineRow(str(number), "m", "n", "h", f"http://127.0.0.1:{number + 1}", "", 4, "ready")
        choice.add(Engine(row, OpenAIBackend(Model(name="m", runtime="openai"), Address.parse(row.url))))
    chance = random.Random(1)
    system = {"role": "system", "content": "You are a helpful assistant. " * 10}
    talks: list[tuple[int, list[dict[str, str]], BalancedServer | None]] = [
        (who, [system], None) for who in range(CONVERSATIONS)
    ]
    in_flight: list[BalancedServer] = []
    spent, met, turns = 0.0, 0, 0
    for _ in range(REQUESTS):
        at = chance.randrange(CONVERSATIONS)
        who, messages, home = talks[at]
        if len(messages) > MESSAGES:
            messages, home = [system], None
        messages = [*messages, {"role": "user", "content": f"I am {who}, and ask {len(messages)}. " * 4}]
        fields = {"messages": Raw(msgspec.json.encode(messages))}
        began = time.thread_time()
        prefixes = backend.prefixes(fields)
        server = choice.pick(prefixes)
        assert server is not None
        choice.change(server, 1)
        choice.remember(server, prefixes)
        spent += time.thread_time() - began
        if home is not None:
            turns += 1
            met += server is home
        talks[at] = (who, [*messages, {"role": "assistant", "content": "Yes."}], server)
        in_flight.append(server)
        if len(in_flight) > engines:
            ended = in_flight.pop(chance.randrange(len(in_flight)))
            began = time.thread_time()
            choice.change(ended, -1)
            spent += time.thread_time() - began
    return spent / REQUESTS * 1e6, met / max(1, turns)


# A double: an engine that costs no processor


class Double:
    """Answers `/v1/chat/completions` after `pace` seconds, SLOTS at a time."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._places = asyncio.Semaphore(SLOTS if pace else 1000)
        self._body = json.dumps(ANSWER).encode()

    async def __call__(self, scope: dict[str, object], receive: object, send: object) -> None:
        if scope["type"] != "http":
            return
        more = True
        while more:
            more = (await receive())["more_body"] if callable(receive) else False
        body = self._body if scope["path"] == "/v1/chat/completions" else b'{"data": [{"id": "chat"}]}'
        if scope["path"] == "/v1/chat/completions":
            async with self._places:
                await asyncio.sleep(self._pace)
        assert callable(send)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def double(pace: float) -> AsyncIterator[str]:
    port = proc.free_port()
    app: Any = Double(pace)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


# Gateways


@asynccontextmanager
async def gateway(folder: Path, name: str, store: str | None, urls: Sequence[str]) -> AsyncIterator[tuple[str, int]]:
    """Address and process id of a gateway of the cluster with these engines; without a store, one with one server."""
    port = proc.free_port()
    model: dict[str, object] = {"runtime": "llama-cpp-python", "tool_call_format": "native_json"}
    config: dict[str, object] = {"active_model": "chat", "state_dir": str(folder / name), "server": {"port": port}}
    if store is None:
        model["base_url"] = urls[0]
    else:
        model |= {"path": str(WEIGHTS), "replicas": {"min": 0, "max": len(urls)}}
        # Nobody listens there: the table is ours alone.
        config |= {"store": store, "cluster": {"ray": f"127.0.0.1:{proc.free_port()}"}}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**config, "models": {"chat": model}}))
    if store is not None:
        launch = fingerprint(load(file).models["chat"])
        rows = [EngineRow(f"{at}", "chat", "n", "h", url, launch, SLOTS, "ready") for at, url in enumerate(urls)]
        await asyncio.to_thread(_publish, store, rows)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--config", str(file), stderr=asyncio.subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient() as client:
            while True:
                try:
                    if (await ask(client, url)) == 200:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        await process.wait()


async def _looked_for_ray(url: str) -> None:
    """Returns once the process beside a gateway of the cluster has loaded Ray, which takes all of a core, and found
    nobody at its address."""
    async with httpx.AsyncClient() as client:
        while (await client.get(f"{url}/-/status")).json()["cluster"]["ray"]:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.1)


def _publish(store: str, rows: list[EngineRow]) -> None:
    from sqlalchemy.engine import make_url

    from gateway.store.migrate import upgrade
    from gateway.store.store import _postgresql

    engine = _postgresql(make_url(store))
    upgrade(engine)
    with engine.begin() as connection:
        tables.replace_engines(connection, rows)
    engine.dispose()


async def ask(client: httpx.AsyncClient, url: str) -> int:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
    return (await client.post(f"{url}/v1/chat/completions", json=body, timeout=60)).status_code


async def block(url: str, count: int) -> float:
    """Median seconds of a request, one after another on one connection."""
    seconds = []
    async with httpx.AsyncClient() as client:
        for _ in range(count + 5):
            began = time.perf_counter()
            assert await ask(client, url) == 200
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[5:])


async def added(folder: Path, store: str) -> list[tuple[float, float]]:
    """Of the gateway alone, and of that in the cluster: median ms of a request, and ms of its processor."""
    async with (
        double(0) as url,
        gateway(folder, "alone", None, [url]) as alone,
        gateway(folder, "together", store, [url]) as together,
    ):
        await _looked_for_ray(together[0])
        medians: dict[int, list[float]] = {alone[1]: [], together[1]: []}
        spent = dict.fromkeys(medians, 0.0)
        for _ in range(BLOCKS):
            for address, pid in (alone, together):
                before = proc.cpu_seconds([pid])
                medians[pid].append(await block(address, BLOCK))
                spent[pid] += proc.cpu_seconds([pid]) - before
        count = BLOCKS * (BLOCK + 5)
        return [(statistics.median(medians[pid]) * 1e3, spent[pid] / count * 1e3) for pid in medians]


async def throughput(folder: Path, store: str, engines: int, seconds: float = 6.0) -> float:
    """Requests a second."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(double(PACE_SECONDS)) for _ in range(engines)]
        url, _ = await stack.enter_async_context(gateway(folder, f"of{engines}", store, urls))
        done, end = 0, time.monotonic() + seconds
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=64)) as client:

            async def worker() -> None:
                nonlocal done
                while time.monotonic() < end:
                    assert await ask(client, url) == 200
                    done += 1

            began = time.monotonic()
            await asyncio.gather(*(worker() for _ in range(engines * SLOTS * 2)))
            return done / (time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routing", action="store_true", help="the simulation alone")
    arguments = parser.parse_args()
    print(proc.machine())
    missed = []
    costs = {}
    print("\n| engines | µs of CPU a request | turns that met their engine |\n|---|---|---|")
    for engines in (10, 100, 1000):
        costs[engines], met = routing(engines)
        print(f"| {engines:,} | {costs[engines]:.1f} | {met:.1%} |", flush=True)
    missed += [f"routing: {cost:.0f} µs" for cost in costs.values() if cost > LIMIT_US]
    if not arguments.routing:
        with start() as server, tempfile.TemporaryDirectory() as folder:
            (alone, alone_cpu), (together, cpu) = asyncio.run(added(Path(folder), server.database()))
            share = together / alone - 1
            print(f"\na request: {alone:.3f} ms alone, {together:.3f} ms in the cluster ({share:+.1%})")
            print(f"the gateway's processor: {alone_cpu:.3f} ms alone, {cpu:.3f} ms in the cluster")
            missed += [f"added time {share:.1%}"] if share > LIMIT_ADDED else []
            print("\n| engines | requests a second | of the ideal |\n|---|---|---|")
            for engines in (1, 2, 3):
                rate = asyncio.run(throughput(Path(folder), server.database(), engines))
                share = rate * PACE_SECONDS / (engines * SLOTS)
                print(f"| {engines} | {rate:.1f} | {share:.0%} |", flush=True)
                missed += [f"throughput at {engines}: {share:.0%}"] if share < LIMIT_THROUGHPUT else []
    print(f"\nmissed: {'; '.join(missed)}" if missed else "\nall goals met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

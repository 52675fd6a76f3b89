"""How long a swap of models takes, how soon a killed engine is back, and how soon a slot is free when a client leaves.

    python benchmarks/engines.py                # two minutes; --rounds 5 for a quick look

The gateway runs as `ctxgate serve`, with the embedded llama.cpp and the project's test model, which loads in a tenth of
a second: what is left of a swap is what the gateway and the process cost, not the reading of weights. Cancelling is
measured twice, with the same requests: from a client of the engine itself, and from one of the gateway's, until
`/slots` of the engine says that nobody is served. Exit code 1 when the gateway adds more than 100 ms to that.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, too

from benchmarks.harness import proc, report

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MS = 100.0
WITHIN = 30.0
LONG = {"max_tokens": 900, "ignore_eos": True}
MODEL = ROOT / "_models/test/ctxgate-test-tools.gguf"


@dataclass
class Place:
    """A running gateway. engine_port: of the model `kept`; `one` and `two` don't fit together."""

    port: int
    engine_port: int
    state_dir: Path
    http: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.AsyncClient(timeout=WITHIN, trust_env=False)

    async def chat(self, model: str, **more: object) -> None:
        said = [{"role": "user", "content": "Say hello."}]
        body = {"model": model, "messages": said, "max_tokens": 1, **more}
        (await self.http.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body)).raise_for_status()

    def pid(self, model: str) -> int:
        """Of the model's engine, as the gateway has written it down."""
        entries = [json.loads(path.read_bytes()) for path in (self.state_dir / "engines").glob("*.json")]
        return max(int(entry["pid"]) for entry in entries if entry["model"] == model)

    async def busy(self) -> bool:
        slots = (await self.http.get(f"http://127.0.0.1:{self.engine_port}/slots")).json()
        return any(slot["is_processing"] for slot in slots)


def config(folder: Path, engine_port: int) -> dict[str, object]:
    model = {"runtime": "llama.cpp", "path": str(MODEL), "context_window": 1024, "threads": 1}
    return {
        "active_model": "kept",
        "models": {
            "kept": {**model, "port": engine_port, "memory": "60 MB", "pinned": True},
            "one": {**model, "memory": "60 MB"},
            "two": {**model, "memory": "60 MB"},
        },
        "engines": {"memory_budget": "150 MB"},
        "state_dir": str(folder / "state"),
    }


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


async def swaps(place: Place, rounds: int) -> Mapping[str, list[float]]:
    """Seconds of a request whose model is loaded, and of one whose model takes another's place."""
    await place.chat("kept")  # takes its part of the budget
    await place.chat("one")
    loaded, swapped = [], []
    for _ in range(rounds):
        for model in ("two", "one"):
            swapped.append(await timed(lambda model=model: place.chat(model)))  # type: ignore[misc]
            loaded.append(await timed(lambda model=model: place.chat(model)))  # type: ignore[misc]
    return {"request, model loaded": loaded, "request that swaps models": swapped}


async def kills(place: Place, rounds: int) -> Mapping[str, list[float]]:
    """Seconds from kill -9 of the engine: to an answer where it was idle, to the error frame and to the next answer
    where it was in the middle of a stream, and to the replayed answer where nothing had been told."""
    idle, frames, after, replayed = [], [], [], []
    for _ in range(rounds):
        await place.chat("kept")
        os.kill(place.pid("kept"), signal.SIGKILL)
        idle.append(await timed(lambda: place.chat("kept")))

        reader, writer = await ask(place.port, stream=True)
        async with asyncio.timeout(WITHIN):
            await reader.readuntil(b"data: ")
            os.kill(place.pid("kept"), signal.SIGKILL)
            began = time.perf_counter()
            await reader.readuntil(b"[DONE]")
        frames.append(time.perf_counter() - began)
        writer.transport.abort()
        await place.chat("kept")
        after.append(time.perf_counter() - began)

        asking = asyncio.create_task(place.chat("kept", **LONG))
        async with asyncio.timeout(WITHIN):
            while not await place.busy():
                pass
        os.kill(place.pid("kept"), signal.SIGKILL)
        replayed.append(await timed(lambda asking=asking: asking))  # type: ignore[misc]
    return {
        "killed while idle, to the next answer": idle,
        "killed in a stream, to its error frame": frames,
        "killed in a stream, to the next answer": after,
        "killed before a whole answer, to that answer (900 tokens)": replayed,
    }


async def ask(port: int, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = [{"role": "user", "content": "Say hello."}]
    body = json.dumps({"model": "kept", "messages": said, "stream": stream, **LONG}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
    return reader, writer


async def leaves(place: Place, port: int, *, stream: bool) -> float:
    """Seconds from a client's leaving, in the middle of its answer, until the engine's slot is free."""
    reader, writer = await ask(port, stream=stream)
    async with asyncio.timeout(WITHIN):
        if stream:
            await reader.readuntil(b"data: ")
        while not await place.busy():
            pass
        writer.transport.abort()
        began = time.perf_counter()
        while await place.busy():
            pass
    return time.perf_counter() - began


async def leaving(place: Place, clients: int) -> Mapping[str, list[float]]:
    await place.chat("kept")
    found: dict[str, list[float]] = {}
    for _ in range(clients):
        for kind, stream in (("streamed", True), ("whole", False)):
            for where, port in (("of the engine", place.engine_port), ("of the gateway", place.port)):
                found.setdefault(f"{kind} answer, client {where} leaves", []).append(
                    await leaves(place, port, stream=stream)
                )
    return found


def table(found: Mapping[str, Sequence[float]]) -> str:
    lines = ["| what | number | median, ms | slowest, ms |", "| --- | --: | --: | --: |"]
    for title, took in found.items():
        ms = [second * 1000 for second in took]
        lines.append(f"| {title} | {len(ms)} | {statistics.median(ms):.1f} | {max(ms):.1f} |")
    return "\n".join(lines)


def goals(found: Mapping[str, Sequence[float]]) -> list[report.Goal]:
    """What the gateway adds to the engine's own latency."""
    added = []
    for kind in ("streamed", "whole"):
        own, ours = (
            statistics.median(found[f"{kind} answer, client of the {where} leaves"]) for where in ("engine", "gateway")
        )
        added.append(
            report.Goal(f"{kind} answers: added until the slot is free, ms", (ours - own) * 1000, "<=", LIMIT_MS)
        )
    return added


async def measure(rounds: int, clients: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = Place(proc.free_port(), proc.free_port(), folder / "state")
        file = folder / "config.yaml"
        file.write_text(yaml.safe_dump(config(folder, place.engine_port)))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", str(place.port)]
        server = proc.Server.start(command, place.port, folder / "log", env={"PYTHONPATH": str(ROOT)}, cwd=folder)
        try:
            await asyncio.to_thread(server.wait_ready, "/health", WITHIN)
            return {
                **await swaps(place, rounds),
                **await kills(place, rounds),
                **await leaving(place, clients),
            }
        finally:
            await place.http.aclose()
            await asyncio.to_thread(server.stop)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="swaps and kills of each kind (default: 20)")
    parser.add_argument("--clients", type=int, default=25, help="that leave, of each kind (default: 25)")
    args = parser.parse_args(arguments)
    found = asyncio.run(measure(args.rounds, args.clients))
    print(f"{proc.machine()}; {time.strftime('%Y-%m-%d')}.\n\n{table(found)}\n")
    verdicts = goals(found)
    print("\n".join(map(str, verdicts)))
    return 1 if any(goal.met is False for goal in verdicts) else 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    with suppress(KeyboardInterrupt):
        sys.exit(main())

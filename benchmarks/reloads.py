"""What a change of config.yaml costs: its delay, and the requests that it disturbs.

    python benchmarks/reloads.py                # 50 reloads under load, a minute

`ctxgate serve` runs two real engines with the test model of this repository. Each reload changes the settings of the
first (its engine must go on), the launch of the second (its engine must be drained and replaced), and adds or removes a
third. Clients ask both all the time, whole and streamed. A third of the reloads is told by a file that is renamed into
its place, a third by SIGHUP, a third by POST /-/reload. Exit code 1 when a request failed, an answer was cut, or the
first engine did not keep its process.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, too

from benchmarks.harness import proc
from benchmarks.harness.stacks import REPOSITORY

MODEL = REPOSITORY / "_models/test/ctxgate-test-tools.gguf"
CLIENTS = 4
APPLIED_WITHIN = 30.0
QUESTION = "What is the weather in Paris in celsius?"


@dataclass
class Load:
    """What clients got. failed: what went wrong, in words."""

    answered: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    over: bool = False


@dataclass
class Figures:
    load: Load
    reloads: int
    pids: list[int | None]
    """Of the engine whose launch never changed, after each reload."""
    replaced: int
    """How many processes the other engine had."""
    seconds: dict[str, list[float]]
    """From the change to its being applied, by what told it."""

    @property
    def good(self) -> bool:
        return not self.load.failed and len(set(self.pids)) == 1 and self.replaced > 1


def configuration(turn: int, port: int) -> dict[str, Any]:
    """The file's content at one turn; two in sequence differ in all three models."""
    engine = {"runtime": "llama.cpp", "path": str(MODEL), "tool_call_format": "pythonic", "max_tokens": 24}
    models: dict[str, Any] = {
        "steady": {**engine, "context_window": 512, "temperature": (turn % 10) / 10},
        "changing": {**engine, "context_window": 512 + 64 * (turn % 3)},
    }
    if turn % 2:
        models["passing"] = {"runtime": "echo"}
    return {"active_model": "steady", "models": models, "server": {"port": port}}


async def client(base: str, model: str, load: Load, number: int) -> None:
    """Asks until the load is over, whole and streamed in turn."""
    async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as http:
        for turn in itertools.count(number):
            if load.over:
                return
            body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "stream": bool(turn % 2)}
            try:
                response = await http.post("/v1/chat/completions", json=body)
            except httpx.HTTPError as error:
                load.failed.append(f"{model}: {error!r}")
                continue
            text = response.text
            whole = "data: [DONE]" in text and '"error"' not in text if turn % 2 else '"choices"' in text
            if response.status_code != 200 or not whole:
                load.failed.append(f"{model}: {response.status_code} {text[-300:]}")
            else:
                load.answered[model] = load.answered.get(model, 0) + 1


async def measure(reloads: int, folder: Path, seconds_between: float = 0.0) -> Figures:
    port = proc.free_port()
    file = folder / "config.yaml"
    file.write_text(json.dumps(configuration(0, port)))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    environment = {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(REPOSITORY)}
    server = await asyncio.to_thread(
        proc.Server.start, command, port, folder / "gateway.log", env=environment, cwd=folder
    )
    try:
        await asyncio.to_thread(server.wait_ready, "/health", 30.0)
        return await _reloaded(reloads, file, server, seconds_between)
    finally:
        await asyncio.to_thread(server.stop)


async def _reloaded(reloads: int, file: Path, server: proc.Server, seconds_between: float) -> Figures:
    base = f"http://127.0.0.1:{server.port}"
    load = Load()
    figures = Figures(load, reloads, [], 0, {"file": [], "SIGHUP": [], "POST": []})
    replaced: set[int | None] = set()
    async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as http:
        for model in ("steady", "changing"):
            (await http.get(f"/v1/models/{model}/ready")).raise_for_status()
        clients = [
            asyncio.create_task(client(base, model, load, number))
            for number in range(CLIENTS // 2)
            for model in ("steady", "changing")
        ]
        try:
            for turn in range(1, reloads + 1):
                how = ("file", "SIGHUP", "POST")[turn % 3]
                before = (await _status(http))["config"]["reloads"]
                begun = time.perf_counter()
                _written(file, configuration(turn, server.port))
                if how == "SIGHUP":
                    os.kill(server.process.pid, signal.SIGHUP)
                if how == "POST":
                    (await http.post("/-/reload")).raise_for_status()
                async with asyncio.timeout(APPLIED_WITHIN):
                    # The gateway is another process: it can only be asked.
                    while not _applied(status := await _status(http), before, turn):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                figures.seconds[how].append(time.perf_counter() - begun)
                figures.pids.append(_pid(status, "steady"))
                # Every further reload meets an engine that has work, or one that is just being started for it.
                await asyncio.sleep(seconds_between)
                replaced.add(_pid(await _status(http), "changing"))
        finally:
            load.over = True
            await asyncio.gather(*clients)
    figures.replaced = len(replaced - {None})
    return figures


def _written(file: Path, content: Mapping[str, Any]) -> None:
    """As editors do it: a new file, renamed into the place of the old one."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content))
    new.replace(file)


async def _status(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get("/-/status")
    response.raise_for_status()
    status: dict[str, Any] = response.json()
    return status


def _pid(status: Mapping[str, Any], name: str) -> int | None:
    engines = {model["name"]: model["engine"] or {} for model in status["models"]}
    pid: int | None = engines[name].get("pid")
    return pid


def _applied(status: Mapping[str, Any], before: int, turn: int) -> bool:
    names = {model["name"] for model in status["models"]}
    return status["config"]["reloads"] > before and ("passing" in names) == bool(turn % 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reloads", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(args.reloads, Path(folder), seconds_between=0.5))
    print(f"{proc.machine()}\n\n| told by | reloads | applied after, ms, median | longest |\n|---|---|---|---|")
    for how, seconds in figures.seconds.items():
        if seconds:
            print(f"| {how} | {len(seconds)} | {1000 * statistics.median(seconds):.0f} | {1000 * max(seconds):.0f} |")
    print()
    answered = sum(figures.load.answered.values())
    print(f"{answered} answers in {figures.reloads} reloads, {len(figures.load.failed)} failed")
    print(f"processes of the engine that did not change: {len(set(figures.pids))}; of the other: {figures.replaced}")
    for failure in figures.load.failed[:5]:
        print(failure, file=sys.stderr)
    return 0 if figures.good else 1


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

"""A person's chat beside 8 agents on another model: how long it waits, how often models swap, what the agents get done.

    python benchmarks/turns.py                 # six minutes; --seconds 20 for a quick look

The gateway runs as `ctxgate serve` with the embedded llama.cpp and two real models that may not share the memory. The
chat is a conversation with SmolLM2, or with `--weights` of `benchmarks.harness.weights`: a person pastes a paragraph,
reads the answer for ten seconds and pastes the next one. The agents ask the project's test model all the time. Runs:
each alone, both as `default` with `swap_after_seconds: 0` (first come, first served), and both with the agents as
`flex`. Goals: the chat's p95 to the first token at most 1.5 times that of the idle machine, the agents at 0.8 of their
speed alone, nobody waits for longer than `flex_max_wait_seconds`.

While the agents work between any two answers of the chat, each of these costs two swaps, whoever goes first: few swaps
and agents at 0.8 of their speed exclude each other there. So swaps are counted where the order can save them: 8 agents
on each of the models, all `default`, first come first served and with `swap_after_seconds: 10`. Goal: 5 times fewer,
and nobody waits for longer than that and the answers before it. Exit code 1 if a goal is missed.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, too

from benchmarks.harness import proc, report
from benchmarks.harness.weights import WEIGHTS
from benchmarks.harness.weights import path as weights_path

ROOT = Path(__file__).resolve().parents[1]
CHAT = ROOT / "_models/smollm2-135m-instruct.gguf"
"""The chat's model; `--weights` names another one."""
AGENT = ROOT / "_models/test/ctxgate-test-tools.gguf"
AGENTS = 8
READS_SECONDS = 10.0
WITHIN = 120.0
SWAP_AFTER, FLEX_MAX_WAIT = 10.0, 30.0
ANSWER_SECONDS = 5.0
"""What answers and swaps before a request may take beyond its bound."""
PARAGRAPH = (
    "On day {day} the harbour master wrote: the wind came from the north, {day} boats lay at the quay, and the market"
    " sold fish, bread and apples until noon. A ship with timber had lost its mast and was towed in by two fishermen,"
    " who asked for nothing but a warm meal. In the evening the lamps were lit early because of the fog, the bells rang"
    " every quarter of an hour, and nobody left the port before the tide had turned. The baker promised {day} loaves"
    " for the crew, the smith began to work on the mast, and the children counted the gulls on the roof of the old"
    " customs house until it was too dark to see. What would you have noted on that day? Answer in one short sentence."
)


@dataclass
class Seen:
    """firsts: seconds to the chat's first tokens. answers: of the agents. starts: of engines. seconds: the run took."""

    firsts: list[float] = field(default_factory=list)
    answers: int = 0
    starts: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.firsts, n=20, method="inclusive")[-1] if len(self.firsts) > 1 else float("nan")

    @property
    def rate(self) -> float:
        return self.answers / self.seconds


def config(folder: Path, chat: Path, swap_after: float) -> dict[str, object]:
    model = {"runtime": "llama.cpp", "context_window": 4096, "threads": 1, "parallel": 4, "group": "one"}
    return {
        "active_model": "chat",
        "models": {"chat": {**model, "path": str(chat)}, "agent": {**model, "path": str(AGENT)}},
        "engines": {
            "swap_after_seconds": swap_after,
            "flex_max_wait_seconds": FLEX_MAX_WAIT,
            "groups": {"one": {"excludes": ["one"]}},
        },
        "prompts": {"min_tokens": 16},
        "state_dir": str(folder / "state"),
    }


@asynccontextmanager
async def gateway(weights: Path, swap_after: float) -> AsyncIterator[httpx.AsyncClient]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), proc.free_port()
        file = folder / "config.yaml"
        file.write_text(yaml.safe_dump(config(folder, weights, swap_after)))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", str(port)]
        server = proc.Server.start(command, port, folder / "log", env={"PYTHONPATH": str(ROOT)}, cwd=folder)
        try:
            server.wait_ready("/health", 60.0)
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=WITHIN, trust_env=False, limits=limits
            ) as http:
                yield http
        finally:
            server.stop()


async def chat(http: httpx.AsyncClient, seen: Seen, said: list[dict[str, str]]) -> None:
    """The next turn of the conversation `said`, whose first token is waited for."""
    said.append({"role": "user", "content": PARAGRAPH.format(day=len(said) // 2 + 1)})
    body = {"model": "chat", "messages": said, "max_tokens": 8, "temperature": 0, "stream": True}
    began, words = time.perf_counter(), ""
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            new = "".join(part["delta"].get("content") or "" for part in json.loads(line[6:])["choices"])
            if new and not words:
                seen.firsts.append(time.perf_counter() - began)
            words += new
    said.append({"role": "assistant", "content": words})


async def agent(http: httpx.AsyncClient, seen: Seen, number: int, tier: str, model: str = "agent") -> None:
    said = [{"role": "user", "content": f"Agent {number}: what is the weather in Oslo?"}]
    tokens = 48 if model == "agent" else 8
    body = {"model": model, "messages": said, "max_tokens": tokens, "ignore_eos": True, "service_tier": tier}
    while True:
        began = time.perf_counter()
        (await http.post("/v1/chat/completions", json=body)).raise_for_status()
        seen.longest = max(seen.longest, time.perf_counter() - began)
        seen.answers += 1


async def run(
    weights: Path,
    seconds: float,
    *,
    person: bool,
    tier: str | None,
    swap_after: float,
    models: Sequence[str] = ("agent",),
) -> Seen:
    """weights: of the chat. tier: of the agents; None: none run. models: of which 8 agents each ask one."""
    seen, said = Seen(), list[dict[str, str]]()
    async with gateway(weights, swap_after) as http:
        await chat(http, Seen(), said)  # both engines have run once, and their sizes are known
        if tier:
            (await http.post("/v1/chat/completions", json=_warm_up())).raise_for_status()
        before, began = await starts(http), time.perf_counter()
        agents = [
            asyncio.create_task(agent(http, seen, at, tier, model))
            for model in models
            for at in range(AGENTS if tier else 0)
            if tier
        ]
        while (left := began + seconds - time.perf_counter()) > 0:
            if person:
                await chat(http, seen, said)
            await asyncio.sleep(min(READS_SECONDS, left))
        seen.seconds = time.perf_counter() - began
        seen.starts = await starts(http) - before
        for task in agents:
            task.cancel()
        for task in agents:
            with suppress(asyncio.CancelledError):
                await task
    return seen


def _warm_up() -> dict[str, object]:
    return {"model": "agent", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


async def starts(http: httpx.AsyncClient) -> int:
    text = (await http.get("/metrics")).text
    found = re.findall(r"^ctxgate_engine_starts_total\{.*\} ([\d.]+)", text, re.MULTILINE)
    return round(sum(map(float, found)))


def lines(runs: Sequence[tuple[str, Seen]]) -> list[str]:
    head = f"{'run':<34}{'p95 first token':>16}{'chats':>7}{'engine starts':>15}{'agents/s':>10}{'longest':>9}"
    rows = [
        f"{name:<34}{seen.p95:>14.2f} s{len(seen.firsts):>7}{seen.starts:>15}{seen.rate:>10.2f}{seen.longest:>7.1f} s"
        for name, seen in runs
    ]
    return [head, *rows]


async def compare(weights: Path, seconds: float) -> int:
    both = ("chat", "agent")
    measured = partial(run, weights)
    idle = await measured(seconds, person=True, tier=None, swap_after=SWAP_AFTER)
    alone = await measured(seconds / 2, person=False, tier="flex", swap_after=SWAP_AFTER)
    fifo = await measured(seconds, person=True, tier="default", swap_after=0.0)
    flex = await measured(seconds, person=True, tier="flex", swap_after=SWAP_AFTER)
    swapping = await measured(seconds / 2, person=False, tier="default", swap_after=0.0, models=both)
    planned = await measured(seconds / 2, person=False, tier="default", swap_after=SWAP_AFTER, models=both)
    runs = [
        ("chat alone", idle),
        ("agents alone", alone),
        ("first come, first served", fifo),
        ("agents as flex", flex),
        ("agents on both, first come", swapping),
        ("agents on both, as planned", planned),
    ]
    print("\n".join(lines(runs)))
    goals = [
        report.Goal("p95 to the first token, of the idle machine's", flex.p95 / idle.p95, "<=", 1.5),
        report.Goal("agents' answers as flex, of their speed alone", flex.rate / alone.rate, ">=", 0.8),
        report.Goal("longest flex answer, seconds", flex.longest, "<=", FLEX_MAX_WAIT + ANSWER_SECONDS),
        report.Goal("swaps between agents, of first come", planned.starts / max(1, swapping.starts), "<=", 0.2),
        report.Goal("longest answer as planned, seconds", planned.longest, "<=", SWAP_AFTER + ANSWER_SECONDS),
    ]
    print("\n".join(map(str, goals)))
    return 0 if all(goal.met for goal in goals) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=70.0, help="length of a run with the chat; others take half")
    parser.add_argument("--weights", choices=[*WEIGHTS], help="the chat's model (default: SmolLM2 in _models)")
    wanted = parser.parse_args()
    chat = CHAT if wanted.weights is None else weights_path(wanted.weights)
    if missing := [path for path in (chat, AGENT) if not path.exists()]:
        print(f"{missing[0]} is missing: ctxgate pull smollm2-135m-instruct", file=sys.stderr)
        return 2
    return asyncio.run(compare(chat, wanted.seconds))


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

"""What saved prompts spare agents: `python -m benchmarks.agents`.

Conversations shaped as coding agents hold them: long instructions that all agents share, a part of each one's own, and
turns that append an answer and a result. Five situations, with saved prompts and without (`save: off`), each in a
gateway of its own. A turn's first token counts, and the share of its prompt that the engine did not read; the first
turn of each agent, which nobody can spare, does not. Needs SmolLM2 (`ctxgate pull smollm2-135m-instruct`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.engines.served import Served, served

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "_models/smollm2-135m-instruct.gguf"
SLOTS = 2
PATIENCE = 1200.0


@dataclass
class Agent:
    """model: that answers it. messages: its conversation so far."""

    model: str
    messages: list[dict[str, str]]
    turns: int = 0


@dataclass
class Setting:
    """One gateway, which may be restarted or killed between two turns, on one folder."""

    config: dict[str, Any]
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)
    gateway: Served | None = None

    def start(self) -> None:
        self.gateway = self.stack.enter_context(served(self.config, self.folder))

    def restart(self) -> None:
        self.stack.close()
        self.start()

    def kill(self) -> None:
        assert self.gateway is not None
        # What a turn leaves to do, such as saving, is done a moment after its answer.
        time.sleep(2)
        self.gateway.process.kill()
        self.gateway.process.wait()
        self.restart()

    def nothing(self) -> None:
        """Between two turns."""


@dataclass(frozen=True)
class Turn:
    """first: seconds to the first token. cached: the share of the prompt."""

    first: float
    cached: float


def agents(count: int, models: tuple[str, ...], tokens: int) -> list[Agent]:
    """Half of the tokens are instructions that all share."""
    shared = " ".join(f"Tool {number} reads {number * 7 % 13} files and writes one." for number in range(tokens // 28))
    made = []
    for index in range(count):
        own = " ".join(
            f"File {number} of project {index} has {number * 3 % 17} lines." for number in range(tokens // 28)
        )
        system = {"role": "system", "content": f"You are a coding agent. {shared} {own}"}
        made.append(Agent(models[index % len(models)], [system, {"role": "user", "content": "Fix the first test."}]))
    return made


def ask(gateway: Served, agent: Agent) -> Turn:
    body = {
        "model": agent.model, "messages": agent.messages, "max_tokens": 8, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began, first, words = time.monotonic(), 0.0, ""
    usage: dict[str, Any] = {}
    url = f"{gateway.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            if chunk["choices"] and (text := chunk["choices"][0]["delta"].get("content")):
                first = first or time.monotonic() - began
                words += text
    agent.turns += 1
    result = f"Result {agent.turns}: 3 tests passed, 1 failed in file {agent.turns}. Go on."
    agent.messages += [{"role": "assistant", "content": words}, {"role": "user", "content": result}]
    return Turn(
        first or time.monotonic() - began, usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    )


@dataclass(frozen=True)
class Situation:
    name: str
    count: int
    models: tuple[str, ...]
    between: Callable[[Setting], None]


SITUATIONS = (
    Situation("a: one agent", 1, ("a",), Setting.nothing),
    Situation(f"b: {SLOTS + 2} agents, {SLOTS} slots", SLOTS + 2, ("a",), Setting.nothing),
    Situation("c: two models take turns", 2, ("a", "b"), Setting.nothing),
    Situation("d: a restart before each turn", 1, ("a",), Setting.restart),
    Situation("e: kill -9 before each turn", 1, ("a",), Setting.kill),
)


def config(folder: Path, save: str, tokens: int) -> dict[str, Any]:
    model = {
        "runtime": "llama.cpp", "path": str(WEIGHTS), "context_window": tokens * 3, "parallel": SLOTS, "group": "one",
    }  # fmt: skip
    return {
        "active_model": "a",
        "models": {"a": model, "b": {**model, "top_p": 0.9}},
        "engines": {"groups": {"one": {"excludes": ["one"]}}},
        "prompts": {"save": save},
        "state_dir": str(folder / "state"),
    }


def measured(situation: Situation, save: str, *, turns: int, tokens: int) -> Iterator[Turn]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        setting = Setting(config(folder, save, tokens), folder)
        stack.callback(lambda: setting.stack.close())
        setting.start()
        talking = agents(situation.count, situation.models, tokens)
        for turn in range(turns + 1):
            for agent in talking:
                if turn:
                    situation.between(setting)
                assert setting.gateway is not None
                took = ask(setting.gateway, agent)
                if turn:
                    yield took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each agent (default: 3)")
    parser.add_argument("--tokens", type=int, default=1800, help="of the instructions, roughly (default: 1800)")
    asked = parser.parse_args()
    if not WEIGHTS.exists():
        sys.exit(f"there is no {WEIGHTS}: ctxgate pull smollm2-135m-instruct")
    print("| situation | saved prompts: first token, s | cached | `save: off`: first token, s | cached |")
    print("|---|---|---|---|---|")
    for situation in SITUATIONS:
        cells = [situation.name]
        for save in ("each_turn" if situation.between is Setting.kill else "on_stop", "off"):
            took = list(measured(situation, save, turns=asked.turns, tokens=asked.tokens))
            first = statistics.median(turn.first for turn in took)
            cells += [f"{first:.2f}", f"{100 * min(turn.cached for turn in took):.1f} %"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

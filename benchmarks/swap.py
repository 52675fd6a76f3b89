"""A conversation, another model in between, the conversation again: `python -m benchmarks.swap`.

Two models that may not share the memory take turns, A → B → A, behind ctxgate and, with `--llama-swap PATH`, behind
llama-swap, which starts the same engine. Seconds are those from a request to its first token, in rounds that alternate
between the stacks. The conversation begins with `--bytes` of a coding agent's system prompt; the first time, each stack
reads it cold.

Then says where the start of an engine goes: the process with its imports, the weights, the first token, and the memory
that the engine holds. With `--llama-server PATH` the same of a bare llama-server. Needs SmolLM2 in _models, or
`--weights` of `benchmarks.harness.weights`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from benchmarks.agents import SMOLLM2, THREADS, WINDOW, CtxgateOnStop, Json, Stack, first_token, recorded, weights_of
from benchmarks.harness import proc
from benchmarks.harness.stacks import compile_gateway
from benchmarks.harness.weights import WEIGHTS

EMBEDDED = Path(__file__).resolve().parents[1] / "gateway/engines/xllamacpp_server.py"
HELLO: list[Json] = [{"role": "user", "content": "Hi"}]


def engine_command(weights: Path, port: str) -> list[str]:
    """The embedded engine with the options that ctxgate gives it by default, but for those of saved prompts."""
    options = ("--threads", str(THREADS), "--ctx-size", str(WINDOW), "--no-warmup", "--jinja")
    return [sys.executable, "-P", str(EMBEDDED), "--model", str(weights), "--port", port, *options]


class LlamaSwap(Stack):
    """It ends one model's engine before it starts the other."""

    name = "llama-swap"
    program = Path()

    def ensure(self, model: str) -> str:
        if not self.processes:
            config = {
                "models": {
                    name: {"cmd": " ".join(engine_command(path, "${PORT}")), "checkEndpoint": "/health"}
                    for name, path in self.models.items()
                }
            }
            file = self.folder / "config.yaml"
            file.write_text(json.dumps(config))
            port = proc.free_port()
            self.url = self.run([self.program, "--config", file, "--listen", f"127.0.0.1:{port}"], port)
        return self.url


class OneSlot(CtxgateOnStop):
    """Its engines start with the first request, as llama-swap's do."""

    name = "ctxgate"

    def config(self) -> Json:
        made = super().config()
        for model in made["models"].values():
            model["preload"] = False
        return made


def rounds(stacks: list[Stack], count: int, size: int) -> dict[str, dict[str, list[float]]]:
    """By stack: seconds to the first token, cold, of the other model, and back; cached shares as `back cached`."""
    found: dict[str, dict[str, list[float]]] = {stack.name: {} for stack in stacks}
    system = recorded("codex", size)[0][0]["content"]
    for number in range(count):
        for stack in stacks if number % 2 else reversed(stacks):
            figures = found[stack.name]
            talk: list[Json] = [
                {"role": "system", "content": f"Round {number}. {system}"},
                {"role": "user", "content": "What do you do first?"},
            ]
            cold, _, words = first_token(stack.ensure("a"), "a", talk)
            there, _, _ = first_token(stack.ensure("b"), "b", HELLO)
            talk += [{"role": "assistant", "content": words}, {"role": "user", "content": "And then?"}]
            back, share, _ = first_token(stack.ensure("a"), "a", talk)
            for name, value in (("cold", cold), ("A → B", there), ("B → A", back), ("back cached", share)):
                figures.setdefault(name, []).append(value)
    return found


def start_of(command: list[str], port: int, weights: Path) -> dict[str, float]:
    """Seconds until the process listens with its model, and to the first token; bytes that it holds then."""
    stack = Stack(Path(tempfile.gettempdir()), {"a": weights}, 1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        stack.folder = Path(folder)
        try:
            url = stack.run(command, port)  # type: ignore[arg-type]
            ready = time.monotonic() - began
            first, _, _ = first_token(url, "a", HELLO)
            used = psutil.Process(stack.processes[0].pid).memory_full_info()
        finally:
            stack.end(hard=True)
    return {"ready": ready, "first token": first, "resident MB": used.rss / 1e6, "of its own MB": used.uss / 1e6}


def imports() -> float:
    """Seconds for Python to start and import the engine."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-P", "-c", "import xllamacpp"], check=True, capture_output=True)
    return time.monotonic() - began


def starts(weights: Path, llama_server: Path | None, count: int) -> Mapping[str, Mapping[str, float]]:
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(count):
        port = proc.free_port()
        python = imports()
        mine = start_of(engine_command(weights, str(port)), port, weights)
        found.setdefault("embedded", []).append(
            {"process and imports": python, "weights": mine.pop("ready") - python, **mine}
        )
        if llama_server is not None:
            port = proc.free_port()
            options = ["--threads", str(THREADS), "--ctx-size", str(WINDOW), "--no-warmup", "--parallel", "1"]
            command = [str(llama_server), "--model", str(weights), "--port", str(port), *options]
            found.setdefault("llama-server", []).append(start_of(command, port, weights))
    return {
        name: {key: statistics.median(each[key] for each in runs) for key in runs[0]} for name, runs in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-swap", type=Path, metavar="PATH", help="its program")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="its program, for its start and its memory")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--bytes", type=int, default=6000, help="of the system prompt (default: 6000)")
    parser.add_argument("--weights", choices=[*WEIGHTS], help="default: SmolLM2 in _models")
    asked = parser.parse_args()
    weights = weights_of(asked.weights)
    if not weights.exists():
        sys.exit(f"there is no {SMOLLM2}: ctxgate pull smollm2-135m-instruct")
    compile_gateway()
    print(f"{proc.machine()}; {weights.stem}; {time.strftime('%Y-%m-%d')}; load {os.getloadavg()[0]:.1f}.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {"a": weights, "b": Path(shutil.copy(weights, folder / "b.gguf"))}
        kinds: list[type[Stack]] = [OneSlot]
        if asked.llama_swap is not None:
            LlamaSwap.program = asked.llama_swap
            kinds.append(LlamaSwap)
        stacks = []
        for kind in kinds:
            (folder / kind.name).mkdir()
            stacks.append(kind(folder / kind.name, models, 1))
        try:
            found = rounds(stacks, asked.rounds, asked.bytes)
        finally:
            for stack in stacks:
                stack.end(hard=False)
    print("| | cold | A → B | B → A | cached |\n|---|---|---|---|---|")
    for name, figures in found.items():
        seconds = (f"{statistics.median(figures[each]):.2f} s" for each in ("cold", "A → B", "B → A"))
        print(f"| {name} | {' | '.join(seconds)} | {statistics.median(figures['back cached']):.1%} |")
    for name, told in starts(weights, asked.llama_server, asked.rounds).items():
        words = (f"{key} {value:.0f}" if "MB" in key else f"{key} {value:.2f} s" for key, value in told.items())
        print(f"\n{name}, alone: {', '.join(words)}.")
    return 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

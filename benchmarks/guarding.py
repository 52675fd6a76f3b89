"""What guarding calls by a grammar costs: the engine's processor time for a token, outside and inside calls.

`python -m benchmarks.guarding [GGUF or MLX folder ...]`. Answers of the embedded llama.cpp or of MLX, in turns with the
grammar and without; processor time is the same on a busy machine, tokens/s and the time to a call's first delta aren't.
`--mlx` measures the test model on MLX, as a folder made for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psutil

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.request import grammars
from gateway.wire.chat import ChatRequest

ROOT = Path(__file__).parents[1]
PORT = 14_877

TEST_MODEL = ROOT / "_models/test/ctxgate-test-tools.gguf"

Json = dict[str, Any]


def tool(name: str, **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties, "required": [*properties][:1]}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string"}, unit={"type": "string", "enum": ["celsius", "fahrenheit"]})
TOOLS = [WEATHER]
ASKED: dict[str, tuple[str, Json]] = {
    "without calls": ("Say hello.", {"ignore_eos": True, "max_tokens": 300}),
    "with a call": ("What is the weather in Paris in celsius?", {"max_tokens": 64}),
}


@contextmanager
def engine(weights: Path) -> Iterator[psutil.Process]:
    if weights.is_dir():
        script, options = "mlx_server.py", "--context-window 4096 --log-level WARNING"
    else:
        script, options = "xllamacpp_server.py", "--alias m --threads 1 --ctx-size 4096 --parallel 1"
    path = str(ROOT / "gateway/engines" / script)
    with subprocess.Popen(
        [sys.executable, "-P", path, "--model", str(weights), "--port", str(PORT), *options.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=60).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield psutil.Process(process.pid)
        finally:
            process.kill()


@dataclass
class Seen:
    cpu: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)


async def ask(gateway: Gateway, process: psutil.Process, question: str, more: Json, seen: Seen) -> None:
    body = {
        "messages": [{"role": "user", "content": question}],
        "tools": TOOLS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **more,
    }
    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    first: float | None = None
    usage: Json = {}
    with await gateway.chat(ChatRequest.parse(json.dumps(body).encode())) as run:
        while payloads := await run.payloads():
            for chunk in map(json.loads, payloads):
                usage = chunk.get("usage") or usage
                if first is None and any(choice["delta"].get("tool_calls") for choice in chunk["choices"]):
                    first = time.perf_counter() - began
    seen.cpu += sum(process.cpu_times()[:2]) - before
    seen.seconds += time.perf_counter() - began
    seen.tokens += usage["completion_tokens"]
    if first is not None:
        seen.first.append(first)


async def measure(weights: Path, runtime: str, format: str, rounds: int) -> None:
    with engine(weights) as process:
        model = Model(name="m", runtime=runtime, base_url=f"http://127.0.0.1:{PORT}", tool_call_format=format)
        config = Config(source=Path("config.yaml"), active_model="m", models={"m": model})
        for name, (question, more) in ASKED.items():
            async with Gateway(config) as free, Gateway(config) as guarded:
                with patch.object(grammars, "guarding", lambda *_: None):
                    # A route keeps what it worked out for these tools.
                    await ask(free, process, question, more, Seen())
                await ask(guarded, process, question, more, Seen())
                seen = {"free": Seen(), "guarded": Seen()}
                for _ in range(rounds):
                    await ask(free, process, question, more, seen["free"])
                    await ask(guarded, process, question, more, seen["guarded"])
            for calls, one in seen.items():
                first = f"{statistics.median(one.first) * 1000:.1f}" if one.first else ""
                figures = f"{one.cpu / one.tokens * 1000:.3f} | {one.tokens / one.seconds:.0f} | {first}"
                row = f"{weights.stem}, {runtime} | {format} | {name} | {calls} | {one.tokens} | {figures}"
                print(f"| {row} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.guarding", description=__doc__)
    parser.add_argument("weights", nargs="*", type=Path, default=[TEST_MODEL])
    parser.add_argument("--mlx", action="store_true")
    parser.add_argument("--formats", nargs="*", default=["pythonic", "hermes"])
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    print("| model | format | answers | calls | tokens | engine's CPU a token, ms | tokens/s | first call delta, ms |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: | ---: |")
    with TemporaryDirectory() as folder:
        if args.mlx:
            args.weights = [Path(folder) / TEST_MODEL.stem]
            export = ROOT / "scripts/tiny_model/export_mlx.py"
            subprocess.run([sys.executable, str(export), str(TEST_MODEL), str(*args.weights)], check=True)
        for weights in args.weights:
            for format in args.formats:
                runtime = "mlx" if weights.is_dir() else "llama.cpp"
                asyncio.run(measure(weights, runtime, format, args.rounds))


if __name__ == "__main__":
    main()

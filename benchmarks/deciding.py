"""What example turns and a call threshold cost: `python -m benchmarks.deciding`.

One gateway, two embedded engines with the same weights. Each question goes to both, one right after the other and in
alternating order: to a model without either setting, and to one with `tool_examples` and `call_threshold`. All
questions have the same tools. Told are the milliseconds to the first byte of a stream and to its first word or call,
which may be held back until it is known to be one; and the prompt's tokens that the engine read, by its own count.
What is read beyond what the same question needs without the settings is prompt that did not stay warm.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import proc, weights
from benchmarks.harness.stacks import REPOSITORY

EMBEDDED = REPOSITORY / "gateway/engines/xllamacpp_server.py"
WITHIN = 120.0
WINDOW = 4096
PLAIN, DECIDED = "plain", "decided"
SETTINGS = {"tool_examples": ["ask", "chain", "hello"], "call_threshold": 0.2}
CITIES = ("Oslo", "Rome", "Lima", "Cairo", "Quito", "Accra", "Hanoi", "Minsk", "Tunis", "Sofia")
WISHES = (
    "What is the weather in {}?",
    "Hello from {}!",
    "What time is it in {}?",
    "Thank you, {}.",
    "Email {} a hello.",
)
Json = dict[str, Any]


def tool(name: str, description: str, *parameters: str) -> Json:
    properties = {each: {"type": "string", "description": f"The {each}."} for each in parameters}
    schema = {"type": "object", "properties": properties, "required": [*parameters]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("get_weather", "The weather of today.", "city"),
    tool("get_time", "The time of day.", "city"),
    tool("send_email", "Sends an email.", "address", "subject", "body"),
    tool("read_file", "The text of a file.", "path"),
    tool("search", "Searches the web.", "query"),
    tool("add", "Adds two numbers.", "first", "second"),
]


@dataclass
class Figures:
    """Of each answer, in order. begins_ms, first_ms: to its first byte, and to its first word or call. read: tokens of
    the prompt that the engine read; prompt: all of them."""

    begins_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    port: int
    engines: dict[str, int]

    def ask(self, model: str, question: str, figures: Figures) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "tools": TOOLS,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": 24,
        }
        before = self._read(model)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        began, begins, first = time.perf_counter(), 0.0, 0.0
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            response = connection.getresponse()
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                begins = begins or time.perf_counter() - began
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise SystemExit(f"{model}: {chunk}")
                says = any(set(choice["delta"]) & {"content", "tool_calls"} for choice in chunk.get("choices", ()))
                first = first or (time.perf_counter() - began) * says
                if usage := chunk.get("usage"):
                    figures.prompt.append(usage["prompt_tokens"])
        finally:
            connection.close()
        figures.begins_ms.append(begins * 1000)
        figures.first_ms.append(first * 1000)
        figures.read.append(self._read(model) - before)

    def _read(self, model: str) -> int:
        """Tokens of prompts that the model's engine has read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.engines[model], timeout=WITHIN)
        try:
            connection.request("GET", "/metrics")
            found = re.search(rb"^llamacpp:prompt_tokens_total (\S+)", connection.getresponse().read(), re.MULTILINE)
        finally:
            connection.close()
        if found is None:
            raise SystemExit("the engine doesn't tell how many tokens it read")
        return round(float(found[1]))


@contextmanager
def started(folder: Path, model: Path, format: str) -> Iterator[Place]:
    folder.mkdir(parents=True, exist_ok=True)
    engines = {name: proc.free_port() for name in (PLAIN, DECIDED)}
    port = proc.free_port()
    servers = []
    models: Json = {}
    for name, at in engines.items():
        options = ["--model", str(model), "--alias", name, "--ctx-size", str(WINDOW), "--parallel", "1", "--metrics"]
        command = [sys.executable, "-P", str(EMBEDDED), *options, "--jinja", "--host", "127.0.0.1", "--port", str(at)]
        servers.append(proc.Server.start(command, at, folder / f"{name}.log", cwd=REPOSITORY))
        models[name] = {"runtime": "llama.cpp", "base_url": f"http://127.0.0.1:{at}", "tool_call_format": format}
    models[DECIDED] |= SETTINGS
    file = folder / "config.yaml"
    file.write_text(json.dumps({"active_model": PLAIN, "models": models, "state_dir": str(folder / "state")}))
    serve = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", str(port)]
    servers.append(proc.Server.start(serve, port, folder / "log", cwd=REPOSITORY))
    try:
        for server in servers:
            server.wait_ready("/health", WITHIN)
        yield Place(port, engines)
    finally:
        for server in reversed(servers):
            server.stop()


def measure(place: Place, count: int) -> dict[str, Figures]:
    found = {PLAIN: Figures(), DECIDED: Figures()}
    for number in range(count + 1):
        city, wish = CITIES[number % len(CITIES)], WISHES[number // len(CITIES) % len(WISHES)]
        for name in (PLAIN, DECIDED) if number % 2 else (DECIDED, PLAIN):
            place.ask(name, wish.format(city), found[name])
    return found


def kept(found: dict[str, Figures]) -> float:
    """The share of the prompts with examples that stayed warm: of all but the first."""
    plain, decided = found[PLAIN], found[DECIDED]
    more = sum(max(0, b - a) for a, b in zip(plain.read[1:], decided.read[1:], strict=True))
    return 1 - more / sum(decided.prompt[1:])


def table(found: dict[str, Figures]) -> str:
    lines = [f"{'':<10}{'begins, ms':>11}{'first, ms':>11}{'cold, s':>9}{'prompt':>8}{'read':>6}"]
    for name, each in found.items():
        figures = (
            f"{median(each.begins_ms[1:]):>11.0f}{median(each.first_ms[1:]):>11.0f}{each.first_ms[0] / 1000:>9.1f}"
        )
        lines.append(f"{name:<10}{figures}{median(each.prompt[1:]):>8.0f}{median(each.read[1:]):>6.0f}")
    more = median([b - a for a, b in zip(found[PLAIN].begins_ms[1:], found[DECIDED].begins_ms[1:], strict=True)])
    asked = len(found[PLAIN].read) - 1
    lines.append(f"{asked} questions; {more:+.0f} ms to the first byte; {kept(found):.2%} of the prompts stayed warm")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--model", type=Path, help="a GGUF file; default: Qwen2.5-Coder-0.5B from the package index")
    parser.add_argument("--format", default="auto", help="its tool_call_format")
    wanted = parser.parse_args()
    model = wanted.model or weights.path("qwen2.5-coder-0.5b")
    with (
        tempfile.TemporaryDirectory(prefix="ctxgate-deciding-") as folder,
        started(Path(folder), model, wanted.format) as place,
    ):
        found = measure(place, wanted.questions)
    print(proc.machine())
    print(table(found))
    return 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

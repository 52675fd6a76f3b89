"""What saved prompts spare coding agents: `python -m benchmarks.agents`.

Replays what Codex, Claude Code and opencode asked of an engine (`benchmarks/record_agents.py`) in five situations:

    a  one agent
    b  as many agents as slots plus two
    c  two agents, whose models take turns in memory
    d  one agent; the server ends in order, and starts again, before each turn
    e  the same with kill -9, two seconds after the answer

Each stack gets the same messages, since small models know no tools: the tools are text in the system message. System
message and tools are cut to `--bytes`. Answers are the model's own, and end after 16 tokens. Seconds are those of a
whole turn, from the request to the end of its answer, with all that a swap or a start takes; the first turn of each
agent, which nobody can spare, doesn't count. The cached share is that of all prompt tokens, for the agent that had
least of it. Where a stack doesn't swap models, the benchmark ends its engine and starts the other. An engine has two
slots in b and one elsewhere, since hearth-llm knows only one.

`--fan-out 4,8` instead starts so many agents at once, with one system prompt of `--bytes` and a question each: cold,
and after a conversation with that prompt. What the engine alone takes for one reading is measured beside it, in turns.
Goals: warm, every first token within 1.5 s plus 0.3 s an agent; cold, within 1.2 times one reading; the words are those
of one after the other.

Needs SmolLM2 (`ctxgate pull smollm2-135m-instruct`), or `--weights` of `benchmarks.harness.weights`. Peers get their
own environments in ~/.cache/ctxgate/bench.
Exit code 1 if ctxgate misses a goal.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import proc, report
from benchmarks.harness.stacks import Unavailable, compile_gateway, install
from benchmarks.harness.weights import WEIGHTS
from benchmarks.harness.weights import path as weights_path
from tests.engines.served import Served, served

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks/agents.jsonl.gz"
SMOLLM2 = ROOT / "_models/smollm2-135m-instruct.gguf"
TEST_MODEL = ROOT / "_models/test/ctxgate-test-tools.gguf"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ctxgate/bench"
THREADS, WINDOW = 1, 8192
PATIENCE, PROBE_SECONDS = 1800.0, 5.0
ANSWER_TOKENS = 16
LEAST_CACHED, LEAST_AGAIN, MAX_TIMES = 0.95, 0.99, 1.3
WARM_SECONDS, AGENT_SECONDS, MAX_READINGS = 1.5, 0.3, 1.2
FAN_OUT_SLOTS = 4

Json = dict[str, Any]


def weights_of(name: str | None) -> Path:
    """A model's file; fetches those that have a name."""
    return SMOLLM2 if name is None else weights_path(name)


# What is asked


@dataclass
class Agent:
    """requests: the messages of each of its requests. prompt, cached: tokens of its prompts, and the cached ones; None
    if the server doesn't tell."""

    model: str
    requests: list[list[Json]]
    prompt: int = 0
    cached: int | None = 0
    said: list[str] = field(default_factory=list)
    """The model's answers so far."""

    def messages(self, turn: int) -> list[Json]:
        """Those of a request, with the model's own answers in place of the recorded ones."""
        said = iter(self.said)
        return [
            {**message, "content": next(said)} if message["role"] == "assistant" else message
            for message in self.requests[turn]
        ]


def recorded(client: str, size: int, *, of: str = "") -> list[list[Json]]:
    """The messages of each request of a client's recorded session, with system message and tools cut to `size` bytes.

    of: a word by which the user's messages differ from those of others.
    """
    found: list[list[Json]] = []
    messages: list[Json] = []
    tools: list[Json] = []
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for turn in map(json.loads, lines):
            if turn["client"] != client or turn["kind"] != "main":
                continue
            tools = turn.get("tools") or tools
            messages = messages[: turn["keep"]] + turn["messages"]
            found.append([plain(message, tools, size, of) for message in messages])
    return found


def plain(message: Json, tools: list[Json], size: int, of: str) -> Json:
    """A message as text, for models that know neither tools nor calls."""
    content = text_of(message.get("content"))
    if message["role"] == "system":
        written = "\n".join(json.dumps(tool["function"]) for tool in tools)
        return {"role": "system", "content": f"{content[: size // 2]}\n\nTools:\n{written[: size // 2]}"}
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result:\n{content}"}
    if calls := message.get("tool_calls"):
        return {"role": "assistant", "content": content + json.dumps([call["function"] for call in calls])}
    return {"role": message["role"], "content": f"{of}{content}"}


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or ())


# Who is asked


class Stack:
    """A server, or several. folder: for all that it keeps. slots, threads: of each engine."""

    name = ""

    def __init__(self, folder: Path, models: Mapping[str, Path], slots: int, threads: int = THREADS) -> None:
        self.folder = folder
        self.models = models
        self.slots = slots
        self.threads = threads
        self.processes: list[subprocess.Popen[bytes]] = []
        self.current: str | None = None

    def ensure(self, model: str) -> str:
        """Makes sure that the model's server runs, instead of another model's; returns its address."""
        if self.current != model:
            self.end(hard=False)
            self.url = self.start(model)
            self.current = model
        return self.url

    def start(self, model: str) -> str:
        raise NotImplementedError

    def asked(self, model: str) -> str:
        """The model's name in a request."""
        return model

    def end(self, *, hard: bool) -> None:
        for process in reversed(self.processes):
            process.kill() if hard else process.terminate()
            process.wait(PATIENCE)
        self.processes.clear()
        self.current = None

    def run(self, command: list[str | Path], port: int, path: str = "/health", **env: str) -> str:
        """Starts a server and waits until it is ready."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
        self.processes.append(process)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if httpx.get(url + path, timeout=PROBE_SECONDS).status_code == 200:
                    return url
            except httpx.TransportError:
                pass
            if process.poll() is not None:
                raise Unavailable(f"{self.name} ended: {(self.folder / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.02)
        raise Unavailable(f"{self.name} is not ready")


class Ctxgate(Stack):
    name = "ctxgate"
    save = "each_turn"

    def __init__(self, folder: Path, models: Mapping[str, Path], slots: int, threads: int = THREADS) -> None:
        super().__init__(folder, models, slots, threads)
        self.gateway: Served | None = None
        self.stack = ExitStack()

    def ensure(self, model: str) -> str:
        """The gateway itself swaps the models."""
        if self.gateway is None:
            self.gateway = self.stack.enter_context(served(self.config(), self.folder))
        return self.gateway.url

    def config(self) -> Json:
        model = {
            "runtime": "llama.cpp", "context_window": WINDOW, "parallel": self.slots, "threads": self.threads,
            "group": "one",
        }  # fmt: skip
        return {
            "active_model": "a",
            "models": {
                # The peers' engines begin to load before a request comes, too.
                name: {**model, "path": str(path), "preload": name == "a"}
                for name, path in self.models.items()
            },
            "engines": {"groups": {"one": {"excludes": ["one"]}}},
            "prompts": {"save": self.save},
            "state_dir": str(self.folder / "state"),
        }

    def end(self, *, hard: bool) -> None:
        if self.gateway is not None and hard:
            self.gateway.process.kill()
            self.gateway.process.wait()
        self.stack.close()
        self.gateway = None


class CtxgateOnStop(Ctxgate):
    name = "ctxgate, save: on_stop"
    save = "on_stop"


class CtxgateOff(Ctxgate):
    name = "ctxgate, save: off"
    save = "off"


class Bare(Stack):
    """The embedded engine alone, with its own defaults: 8 GiB of cache in memory."""

    name = "engine alone"

    def start(self, model: str) -> str:
        return self.engine(model, ROOT / "gateway/engines/xllamacpp_server.py")

    def engine(self, model: str, script: Path, *more: str | Path) -> str:
        port = proc.free_port()
        options = (
            *("--model", self.models[model], "--port", str(port), "--threads", str(self.threads)),
            *("--parallel", str(self.slots), "--ctx-size", str(WINDOW * self.slots)),
        )
        return self.run([sys.executable, "-P", script, *options, *more], port)


class Hearth(Bare):
    """The engine behind hearth-llm, which knows one slot."""

    name = "engine behind hearth-llm 0.1.1"

    def __init__(self, folder: Path, models: Mapping[str, Path], slots: int, threads: int = THREADS) -> None:
        super().__init__(folder, models, 1, threads)

    def start(self, model: str) -> str:
        venv, kept = CACHE / "hearth-llm", self.folder / f"hearth-{model}"
        install(venv, ("hearth-llm==0.1.1",))
        kept.mkdir(exist_ok=True)
        script = ROOT / "gateway/engines/xllamacpp_server.py"
        engine = self.engine(model, script, "--slot-save-path", f"{kept}/")
        port = proc.free_port()
        options = ("serve", "--upstream", engine, "--port", str(port), "--cache-dir", kept)
        return self.run([venv / "bin/hearth", *options], port)


class LlamaCppPython(Stack):
    name = "llama_cpp.server 0.3.36"

    def start(self, model: str) -> str:
        venv, port = CACHE / "llama_cpp.server", proc.free_port()
        install(venv, ("llama-cpp-python[server]==0.3.36",))
        options = (
            *("--model", self.models[model], "--port", str(port), "--n_threads", str(self.threads)),
            *("--n_ctx", str(WINDOW), "--cache", "true"),
        )
        return self.run([venv / "bin/python", "-m", "llama_cpp.server", *options], port, "/v1/models")


class Mlx(Stack):
    """On the test model as an MLX folder: its times are those of another model."""

    name = "mlx_lm.server, the test model"

    def asked(self, model: str) -> str:
        return "default_model"

    def start(self, model: str) -> str:
        made, port = self.folder / f"mlx-{model}", proc.free_port()
        if not made.exists():
            export = ROOT / "scripts/tiny_model/export_mlx.py"
            subprocess.run([sys.executable, export, TEST_MODEL, made], check=True, capture_output=True)
        options = ("--model", made, "--port", str(port), "--log-level", "WARNING")
        return self.run([sys.executable, "-m", "mlx_lm.server", *options], port, HF_HUB_OFFLINE="1")


STACKS = {
    "ctxgate": Ctxgate, "on_stop": CtxgateOnStop, "off": CtxgateOff, "engine": Bare, "hearth": Hearth,
    "llama_cpp": LlamaCppPython, "mlx": Mlx,
}  # fmt: skip
KEPT_SECONDS = 2.0
"""What a turn leaves to do, such as saving, is done this long after its answer."""


# Five situations


@dataclass(frozen=True)
class Situation:
    """agents: the client and the model of each. between: before each turn but an agent's first; what it ends starts
    with the turn."""

    letter: str
    agents: tuple[tuple[str, str], ...]
    between: Callable[[Stack], None] = lambda stack: None
    slots: int = 1


def stop(stack: Stack) -> None:
    stack.end(hard=False)


def kill(stack: Stack) -> None:
    time.sleep(KEPT_SECONDS)
    stack.end(hard=True)


SITUATIONS = (
    Situation("a", (("codex", "a"),)),
    Situation("b", (("codex", "a"), ("claude-code", "a"), ("opencode", "a"), ("codex", "a")), slots=2),
    Situation("c", (("codex", "a"), ("codex", "b"))),
    Situation("d", (("codex", "a"),), stop),
    Situation("e", (("codex", "a"),), kill),
)


@dataclass(frozen=True)
class Figure:
    """seconds: of a turn, the mean. cached: the share, of the agent with least; None if the server doesn't tell."""

    seconds: float
    cached: float | None

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, " + (f"{100 * self.cached:.1f} %" if self.cached is not None else "?")


def measured(kind: type[Stack], situation: Situation, models: Mapping[str, Path], turns: int, size: int) -> Figure:
    agents = [
        Agent(model, recorded(client, size, of=f"Project {number}. " if number else "")[: turns + 1])
        for number, (client, model) in enumerate(situation.agents)
    ]
    took = []
    with tempfile.TemporaryDirectory() as folder:
        stack = kind(Path(folder), models, situation.slots)
        try:
            for turn in range(turns + 1):
                for agent in agents:
                    if turn:
                        situation.between(stack)
                    began = time.monotonic()
                    prompt, cached = ask(stack, agent, turn)
                    if turn:
                        took.append(time.monotonic() - began)
                        agent.prompt += prompt
                        agent.cached = None if cached is None or agent.cached is None else agent.cached + cached
        finally:
            stack.end(hard=False)
    shares = [agent.cached / agent.prompt for agent in agents if agent.cached is not None]
    return Figure(sum(took) / len(took), min(shares) if len(shares) == len(agents) else None)


def ask(stack: Stack, agent: Agent, turn: int) -> tuple[int, int | None]:
    """The tokens of the prompt, and those that were cached, if the server tells."""
    url = stack.ensure(agent.model)
    body = {
        "model": stack.asked(agent.model),
        "messages": agent.messages(turn),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE)
    if answer.status_code != 200:
        raise Unavailable(f"status {answer.status_code}: {answer.text[:200]}")
    usage = answer.json()["usage"]
    agent.said.append(answer.json()["choices"][0]["message"]["content"] or "")
    return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def first_token(
    url: str, model: str, messages: list[Json], *, answer_tokens: int = ANSWER_TOKENS
) -> tuple[float, float, str]:
    """Seconds to the first token, the cached share of the prompt, and the words of a streamed answer."""
    body = {
        "model": model, "messages": messages, "max_tokens": answer_tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began, first, words, usage = time.monotonic(), 0.0, "", Json()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE) as answer:
        for line in answer.raise_for_status().iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk.get("usage") or usage
                if chunk["choices"] and (text := chunk["choices"][0]["delta"].get("content")):
                    first = first or time.monotonic() - began
                    words += text
    return first, usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"], words


def after_swaps(weights: Path, size: int) -> Iterator[report.Goal]:
    """A model's first token for one prompt: cold, warm, after another model had the memory, after a restart."""
    messages, short = recorded("codex", size)[0], [{"role": "user", "content": "Hi"}]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(shutil.copy(weights, Path(folder) / "b.gguf"))
        stack = CtxgateOnStop(Path(folder), {"a": weights, "b": other}, 1)
        try:
            url = stack.ensure("a")
            first_token(url, "a", short)
            cold, _, _ = first_token(url, "a", messages)
            warm, _, words = first_token(url, "a", messages)
            first_token(url, "b", short)
            swapped = first_token(url, "a", messages)
            stop(stack)
            restarted = first_token(stack.ensure("a"), "a", messages)
        finally:
            stack.end(hard=False)
    print(f"first token: cold {cold:.2f} s, warm {warm:.2f} s\n")
    for name, (seconds, share, said) in (("a swap", swapped), ("a restart", restarted)):
        yield report.Goal(f"first token after {name}, s", seconds, "<=", 0.05 * cold + 1)
        yield report.Goal(f"cached after {name}", share, ">=", LEAST_AGAIN)
        yield report.Goal(f"the warm words after {name} (1: the same)", float(said == words), ">=", 1.0)


def shared_prompt(size: int, number: int) -> str:
    """What the agents of one fan-out share, and no others."""
    text = recorded("codex", size)[0][0]["content"]
    return f"You are agent team {number}. {text}"


def questions(system: str, count: int) -> list[list[Json]]:
    return [
        [{"role": "system", "content": system}, {"role": "user", "content": f"Task {number}: say what you do first."}]
        for number in range(count)
    ]


def fan_out(
    weights: Path, counts: Sequence[int], size: int, rounds: int, threads: int, slots: int
) -> Iterator[report.Goal]:
    """Agents at once: cold, warm, and one reading of the engine alone, in turns."""
    found: dict[str, list[float]] = {}
    cached: list[float] = []
    alike = True
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(counts)) as pool:
        (Path(folder) / "gateway").mkdir()
        (Path(folder) / "engine").mkdir()
        gateway = CtxgateOnStop(Path(folder) / "gateway", {"a": weights}, slots, threads)
        alone = Bare(Path(folder) / "engine", {"a": weights}, slots, threads)
        try:
            url, engine = gateway.ensure("a"), alone.ensure("a")
            for each in (url, engine):
                first_token(each, "a", [{"role": "user", "content": "Hi"}])
            teams = itertools.count()
            for turn in range(rounds):
                for count in counts if turn % 2 else reversed(counts):
                    asked = questions(shared_prompt(size, next(teams)), 2 * count)
                    found.setdefault(f"{count} one", []).append(first_token(engine, "a", asked[0])[0])
                    for state, messages in (("cold", asked[:count]), ("warm", asked[count:])):
                        got = [*pool.map(partial(first_token, url, "a"), messages)]
                        found.setdefault(f"{count} {state}", []).append(max(first for first, _, _ in got))
                        cached += [share for _, share, _ in got] if state == "warm" else []
                        sys.stderr.write(f"{turn} {count} {state}: {found[f'{count} {state}'][-1]:.2f} s\n")
                        again = [first_token(url, "a", each)[2] for each in messages]
                        alike = alike and again == [words for _, _, words in got]
        finally:
            gateway.end(hard=False)
            alone.end(hard=False)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    print("| agents | one reading | cold, the last first token | warm, the last first token |\n|---|---|---|---|")
    for count in counts:
        cells = (f"{medians[f'{count} {state}']:.2f} s" for state in ("one", "cold", "warm"))
        print(f"| {count} | {' | '.join(cells)} |")
    print()
    for count in counts:
        times = statistics.median(
            cold / one for cold, one in zip(found[f"{count} cold"], found[f"{count} one"], strict=True)
        )
        yield report.Goal(f"{count} agents, cold: times one reading", times, "<=", MAX_READINGS)
        bound = WARM_SECONDS + AGENT_SECONDS * count
        yield report.Goal(f"{count} agents, warm: the last first token, s", medians[f"{count} warm"], "<=", bound)
    yield report.Goal("warm: the least cached share", min(cached), ">=", LEAST_CACHED)
    yield report.Goal("the words of one after the other (1: the same)", float(alike), ">=", 1.0)


def rows(
    weights: Path, names: list[str], letters: str, turns: int, size: int
) -> Iterator[tuple[str, dict[str, Figure]]]:
    with tempfile.TemporaryDirectory() as folder:
        # Another file is another model: what was read for one says nothing to the other.
        other = Path(shutil.copy(weights, Path(folder) / "b.gguf"))
        for name in names:
            kind, found, why = STACKS[name], dict[str, Figure](), ""
            for situation in SITUATIONS:
                if situation.letter in letters and not why:
                    sys.stderr.write(f"{kind.name}: {situation.letter}\n")
                    try:
                        found[situation.letter] = measured(kind, situation, {"a": weights, "b": other}, turns, size)
                    except (Unavailable, httpx.HTTPError) as error:
                        why = str(error)
            cells = [str(found.get(letter, "not measured")) for letter in letters]
            print(f"| {' | '.join([kind.name, *cells])} |{f'  <!-- {why} -->' if why else ''}", flush=True)
            yield name, found


def goals(found: Mapping[str, Figure]) -> Iterator[report.Goal]:
    if "b" in found and found["b"].cached is not None:
        yield report.Goal("b: cached share of every agent", found["b"].cached, ">=", LEAST_CACHED)
    for letter in "cd":
        if letter in found and "a" in found:
            times = found[letter].seconds / found["a"].seconds
            yield report.Goal(f"{letter}: seconds a turn, times those of a", times, "<=", MAX_TIMES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="measured turns of each agent, at most 7 (default: 7)")
    parser.add_argument("--bytes", type=int, default=16_000, help="of system message and tools (default: 16000)")
    parser.add_argument("--stacks", default=",".join(STACKS), help=f"default: {','.join(STACKS)}")
    parser.add_argument("--situations", default="abcde", help="default: abcde")
    parser.add_argument("--first-token", action="store_true", help="instead: one prompt before and after a swap")
    parser.add_argument("--fan-out", metavar="COUNTS", help="instead: agents that start at once, such as 4,8")
    parser.add_argument("--rounds", type=int, default=3, help="of --fan-out (default: 3)")
    parser.add_argument("--slots", type=int, default=FAN_OUT_SLOTS, help="of --fan-out (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=THREADS, help="of each engine of --fan-out (default: 1)")
    parser.add_argument("--weights", choices=[*WEIGHTS], help="default: SmolLM2 in _models")
    asked = parser.parse_args()
    weights = weights_of(asked.weights)
    if not weights.exists():
        sys.exit(f"there is no {weights}: ctxgate pull smollm2-135m-instruct")
    compile_gateway()
    if asked.first_token or asked.fan_out:
        counts = [int(count) for count in (asked.fan_out or "").split(",") if count]
        if counts:
            found = fan_out(weights, counts, asked.bytes, asked.rounds, asked.threads, asked.slots)
        else:
            found = after_swaps(weights, asked.bytes)
        print(f"{proc.machine()}; {weights.stem}; {time.strftime('%Y-%m-%d')}; load {os.getloadavg()[0]:.1f}.\n")
        verdicts = [*found]
        print("\n".join(map(str, verdicts)))
        return 1 if any(goal.met is False for goal in verdicts) else 0
    letters = asked.situations
    print(f"{proc.machine()}; {weights.stem}; {time.strftime('%Y-%m-%d')}; load {os.getloadavg()[0]:.1f}.\n")
    print(f"| | {' | '.join(letters)} |\n|---|{'---|' * len(letters)}")
    figures = dict(rows(weights, asked.stacks.split(","), letters, asked.turns, asked.bytes))
    verdicts = [goal for name in ("ctxgate",) for goal in goals(figures.get(name, {}))]
    print("\n" + "\n".join(map(str, verdicts)))
    return 1 if any(goal.met is False for goal in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())

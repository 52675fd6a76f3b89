"""ctxgate's default settings of llama.cpp beside llama-server's own defaults, and beside other settings.

    python -m benchmarks.engine_defaults                    # defaults only; 6 minutes
    python -m benchmarks.engine_defaults --settings all     # and each candidate; 20 minutes
    python -m benchmarks.engine_defaults --load 4           # while 4 clients ask the gateway for other things
    python -m benchmarks.engine_defaults --tuned FOLDER     # and what `ctxgate tune --apply` makes of it; 8 minutes

Four kinds of text (prose, a code edit, JSON, a tool call), one stream and four, round by round: in each round every
server answers the same requests, one server after another. ctxgate answers through the whole gateway. llama-server is
asked directly, and gets each request as ctxgate sends it to its engine, so both read and write the same. Both run the
program that `--llama-server` names, the reference with no options but its model and port; without one, both run the
embedded engine, the reference with llama-server's defaults (all physical cores, 4 slots that share one context, and an
idle slot's content saved and cleared once another request begins).

A figure is tokens written a second, from the first request sent to the last answer's end, so it includes reading the
prompts; none of them was asked before. "Writing" leaves that out: it counts from the first token. Ratios are of the
same round: their median, and the 95 % interval of their geometric mean. Exit code 1 if the median of ctxgate's defaults
is below 1 on any kind of text. On SmolLM2 a token takes 5 ms, so what the gateway adds shows at four streams;
`python -m benchmarks.harness.widen` makes a model of the size that people use.

`--tuned` first runs `ctxgate tune --apply` on a config.yaml in the folder, unless it has done so before, then measures
every setting that tune might have chosen, with one stream. Exit code 1 unless the choice writes the code edit 1.5 times
as fast as llama-server's defaults, and is at most 5 % slower over all texts than the fastest setting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import yaml

from benchmarks.harness import load, proc, report
from benchmarks.throughput import completion_tokens
from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.engines.machine import this_machine
from gateway.features.evaluation.tune import kept
from gateway.features.evaluation.tune.scores import Estimate, estimate
from gateway.features.evaluation.tune.scores import same_words as says_the_same
from gateway.features.evaluation.tune.settings import changed, described
from gateway.features.evaluation.tune.texts import TEXTS
from gateway.upstream import Response, Upstream
from gateway.wire.chat import ChatRequest

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = ROOT / "gateway/engines/xllamacpp_server.py"
WEIGHTS = ROOT / "_models/smollm2-135m-instruct.gguf"
WINDOW = 8192
START_SECONDS = 120.0
ANSWER_SECONDS = 300.0
MARK = 7_391_058
"""The number of the requests of which ctxgate's own requests are learnt; others get their number in its place."""

REFERENCE, DEFAULTS = "llama-server", "ctxgate"

SETTINGS: Mapping[str, Mapping[str, object]] = {
    DEFAULTS: {},
    "1 thread": {"threads": 1},
    "flash attention off": {"flash_attention": False},
    "KV q8_0": {"kv_cache_type": "q8_0"},
    "unified KV": {"args": ["--kv-unified", "--kv-unified-per-slot", str(WINDOW)]},
    "1 slot": {"parallel": 1},
    "2 slots": {"parallel": 2},
    "no speculation": {"draft": {"ngram": False}},
    "8 drafted": {"draft": {"ngram": True, "tokens": 8}},
    **{kind: {"args": ["--spec-type", kind]} for kind in ("ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")},
}

Case = tuple[str, int]
"""A kind of text, and the number of streams."""
CHAT = "/v1/chat/completions"
Asked = tuple[str, bytes]
"""A path and a body."""


@dataclass
class Server:
    """A server to ask, and what it did. requests: kind of text → the request for MARK."""

    name: str
    port: int
    requests: Mapping[str, Asked]
    speeds: dict[Case, list[float]] = field(default_factory=dict)
    writing: dict[Case, list[float]] = field(default_factory=dict)
    firsts: dict[Case, list[float]] = field(default_factory=dict)
    said: dict[tuple[str, int], str] = field(default_factory=dict)

    async def answer(self, kind: str, streams: int, first: int) -> None:
        """Answers `streams` requests at once, with the numbers from `first` on; notes the figures."""
        clients = [await load.Client.connect(self.port) for _ in range(streams)]
        began, heard = time.perf_counter(), [0.0] * streams
        answers = []
        path, request = self.requests[kind]
        for place, client in enumerate(clients):
            client.on_part = lambda part, place=place: _hear(part, heard, place)  # type: ignore[misc]
            answers.append(client.send(request.replace(str(MARK).encode(), str(first + place).encode()), path))
        async with asyncio.timeout(ANSWER_SECONDS):
            bodies = await asyncio.gather(*answers)
        took = time.perf_counter() - began
        for client in clients:
            client.close()
        case, tokens, first_token = (
            (kind, streams),
            sum(map(completion_tokens, bodies)),
            statistics.median(heard) - began,
        )
        self.speeds.setdefault(case, []).append(tokens / took)
        self.writing.setdefault(case, []).append((tokens - streams) / (took - first_token))
        self.firsts.setdefault(case, []).append(first_token)

    async def say(self, kind: str, number: int) -> None:
        """Answers a request whose prompt it reads anew; notes the words."""
        path, request = self.requests[kind]
        body = {**json.loads(request.replace(str(MARK).encode(), str(number).encode())), "cache_prompt": False}
        client = await load.Client.connect(self.port)
        async with asyncio.timeout(ANSWER_SECONDS):
            self.said[kind, number] = text_of(await client.send(json.dumps(body).encode(), path))
        client.close()


_SAID = re.compile(rb'"(content|text|arguments)":"[^"]|"tool_calls"')


def _hear(part: bytes, heard: list[float], place: int) -> None:
    if not heard[place] and _SAID.search(part):
        heard[place] = time.perf_counter()


def text_of(stream: bytes) -> str:
    """The words of an SSE body; those of a call where it has one."""
    text = ""
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                delta = choice.get("delta") or {"content": choice.get("text")}
                text += delta.get("content") or ""
                text += "".join(call["function"].get("arguments") or "" for call in delta.get("tool_calls", []))
    return text


def requests(model: str, tokens: int) -> dict[str, Asked]:
    """As a client of the gateway sends them."""
    more = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    return {kind: (CHAT, json.dumps({**make(MARK, tokens), **more}).encode()) for kind, make in TEXTS.items()}


async def upstream_requests(port: int, tokens: int) -> dict[str, Asked]:
    """As the gateway sends them to an engine, which listens on `port`."""
    model = Model(
        name=REFERENCE,
        runtime="llama.cpp",
        base_url=f"http://127.0.0.1:{port}",
        tool_call_format="pythonic",
        context_window=WINDOW,
    )
    config = Config(source=Path("config.yaml"), active_model=REFERENCE, models={REFERENCE: model})
    sent: list[Asked] = []
    post = Upstream.request

    async def spy(upstream: Upstream, head: bytes, body: bytes = b"") -> Response:
        path = head.split(maxsplit=2)[1].decode()
        if path in (CHAT, "/v1/completions"):
            sent.append((path, body))
        return await post(upstream, head, body)

    found = {}
    async with Gateway(config) as gateway:
        with patch.object(Upstream, "request", spy):
            for kind, (_, body) in requests(REFERENCE, tokens).items():
                with await gateway.chat(ChatRequest.parse(body)) as run:
                    while await run.payloads():
                        pass
                path, last = sent[-1]
                fields = msgspec.json.decode(last)
                fields.pop("id_slot", None)
                found[kind] = path, json.dumps({**fields, "stream_options": {"include_usage": True}}).encode()
    return found


async def gateway_load(port: int, clients: int) -> None:
    """Clients that ask the model that repeats, for streams, ten times a second each, until they are cancelled."""
    said = [{"role": "user", "content": "What goes around comes around. " * 8}]
    body = json.dumps({"model": "echo", "messages": said, "stream": True}).encode()

    async def ask() -> None:
        client = await load.Client.connect(port)
        while True:
            await client.send(body)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(ask() for _ in range(clients)))


def reference_command(program: Path | None, weights: Path, port: int) -> list[str]:
    if program is not None:
        return [str(program), "--model", str(weights), "--port", str(port)]
    cores = str(this_machine().cores)
    own = ["--threads", cores, "--parallel", "4", "--kv-unified", "--cache-idle-slots", "--warmup", "--ctx-size", "0"]
    return [sys.executable, "-P", str(EMBEDDED), "--model", str(weights), "--port", str(port), *own]


def named(setting: str) -> str:
    """The model that has this setting."""
    return re.sub(r"[^a-z0-9.]+", "-", setting.lower()).strip("-")


def gateway_config(weights: Path, settings: Mapping[str, Mapping[str, object]], folder: Path) -> str:
    model = {
        "runtime": "llama.cpp",
        "path": str(weights),
        "context_window": WINDOW,
        "tool_call_format": "pythonic",
        "pinned": True,
    }
    models: dict[str, Any] = {named(name): {**model, **keys} for name, keys in settings.items()}
    made = {
        "active_model": DEFAULTS,
        "models": {**models, "echo": {"runtime": "echo"}},
        "engines": {"memory_budget": "18 GB"},
        "state_dir": str(folder / "state"),
    }
    return yaml.safe_dump(made)


async def measure(servers: Sequence[Server], args: argparse.Namespace, port: int) -> None:
    beside = asyncio.create_task(gateway_load(port, args.load)) if args.load else None
    number = 1000
    for round in range(args.rounds + 1):
        for kind in args.texts:
            for streams in args.streams if round else (1,):  # round 0 loads and warms up
                turn = [*servers[round % len(servers) :], *servers[: round % len(servers)]]
                for server in turn:
                    await server.answer(kind, streams, number)
                number += streams
        if not round:
            for server in servers:
                server.speeds, server.writing, server.firsts = {}, {}, {}
        print(f"round {round} of {args.rounds}", file=sys.stderr, flush=True)
    # What a cache holds of a prompt was read in other batches, whose sums round differently: without it, servers that
    # compute alike have the same words. Prose is drawn, and a call's words are written anew.
    for kind in sorted({"code edit", "JSON"}.intersection(args.texts)):
        for number in range(1, args.alike + 1):
            for server in servers:
                await server.say(kind, number)
    if beside is not None:
        beside.cancel()
        await asyncio.wait([beside])


def ratios(server: Server, base: Server, case: Case) -> list[float]:
    return [own / other for own, other in zip(server.speeds[case], base.speeds[case], strict=True)]


def writing(server: Server, base: Server, case: Case) -> float:
    return statistics.median(own / other for own, other in zip(server.writing[case], base.writing[case], strict=True))


def over_all(server: Server, base: Server) -> Estimate:
    """How many times as fast, over all that both answered. Each round is one sample."""
    found = [ratios(server, base, case) for case in base.speeds]
    return estimate(statistics.geometric_mean(each) for each in zip(*found, strict=True))


def table(servers: Sequence[Server]) -> str:
    base = servers[0]
    lines = [
        "| text | streams | settings | tokens/s | first token, ms | times llama-server's | 95 % interval | writing |",
        "| --- | --: | --- | --: | --: | --: | --- | --: |",
    ]
    for case in base.speeds:
        for server in servers:
            found = ratios(server, base, case)
            speed, first = statistics.median(server.speeds[case]), statistics.median(server.firsts[case]) * 1000
            spread = estimate(found)
            times = f"{statistics.median(found):.2f} | {spread.low:.2f} to {spread.high:.2f}"
            wrote = writing(server, base, case)
            lines.append(
                f"| {case[0]} | {case[1]} | {server.name} | {speed:.1f} | {first:.0f} | {times} | {wrote:.2f} |"
            )
    return "\n".join(lines)


def same_words(servers: Sequence[Server]) -> str:
    """Of the answers at temperature 0 whose prompts were read anew, how many have the words of the first server's."""
    base, *others = servers
    shares = (f"{server.name} {sum(server.said[key] == text for key, text in base.said.items())}" for server in others)
    return f"Answers at temperature 0 with the words of {base.name}, of {len(base.said)}: {', '.join(shares)}."


def tuned(args: argparse.Namespace) -> tuple[dict[str, Mapping[str, object]], str]:
    """Runs `ctxgate tune --apply`. Returns all settings that it could choose from, and the name of its choice."""
    folder: Path = args.tuned.resolve()
    file = folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    kept_in = kept.path_of(folder / "state", DEFAULTS)
    if not kept_in.exists():
        file.write_text(gateway_config(args.model, {DEFAULTS: {}}, folder))
        command = [sys.executable, "-m", "gateway", "tune", DEFAULTS, "--apply", "--no-smoke", "--config", str(file)]
        limits = ["--minutes", str(args.minutes), "--tokens", str(args.tokens)]
        subprocess.run([*command, *limits], check=True, env=environment(args))
    found = kept.read(kept_in)
    assert found is not None
    own, *_ = found.results
    able = [each for each in found.results if each.readings and not each.failed and says_the_same(each, own)]
    names = {id(each): described(changed(each.keys, own.keys)) or DEFAULTS for each in able}
    settings: dict[str, Mapping[str, object]] = {names[id(each)]: changed(each.keys, own.keys) for each in able}
    return settings, names[id(found.results[found.chosen])]


def environment(args: argparse.Namespace) -> dict[str, str]:
    """In which ctxgate finds the program that is measured."""
    path = [str(args.llama_server.parent)] if args.llama_server is not None else []
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": os.pathsep.join([*path, os.environ["PATH"]])}


async def run(args: argparse.Namespace, settings: Mapping[str, Mapping[str, object]], folder: Path) -> list[Server]:
    with ExitStack() as stack:
        own, port = proc.free_port(), proc.free_port()
        command = reference_command(args.llama_server, args.model, own)
        reference = proc.Server.start(command, own, folder / "llama-server.log")
        stack.callback(reference.stop)
        await asyncio.to_thread(reference.wait_ready, "/health", START_SECONDS)
        (folder / "config.yaml").write_text(gateway_config(args.model, settings, folder))
        serve = [sys.executable, "-m", "gateway", "serve", "--config", str(folder / "config.yaml"), "--port", str(port)]
        gateway = proc.Server.start(serve, port, folder / "log", env=environment(args), cwd=folder)
        stack.callback(gateway.stop)
        await asyncio.to_thread(gateway.wait_ready, "/health", START_SECONDS)
        servers = [Server(REFERENCE, own, await upstream_requests(own, args.tokens))]
        servers += [Server(name, port, requests(named(name), args.tokens)) for name in settings]
        await measure(servers, args, port)
    return servers


def goals(servers: Sequence[Server], choice: str | None) -> list[report.Goal]:
    """choice: the setting that tune chose, if it was asked."""
    base, own, *_ = servers
    if choice is None:
        found = {case: statistics.median(ratios(own, base, case)) for case in base.speeds}
        return [
            report.Goal(f"{kind}, streams: {streams}, times llama-server's speed", ratio, ">=", 1.0)
            for (kind, streams), ratio in found.items()
        ]
    chosen = next(server for server in servers if server.name == choice)
    fastest = max(servers[1:], key=lambda server: over_all(server, base).mean)
    apart = over_all(chosen, fastest)
    print(
        f"tune chose: {choice}. The fastest of {len(servers) - 1} settings over all texts: {fastest.name}; "
        f"the choice has {apart.mean:.3f} times its speed (95 % interval: {apart.low:.3f} to {apart.high:.3f}).\n"
    )
    edit = writing(chosen, base, ("code edit", 1))
    return [
        report.Goal("writing the code edit, the choice, times llama-server's speed", edit, ">=", 1.5),
        report.Goal("all texts, the choice, times the fastest setting's speed", apart.mean, ">=", 0.95),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.engine_defaults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-server", type=Path, metavar="PROGRAM", help="a file of the name llama-server")
    parser.add_argument("--model", type=Path, default=WEIGHTS, help="a GGUF file (default: SmolLM2)")
    parser.add_argument("--settings", nargs="*", default=[], help=f"all, or some of: {', '.join([*SETTINGS][1:])}")
    parser.add_argument("--tuned", type=Path, metavar="FOLDER", help="compare tune's choice with all settings")
    parser.add_argument("--minutes", type=float, default=6.0, help="for tune (default: 6)")
    parser.add_argument("--texts", nargs="*", default=[*TEXTS], choices=[*TEXTS])
    parser.add_argument("--streams", nargs="*", type=int, default=[1, 4])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer at most (default: 128)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alike", type=int, default=3, help="answers of a kind whose words to compare (default: 3)")
    parser.add_argument("--load", type=int, default=0, help="clients that ask the gateway for other things meanwhile")
    args = parser.parse_args(arguments)
    names = [DEFAULTS, *([*SETTINGS][1:] if args.settings == ["all"] else args.settings)]
    settings, choice = {name: SETTINGS[name] for name in names}, None
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if args.tuned is not None:
            args.streams = [1]
            settings, choice = tuned(args)
        servers = asyncio.run(run(args, settings, folder))
    which = args.llama_server or "the embedded engine with llama-server's defaults"
    print(
        f"{proc.machine()}; {time.strftime('%Y-%m-%d')}; load {os.getloadavg()[0]:.1f}; {args.model.name}; "
        f"llama-server: {which}; {args.rounds} rounds; at most {args.tokens} tokens an answer; "
        f"{args.load} other clients.\n\n{table(servers)}\n\n{same_words(servers)}\n"
    )
    found = goals(servers, choice)
    print("\n".join(map(str, found)))
    return 1 if any(goal.met is False for goal in found) else 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

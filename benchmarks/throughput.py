"""Tokens a second of a real engine, asked through the gateway and asked directly.

    python benchmarks/throughput.py                         # the test model, the hardest case
    python benchmarks/throughput.py --model SmolLM2.gguf --tokens 128

llama.cpp (the wheel xllamacpp, one thread, a core of its own) answers the same streamed request in
turns through both ways. The smaller the model, the more a chunk's way through the gateway weighs.
Exit code 1 when the gateway keeps less than 98 % of the engine's speed.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, too

from benchmarks.harness import load, proc, report
from benchmarks.harness.answers import MODEL, BadAnswer
from benchmarks.harness.stacks import REPOSITORY, STACKS, Place

ENGINE = REPOSITORY / "gateway/engines/xllamacpp_server.py"
TEST_MODEL = REPOSITORY / "_models/test/ctxgate-test-tools.gguf"


def request_body(tokens: int) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me a long story about a lighthouse."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,  # llama.cpp's own: every answer has exactly max_tokens
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()


def completion_tokens(stream: bytes) -> int:
    """From the usage that a whole SSE body ends with; raises `BadAnswer`."""
    events = [line[5:].strip() for line in stream.splitlines() if line.startswith(b"data:")]
    if not events or events[-1] != b"[DONE]":
        raise BadAnswer(f"no [DONE] at the end, but {stream[-200:]!r}")
    for event in reversed(events[:-1]):
        if usage := json.loads(event).get("usage"):
            return int(usage["completion_tokens"])
    raise BadAnswer(f"no usage in the stream: {stream[-300:]!r}")


async def tokens_per_second(port: int, streams: int, tokens: int) -> float:
    """All streams together, from the first request sent to the last `[DONE]`."""
    clients = [await load.Client.connect(port) for _ in range(streams)]
    begun = time.perf_counter()
    async with asyncio.timeout(300):
        answers = await asyncio.gather(*(client.send(request_body(tokens)) for client in clients))
    took = time.perf_counter() - begun
    for client in clients:
        client.close()
    counts = [completion_tokens(answer) for answer in answers]
    if counts != [tokens] * streams:
        raise BadAnswer(f"{counts} tokens, not {tokens} in each of {streams} streams")
    return sum(counts) / took


def measure(model: Path, *, streams: Sequence[int], tokens: int, rounds: int) -> dict[int, tuple[list[float], ...]]:
    """For each number of streams: tokens a second of each round, bare and through the gateway."""
    cores = sorted(os.sched_getaffinity(0))
    near, far = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    with tempfile.TemporaryDirectory() as name, proc.on_core(near):
        folder, stack, engine_port = Path(name), STACKS["ctxgate"], proc.free_port()
        place = Place(engine_port, proc.free_port(), folder, folder)
        command = [sys.executable, str(ENGINE), "--model", str(model), "--port", str(engine_port)]
        command += ["--parallel", str(max(streams))]
        with proc.on_core(far):
            engine = proc.Server.start(command, engine_port, folder / "engine.log")
        try:
            engine.wait_ready("/health", 60.0)
            gateway = proc.Server.start(stack.command(place), place.port, folder / "log", env=stack.env, cwd=folder)
            try:
                gateway.wait_ready(stack.ready, stack.start_timeout)
                found: dict[int, tuple[list[float], ...]] = {}
                for count in streams:
                    ways: dict[int, list[float]] = {engine_port: [], place.port: []}
                    for number in range(rounds + 1):
                        for port, speeds in ways.items():
                            speed = uvloop.run(tokens_per_second(port, count, tokens))
                            if number:  # round 0 warms up
                                speeds.append(speed)
                    found[count] = tuple(ways.values())
                return found
            finally:
                gateway.stop()
        finally:
            engine.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TEST_MODEL, help="a GGUF file (default: the test model)")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer (default: 256)")
    parser.add_argument("--streams", default="1,4", help="streams at once (default: 1,4)")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args(arguments)
    streams = [int(count) for count in args.streams.split(",")]
    found = measure(args.model, streams=streams, tokens=args.tokens, rounds=args.rounds)
    print(f"{proc.machine()}; {time.strftime('%Y-%m-%d')}; {args.model.name}, {args.tokens} tokens an answer, "
          f"{args.rounds} rounds, interleaved, medians.\n")  # fmt: skip
    print("| streams | engine, tokens/s | through the gateway | kept |\n| ------: | ---------------: | ---: | ---: |")
    goals = []
    for count, (bare, through) in found.items():
        engine, gateway = statistics.median(bare), statistics.median(through)
        kept = gateway / engine
        print(f"| {count} | {engine:,.0f} | {gateway:,.0f} | {kept:.3f} |")
        goals.append(report.Goal(f"share of the engine's speed kept, {count} streams", kept, ">=", 0.98))
    print("\n" + "\n".join(map(str, goals)))
    return 1 if any(goal.met is False for goal in goals) else 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

"""A stream beside a request that reads a long prompt on the same engine: `python -m benchmarks.beside`.

While an engine reads a step of one prompt, its other answers wait. A stream runs; once it has written some tokens, a
request with a prompt of `--bytes` comes, which nobody has read. Figures are the stream's gaps between two tokens while
that prompt is read, and how long reading it takes: behind ctxgate as it comes, behind ctxgate with llama.cpp's steps of
512 tokens, and on the engine alone with llama-server's defaults, in rounds that alternate.

`--busy` is for a machine with other work: each engine has one thread, and all figures are seconds of its processor
time, which other processes don't change much.

Needs SmolLM2 in _models, or `--weights` of `benchmarks.harness.weights`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from benchmarks.agents import PATIENCE, SMOLLM2, Bare, CtxgateOnStop, Json, Stack, first_token, recorded, weights_of
from benchmarks.harness import proc
from benchmarks.harness.stacks import compile_gateway
from benchmarks.harness.weights import WEIGHTS

SLOTS = 4
BUSY_THREADS = 1
Clock = Callable[[], float]
BEGUN_TOKENS, STREAM_TOKENS = 8, 2000


class AsItComes(CtxgateOnStop):
    name = "ctxgate"


class Large(CtxgateOnStop):
    name = "ctxgate, batch: 512"

    def config(self) -> Json:
        made = super().config()
        made["models"]["a"]["batch"] = 512
        return made


class Alone(Bare):
    name = "the engine alone"


@dataclass
class Figures:
    """Seconds. gaps: of the stream, while the other prompt was read. reading: until the other answer's first token.
    alone: the same without a stream."""

    gaps: list[float] = field(default_factory=list)
    reading: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)

    def row(self) -> str:
        middle = (statistics.median(seconds) for seconds in (self.gaps, self.reading, self.alone))
        cells = (max(self.longest), *middle)
        return " | ".join(f"{seconds:.2f} s" for seconds in cells)


class Stream:
    """An answer that goes on until `stop`; notes when its tokens came."""

    def __init__(self, url: str, number: int, clock: Clock) -> None:
        self.times: list[float] = []
        self._clock = clock
        self.begun = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, number))
        self._thread.start()

    def _run(self, url: str, number: int) -> None:
        messages = [{"role": "user", "content": f"Count from {number} to a million, with a word on each."}]
        body = {"model": "a", "messages": messages, "max_tokens": STREAM_TOKENS, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE) as answer:
            for line in answer.raise_for_status().iter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                    self.times.append(self._clock())
                    if len(self.times) > BEGUN_TOKENS:
                        self.begun.set()
                if self._stop.is_set():
                    return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def processor_time(stack: Stack) -> Clock:
    """Of the engine of a stack that runs, in seconds."""
    pid = stack.processes[0].pid if stack.processes else engine_of(stack.ensure("a"))
    process = psutil.Process(pid)

    def clock() -> float:
        used = process.cpu_times()
        return float(used.user + used.system)

    return clock


def engine_of(url: str) -> int:
    (model,) = httpx.get(f"{url}/-/status").raise_for_status().json()["models"]
    return int(model["engine"]["pid"])


def measure(stack: Stack, figures: Figures, size: int, number: int, *, busy: bool) -> None:
    url = stack.ensure("a")
    clock = processor_time(stack) if busy else time.monotonic
    figures.alone.append(reading(url, clock, size, f"Alone {number}")[1])
    stream = Stream(url, number, clock)
    try:
        if not stream.begun.wait(PATIENCE):
            raise TimeoutError(f"{stack.name}: the stream hasn't begun")
        began, took = reading(url, clock, size, f"Round {number}")
        ended = began + took
    finally:
        stream.stop()
    times = [each for each in stream.times if began <= each <= ended]
    gaps = [after - before for before, after in zip([began, *times], [*times, ended], strict=True)]
    figures.gaps += gaps
    figures.longest.append(max(gaps))
    figures.reading.append(took)


def reading(url: str, clock: Clock, size: int, first: str) -> tuple[float, float]:
    """When a request with an unread prompt was sent, and the time until its answer's first token."""
    system = recorded("codex", size)[0][0]["content"]
    messages = [{"role": "system", "content": f"{first}. {system}"}, {"role": "user", "content": "Hi"}]
    began = clock()
    first_token(url, "a", messages, answer_tokens=1)
    return began, clock() - began


def rounds(stacks: list[Stack], count: int, size: int, *, busy: bool) -> Mapping[str, Figures]:
    found = {stack.name: Figures() for stack in stacks}
    for stack in stacks:
        first_token(stack.ensure("a"), "a", [{"role": "user", "content": "Hi"}])
    for number in range(count):
        for stack in stacks if number % 2 else reversed(stacks):
            measure(stack, found[stack.name], size, number, busy=busy)
            sys.stderr.write(f"{number} {stack.name}: {found[stack.name].row()}\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="default: 4")
    parser.add_argument("--bytes", type=int, default=6000, help="of the prompt (default: 6000)")
    parser.add_argument("--busy", action="store_true", help="one thread, and seconds of processor time")
    parser.add_argument("--weights", choices=[*WEIGHTS], help="default: SmolLM2 in _models")
    asked = parser.parse_args()
    weights = weights_of(asked.weights)
    if not weights.exists():
        sys.exit(f"there is no {SMOLLM2}: ctxgate pull smollm2-135m-instruct")
    threads = BUSY_THREADS if asked.busy else os.cpu_count() or 1
    compile_gateway()
    print(f"{proc.machine()}; {weights.stem}; {time.strftime('%Y-%m-%d')}; load {os.getloadavg()[0]:.1f}.\n")
    with tempfile.TemporaryDirectory() as name:
        stacks: list[Stack] = []
        for kind in (AsItComes, Large, Alone):
            folder = Path(name) / kind.__name__
            folder.mkdir()
            stacks.append(kind(folder, {"a": weights}, SLOTS, threads))
        try:
            found = rounds(stacks, asked.rounds, asked.bytes, busy=asked.busy)
        finally:
            for stack in stacks:
                stack.end(hard=False)
    print("| | longest gap | median gap | reading | reading alone |\n|---|---|---|---|---|")
    for name, figures in found.items():
        print(f"| {name} | {figures.row()} |")
    return 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

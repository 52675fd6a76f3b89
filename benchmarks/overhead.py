"""What a proxy adds in front of an engine: CPU for each request and each streamed chunk, time to the
first token, start, memory; the gateway beside nginx, two Rust routers and LiteLLM.

    python benchmarks/overhead.py                          # everything, about 10 minutes
    python benchmarks/overhead.py --stacks nginx,ctxgate --quick

The stacks take turns (A B C, A B C, ...), each round starts them anew, figures are medians over the
rounds. The peers are installed on first use into ~/.cache/ctxgate/bench. The table goes to
stdout as Markdown, progress to stderr. Exit code 1 when a goal was measured and missed.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, too

from benchmarks.harness import load, proc, report
from benchmarks.harness.answers import BadAnswer, Script
from benchmarks.harness.stacks import REPOSITORY, STACKS, Place, Stack, Unavailable
from gateway.config.folders import USER

T = TypeVar("T")
CONNECTIONS = 8
EVERY_MS = 5.0
FIRST_TOKENS = 400
"""Streams; the first few dozen run slower than all later ones."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(work: Awaitable[T], timeout: float = 120.0) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await work

    return uvloop.run(bounded())


def measure(stack: Stack, upstream: int, venv: Path, *, seconds: float, core: int | None) -> dict[str, float]:
    """One round of one stack: a start with a configuration that it sees for the first time, and another one with the
    same, under load to its end. Raises `Failed`."""
    chunks = max(40, int(stack.effort * seconds * 1000 / EVERY_MS))
    with tempfile.TemporaryDirectory() as folder:
        place = Place(upstream, proc.free_port(), Path(folder), venv)
        command = stack.command(place)
        # Not in the table: the CPU time, which is what a start takes however busy the machine.
        server, edited, edited_cpu = started(stack, command, place, core)
        server.stop()
        server, again, again_cpu = started(stack, command, place, core)
        found = {"start_edited": edited, "start_edited_cpu": edited_cpu, "start": again, "start_cpu": again_cpu}
        try:

            def cpu() -> float:
                return proc.cpu_seconds(server.pids())

            run(load.check(place.port))
            server.wait_idle(30.0, quiet=0.3)
            direct = run(load.first_token(upstream, times=FIRST_TOKENS))
            found["ttft"] = (run(load.first_token(place.port, times=FIRST_TOKENS)) - direct) * 1000
            found["request"] = run(load.requests(place.port, cpu, connections=CONNECTIONS, seconds=seconds)).micros
            for count in report.PACED:
                script = Script(chunks, EVERY_MS)
                found[f"paced_{count}"] = run(
                    load.streams(place.port, upstream, cpu, count=count, script=script)
                ).micros
            script = Script(chunks * 4)
            found["unpaced"] = run(load.streams(place.port, upstream, cpu, count=CONNECTIONS, script=script)).micros
            found["rss"] = proc.rss_mb(server.pids())
            return found
        except (BadAnswer, TimeoutError, OSError, ExceptionGroup) as wrong:
            first: Exception = wrong
            while isinstance(first, ExceptionGroup):  # of tasks that ran side by side
                first = first.exceptions[0]
            raise proc.Failed(f"{first!r}; log: {server.last_words()}") from wrong
        finally:
            server.stop()


def started(stack: Stack, command: Sequence[str], place: Place, core: int | None) -> tuple[proc.Server, float, float]:
    """The stack once it has answered 200, and the seconds until then: of the clock, and of CPU. Raises `Failed`."""
    with proc.on_core(core):
        spawned = time.monotonic()
        server = proc.Server.start(command, place.port, place.folder / "log", env=stack.env, cwd=place.folder)
    try:
        server.wait_ready(stack.ready, stack.start_timeout)
        return server, time.monotonic() - spawned, proc.cpu_seconds(server.pids())
    except BaseException:
        server.stop()
        raise


@dataclass
class Comparison:
    """What a run found, by the stacks' names."""

    labels: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    others: float = 0.0
    """Share of the machine that other processes used meanwhile."""

    def medians(self) -> dict[str, dict[str, float]]:
        return {name: report.medians(rounds) for name, rounds in self.rounds.items() if name not in self.failures}

    def spread(self, key: str) -> float:
        """The widest spread of one reading among the stacks."""
        return max((report.spread([r[key] for r in rounds]) for rounds in self.rounds.values()), default=0.0)


def compare(stacks: Sequence[Stack], *, rounds: int, seconds: float, pin: bool, cache: Path) -> Comparison:
    """All stacks, round by round, on one upstream. A stack that fails drops out, with its reason."""
    comparison = Comparison()
    venvs: dict[str, Path] = {}
    for stack in stacks:
        say(f"{stack.name}: preparing")
        try:
            venvs[stack.name] = stack.prepare(cache)
            comparison.labels[stack.name] = stack.label
        except Unavailable as why:
            comparison.labels[stack.name], comparison.failures[stack.name] = stack.name, str(why)
    cores = sorted(os.sched_getaffinity(0))
    # The load and the upstream share one core, the proxy has another for itself.
    near, far = (cores[0], cores[1]) if pin and len(cores) > 1 else (None, None)
    begun, machine_before, own_before = time.monotonic(), proc.machine_cpu_seconds(), proc.own_cpu_seconds()
    with tempfile.TemporaryDirectory() as folder, proc.on_core(near):
        upstream_port = proc.free_port()
        command = [sys.executable, "-m", "benchmarks.harness.upstream", "--port", str(upstream_port)]
        upstream = proc.Server.start(command, upstream_port, Path(folder) / "log", cwd=REPOSITORY)
        try:
            upstream.wait_ready("/v1/models", 20.0)
            for number in range(1, rounds + 1):
                for stack in stacks:
                    if stack.name in comparison.failures:
                        continue
                    try:
                        found = measure(stack, upstream_port, venvs[stack.name], seconds=seconds, core=far)
                    except proc.Failed as why:
                        comparison.failures[stack.name] = str(why)
                        say(f"round {number}/{rounds} {stack.name}: {why}")
                        continue
                    comparison.rounds.setdefault(stack.name, []).append(found)
                    figures = "  ".join(f"{key} {value:.4g}" for key, value in found.items())
                    say(f"round {number}/{rounds} {stack.name}: {figures}")
        finally:
            upstream.stop()
    others = (proc.machine_cpu_seconds() - machine_before) - (proc.own_cpu_seconds() - own_before)
    comparison.others = max(0.0, others / (time.monotonic() - begun) / (os.cpu_count() or 1))
    return comparison


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", default=",".join(STACKS), help="which, in which order (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each kind of load (default: 2)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 0.5 s: does it work, not how fast")
    parser.add_argument("--no-pin", action="store_true", help="don't give the proxy a core of its own")
    parser.add_argument("--json", type=Path, help="write every reading of every round to this file")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="the peers' venvs (default: %(default)s)")
    args = parser.parse_args(arguments)
    names = args.stacks.split(",")
    if unknown := [name for name in names if name not in STACKS]:
        parser.error(f"unknown stack {', '.join(unknown)}; there are {', '.join(STACKS)}")
    rounds, seconds = (2, 0.5) if args.quick else (args.rounds, args.seconds)

    comparison = compare(
        [STACKS[name] for name in names], rounds=rounds, seconds=seconds, pin=not args.no_pin, cache=args.cache
    )
    medians = comparison.medians()
    goals = report.goals(medians)
    print(f"{proc.machine()}; {time.strftime('%Y-%m-%d')}; {rounds} rounds of {seconds:g} s, interleaved, medians.")
    print(f"Other processes used {comparison.others:.0%} of the machine meanwhile. Widest spread between quartiles: "
          f"requests {comparison.spread('request'):.0%}, paced chunks "
          f"{max(comparison.spread(f'paced_{n}') for n in report.PACED):.0%}.\n")  # fmt: skip
    print(report.table(comparison.labels, medians, comparison.failures), end="\n\n")
    print("\n".join(map(str, goals)))
    if args.json:
        args.json.write_text(json.dumps({"rounds": comparison.rounds, "failures": comparison.failures}, indent=1))
    return 1 if any(goal.met is False for goal in goals) else 0


def default_cache() -> Path:
    return USER.user_cache_path / "bench"


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

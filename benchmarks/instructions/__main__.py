"""User-space instructions of the gateway for each request and each streamed chunk, counted by valgrind.

    python -m benchmarks.instructions            # compare with benchmarks/instructions.json
    python -m benchmarks.instructions --update   # record
    python -m benchmarks.instructions --only request keyed limited together

Counts repeat within a fraction of a percent on a busy machine, so they make a gate where times
can't. They differ between builds of the interpreter and of the libraries below it: the record is
kept by these, and where there is none for this one, only the goals are held. Exit code 1 when a
goal is missed or a count is more than 5 % above its record; 2 when nothing could be counted.

The last three kinds of work send API keys. Two keys have every limit on requests and tokens, and with
one of those every request names a service tier: what that costs has goals of its own.
"""

import argparse
import asyncio
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs as a folder, too

from benchmarks.harness import load, proc
from benchmarks.harness.answers import BadAnswer, Script
from benchmarks.harness.stacks import REPOSITORY, STACKS, STATE, Place
from gateway.server.keys import FILE, KeyFile
from gateway.wire.limits import Limits

RECORD = Path(__file__).resolve().parents[1] / "instructions.json"
MARGIN = 0.05
PAIRS = 3
LIMITS_SHARE = 0.06
"""What limits may add to a request of a key without them. At first they added 0.28, later 0.037 in one object that
nobody could read. It is the difference of two counts, which by chance differs by 0.014 of a request."""
TOGETHER_SHARE = 0.03
"""What limits, a tier and the sums of the usage may add to what a request took before there were any (BEFORE)."""
BEFORE = "keyed, before limits, tiers and usage"
"""Where the record has what "keyed" took in the commit before they came. It grows with the record of "request", since
what later features add to every request isn't theirs."""
LIMITS = Limits(requests_per_minute=10**6, tokens_per_minute=10**9, tokens_per_day=10**12, parallel=100)
LIBRARIES = ("uvicorn", "httptools", "uvloop", "msgspec")
Work = Callable[[int, int, int, str], Awaitable[None]]
"""Does the n-fold of one kind of work: gateway's port, upstream's port, n, API key."""


@dataclass(frozen=True)
class Kind:
    """limits: of the API key that is sent; None: no server that the work reaches needs one."""

    key: str
    title: str
    goal: int | None
    few: int
    many: int
    work: Work
    limits: Limits | None = None


async def _requests(port: int, upstream: int, count: int, key: str) -> None:
    await load.in_turn(port, count, key)


async def _counted_requests(port: int, upstream: int, count: int, key: str, tier: str | None = None) -> None:
    """With what the gateway does for its books, which it else leaves for later."""
    await load.in_turn(port, count, key, tier)
    await load.get(port, "/metrics", key)


_tiered_requests = partial(_counted_requests, tier="priority")


async def _chunks(port: int, upstream: int, count: int, key: str) -> None:
    await load.one_by_one(port, upstream, Script(count))


async def _call_chunks(port: int, upstream: int, count: int, key: str) -> None:
    await load.one_by_one(port, upstream, Script(count, tool_call=True))


KINDS = (
    Kind("request", "a whole answer", 260_000, 20, 120, _requests),
    Kind("chunk", "a chunk of text through the pythonic normaliser", 75_000, 20, 220, _chunks),
    Kind("call_chunk", "a chunk within a tool call's argument", None, 20, 220, _call_chunks),
    Kind("keyed", "a whole answer for an API key, with the books", None, 20, 120, _counted_requests, Limits()),
    Kind("limited", "the same for a key with limits", None, 20, 120, _counted_requests, LIMITS),
    Kind("together", "the same, and naming a service tier", None, 20, 120, _tiered_requests, LIMITS),
)
"""Those with keys come last: once there is one, every request needs one."""


class Counted:
    """The gateway under callgrind. `count` is the instructions that a piece of work took.

    What an idle server spends on its clock is taken off, else a slow machine would count more.
    """

    def __init__(self, server: proc.Server, out: Path) -> None:
        self._server = server
        self._out = out
        self._dumps = 0
        self._idle_per_second = 0.0
        self._idle_per_second = self.count(asyncio.sleep(2)) / 2

    def count(self, work: Awaitable[None], timeout: float = 120.0) -> int:
        async def bounded() -> None:
            async with asyncio.timeout(timeout):
                await work

        self._dump()
        begun = time.monotonic()
        asyncio.run(bounded())
        took = time.monotonic() - begun
        return parse_total(self._dump()) - round(self._idle_per_second * took)

    def per_unit(self, kind: Kind, upstream: int, key: str) -> float:
        """The slope between few and many, free of what a connection or a stream costs once, and a first one. The median
        of PAIRS: what comes once a minute, such as a write to the store, falls into one of them at most."""

        def count(units: int) -> int:
            return self.count(kind.work(self._server.port, upstream, units, key))

        count(kind.few)
        slopes = [(count(kind.many) - count(kind.few)) / (kind.many - kind.few) for _ in range(PAIRS)]
        return median(slopes)

    def _dump(self) -> str:
        """Writes out what was counted since the last dump, and returns it."""
        pid = self._server.process.pid
        subprocess.run(["callgrind_control", "--dump", str(pid)], check=True, capture_output=True, timeout=60)
        self._dumps += 1
        return Path(f"{self._out}.{self._dumps}").read_text()


def parse_total(dump: str) -> int:
    """The instructions in a callgrind output file."""
    match = re.search(r"^(?:totals|summary): (\d+)", dump, re.MULTILINE)
    if match is None:
        raise ValueError("no totals in callgrind's output")
    return int(match[1])


def build() -> str:
    """What the counts depend on besides our own code."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    python = f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})"
    return f"{python}, {platform.machine()}, {libraries}"


def measure(kinds: Collection[Kind]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        upstream_port = proc.free_port()
        command = [sys.executable, "-m", "benchmarks.harness.upstream", "--port", str(upstream_port)]
        upstream = proc.Server.start(command, upstream_port, folder / "upstream.log", cwd=REPOSITORY)
        try:
            upstream.wait_ready("/v1/models", 20.0)
            stack, out = STACKS["ctxgate"], folder / "callgrind.out"
            place = Place(upstream_port, proc.free_port(), folder, folder)
            command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *stack.command(place)]
            environment = {**stack.env, "PYTHONHASHSEED": "0"}
            server = proc.Server.start(command, place.port, folder / "log", env=environment, cwd=folder)
            try:
                server.wait_ready(stack.ready, 300.0)
                server.wait_idle(300.0)
                counted, found = Counted(server, out), dict[str, int]()
                for kind in kinds:
                    key = _key(folder, kind.limits) if kind.limits is not None else load.KEY
                    found[kind.key] = round(counted.per_unit(kind, upstream_port, key))
                return found
            finally:
                server.stop()
        finally:
            upstream.stop()


def _key(folder: Path, limits: Limits) -> str:
    """A new API key of the gateway."""
    given = limits if limits != Limits() else None
    return KeyFile(folder / STATE / FILE).add(scopes=("models", "operations:read"), limits=given)[1]


def judge(counts: dict[str, int], recorded: dict[str, int] | None) -> tuple[list[str], bool]:
    """Lines of a table, and whether every count holds its goal and its record."""
    lines, good = [f"{'instructions for':<50}{'now':>10}{'goal':>10}{'recorded':>10}{'change':>9}"], True
    for kind in KINDS:
        if kind.key not in counts:
            continue
        now, before = counts[kind.key], (recorded or {}).get(kind.key)
        verdict = ""
        if kind.goal is not None and now > kind.goal:
            verdict = "  over the goal"
        elif before is not None and now > before * (1 + MARGIN):
            verdict = f"  more than {MARGIN:.0%} above the record"
        good = good and not verdict
        change = "" if before is None else f"{now / before - 1:+.1%}"
        goal, record = (f"{n:,}" if n is not None else "" for n in (kind.goal, before))
        lines.append(f"{kind.title:<50}{now:>10,}{goal:>10}{record:>10}{change:>9}{verdict}")
    shares = (
        ("what limits add", "limited", counts.get("keyed"), LIMITS_SHARE),
        ("what limits, a tier and usage added", "together", (recorded or {}).get(BEFORE), TOGETHER_SHARE),
    )
    for title, key, base, maximum in shares:
        if key in counts and base is not None:
            share = counts[key] / base - 1
            verdict = "" if share <= maximum else "  over the goal"
            lines.append(f"{title:<50}{share:>10.1%}{maximum:>10.1%}{verdict}")
            good = good and not verdict
    return lines, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="record these counts for this build")
    parser.add_argument("--only", nargs="+", choices=[kind.key for kind in KINDS], help="count these kinds of work")
    wanted = parser.parse_args()
    kinds = [kind for kind in KINDS if wanted.only is None or kind.key in wanted.only]
    if wanted.update and len(kinds) < len(KINDS):
        parser.error("--update records all kinds: leave --only out")
    if missing := [tool for tool in ("valgrind", "callgrind_control") if shutil.which(tool) is None]:
        print(f"{missing[0]} is missing: apt-get install valgrind", file=sys.stderr)
        return 2
    try:
        counts = measure(kinds)
    except (proc.Failed, BadAnswer, TimeoutError) as failure:
        print(f"nothing counted: {failure}", file=sys.stderr)
        return 2
    records: dict[str, dict[str, int]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    recorded = records.get(build())
    lines, good = judge(counts, recorded)
    print("\n".join(lines))
    if wanted.update:
        kept = {}
        if recorded is not None and BEFORE in recorded:
            grown = counts["request"] - recorded["request"] if "request" in counts and "request" in recorded else 0
            kept = {BEFORE: recorded[BEFORE] + grown}
        RECORD.write_text(json.dumps({**records, build(): {**counts, **kept}}, indent=2, sort_keys=True) + "\n")
        print(f"recorded for {build()}")
    elif recorded is None:
        print(f"NOT COMPARED: nothing is recorded for {build()}; --update records it. Only the goals were held.")
    return 0 if good else 1


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

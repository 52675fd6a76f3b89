"""What executing an object of /ctx costs beside curl: `python -m benchmarks.ctx_exec`.

All three ask the same running gateway the same thing, each as a process of its own, in turns: curl, the compiled
runner, Python's, curl, ... Nothing else may differ, so the model is the echo. Only the ratios hold elsewhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.features.ctx.launcher import launcher
from tests.ctx.served import Tree, tree

GOALS = {"compiled": 1.2, "Python": 1.5}
"""Times curl's, median against median."""

BODY = '{"model": "echo", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'


def measure(runs: int) -> dict[str, list[float]]:
    """Milliseconds of each run, in their order, by client."""
    curl = shutil.which("curl")
    if curl is None:
        raise SystemExit("curl isn't installed: there is nothing to compare with")
    with tempfile.TemporaryDirectory(prefix="cg") as name:
        config = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}}
        with tree(Path(name), config) as made:
            url = f"http://127.0.0.1:{made.port}/v1/chat/completions"
            entry = made.object("debug/echo")
            commands = {"curl": ([curl, "-sN", url, "-H", "content-type: application/json", "-d", BODY], b"[DONE]")}
            if not (made.root / "bin/cortexfs-object-runner").read_bytes().startswith(b"#!"):
                commands["compiled"] = [os.fspath(entry), "hello"], b'"status":"ok"'
            python = made.root / "bin/python-runner"
            python.write_bytes(launcher())
            python.chmod(0o500)
            commands["Python"] = [os.fspath(python), os.fspath(entry), "hello"], b'"status":"ok"'
            times: dict[str, list[float]] = {client: [] for client in commands}
            for number in range(runs + 3):
                for client, (command, last) in commands.items():
                    took = _timed(command, made, last)
                    if number >= 3:
                        times[client].append(took)
    return times


def _timed(command: Sequence[str], made: Tree, last: bytes) -> float:
    """Milliseconds from the process's start to its end."""
    began = time.perf_counter()
    done = subprocess.run(command, env=made.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    took = (time.perf_counter() - began) * 1000
    assert done.returncode == 0, done
    assert last in done.stdout, done
    return took


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="of each (default: 50)")
    times = measure(parser.parse_args(argv).runs)
    curl = statistics.median(times["curl"])
    missed = False
    for client, found in times.items():
        median = statistics.median(found)
        goal = GOALS.get(client)
        told = f"  {median / curl:.2f} times curl, goal at most {goal}" if goal is not None else ""
        missed = missed or (goal is not None and median / curl > goal)
        print(f"{client:9} {median:6.1f} ms median of {len(found)} ({min(found):.1f} to {max(found):.1f}){told}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

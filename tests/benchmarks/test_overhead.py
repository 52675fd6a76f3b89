"""`overhead.py` end to end on the cheapest stack, and the scripted upstream without any."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness import load, proc
from benchmarks.harness.answers import Script
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.harness.upstream", "--port", str(port)]
    server = proc.Server.start(command, port, tmp_path / "log", cwd=ROOT)
    try:
        server.wait_ready("/v1/models", PATIENCE)
        yield port
    finally:
        server.stop()


async def test_the_upstream_answers_what_the_clients_check(upstream: int) -> None:
    clock = iter([1.0, 3.0])
    async with asyncio.timeout(PATIENCE):
        await load.check(upstream)
        cost = await load.streams(upstream, upstream, lambda: next(clock), count=4, script=Script(20, 2.0))
        await load.one_by_one(upstream, upstream, Script(10))
        assert await load.first_token(upstream, times=3) > 0
    assert cost.cpu == 2.0
    # From the last stream opened to the first one ended: that one, and what had come of the others by then.
    assert 15 <= cost.count <= 4 * 22


async def test_paced_streams_keep_their_pace(upstream: int) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        begun = loop.time()
        await load.streams(upstream, upstream, lambda: 0.0, count=2, script=Script(40, 5.0))
    assert loop.time() - begun >= 0.2


@pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="nginx is not installed")
def test_nginx_is_measured_and_reported(tmp_path: Path) -> None:
    readings = tmp_path / "readings.json"
    command = [sys.executable, "benchmarks/overhead.py", "--stacks", "nginx", "--quick", "--json", str(readings)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    assert "| nginx 1." in run.stdout
    assert "MISSED" not in run.stdout
    rounds = json.loads(readings.read_text())["rounds"]["nginx"]
    assert len(rounds) == 2
    assert all(value > 0 for one in rounds for key, value in one.items() if key != "ttft")

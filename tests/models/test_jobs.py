"""Stopping a measurement whose program takes its time to end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.models import jobs as module
from gateway.features.models.jobs import Job, Jobs
from gateway.services import Services
from tests.patience import PATIENCE

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("2/2 · stopping", flush=True))
print(f"1/2 · {os.getpid()}", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
async def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jobs]:
    """Those of a gateway for which `python -m gateway` is STUBBORN. It gets three seconds between the signals."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    python, real = tmp_path / "python", sys.executable
    python.write_text(f'#!/bin/sh\n[ "$2" = gateway ] && exec {real} {tmp_path}/stubborn.py\nexec {real} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(module, "GRACE_SECONDS", 3.0)
    models = {"echo": Model(name="echo", runtime="echo")}
    config = Config(source=tmp_path / "config.yaml", active_model="echo", models=models, state_dir=tmp_path / "state")
    async with Gateway(config) as gateway:
        yield Jobs(cast(Services, SimpleNamespace(gateway=gateway, reloader=None)))


async def until_said(jobs: Jobs, *wanted: str) -> str:
    """What the newest job says, once it says something, and one of `wanted` if there are any."""
    async with asyncio.timeout(PATIENCE):
        while not (said := (await jobs.listed())[0].said) or (wanted and said not in wanted):  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.02)
    return said


async def being_stopped(jobs: Jobs) -> tuple[Job, int, asyncio.Task[Job]]:
    """A measurement, its program, and the request to stop it, which waits for the program."""
    job = await jobs.evaluate("echo", "smoke", None)
    pid = int(await until_said(jobs))
    stopping = asyncio.create_task(jobs.stop(job.id))
    await until_said(jobs, "stopping")
    return job, pid, stopping


async def test_stopped_twice_it_has_ended_before_another_may_begin(jobs: Jobs) -> None:
    job, pid, stopping = await being_stopped(jobs)
    assert (await jobs.stop(job.id)).state == "stopped"
    assert not psutil.pid_exists(pid)
    assert (await stopping).state == "stopped"
    other = await jobs.evaluate("echo", "smoke", None)
    await jobs.stop(other.id)


async def test_the_end_of_the_gateway_waits_for_it(jobs: Jobs) -> None:
    job, pid, stopping = await being_stopped(jobs)
    await jobs.aclose()
    assert not psutil.pid_exists(pid)
    assert (await stopping).state == job.state == "stopped"

"""Long work that the page, or a program, has begun: it survives its client, and a later one sees how far it is.

A download runs in this process, as `/api/pull` does. To measure a model, a job runs `ctxgate tune` or `ctxgate
model-test` under the engines' guard, so that it can't outlive the gateway. One download and one measurement run at a
time. The list is in the state folder: after a restart, a job that was cut off can be begun again, and a download
continues where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from gateway.config.folders import whole
from gateway.engines.process import Process
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderRateLimit
from gateway.features.models.endpoints import HUB, Pulls
from gateway.features.operations.endpoints import reloader_of
from gateway.services import Services

log = logging.getLogger("ctxgate")

Kind = Literal["download", "tune", "evaluate"]
State = Literal["running", "done", "failed", "stopped", "interrupted"]

KEPT = 20
"""Jobs in the list, the running ones included."""
LINES = 40
"""The last lines of a command's output that a job shows."""
MAX_BYTES = 1024 * 1024
"""A larger list is ignored."""
LIMIT_SECONDS = 4 * 3600.0
"""How long a measurement may take."""
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL: a measurement stops its own engine."""
FILE = "jobs.json"
HAS_RESULTS = {"evaluate": (0, 1, 6), "tune": (0,)}
"""Exit codes of a measurement that has results: a regression and calls that came out as text are results, too."""
_COUNTED = re.compile(r"(\d{1,9})/(\d{1,9}) · (.*)")
_NEVER = re.compile(r"[^A-Za-z0-9._-]+")
_OWN = re.compile(r"\d{8}T\d{6}-.+")
RESULTS = 100
"""Evaluations in the state folder that a job has written; the oldest go."""


class Job(Struct, kw_only=True):
    """subject: what it is about, a model's name or a source of the hub. at, ended: seconds since 1970. done, total: of
    bytes in a download, of answers in a measurement; total None: unknown. said: what it does now, or why it failed.
    model: the model in config.yaml that a download added. lines: the end of a command's output. result: the name of an
    evaluation below `/-/evaluations`."""

    id: str
    kind: Kind
    subject: str
    at: float
    state: State = "running"
    ended: float | None = None
    done: int = 0
    total: int | None = None
    said: str = ""
    model: str = ""
    result: str = ""
    lines: list[str] = []


class Jobs:
    """The jobs of this gateway, the newest first."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._jobs: list[Job] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._commands: dict[str, Process] = {}
        self._file = services.gateway.config.state_dir / FILE
        self._writing = asyncio.Lock()

    async def listed(self) -> list[Job]:
        """With their progress."""
        jobs = await self._known()
        for job in jobs:
            if (command := self._commands.get(job.id)) is not None:
                _follow(job, command)
        return jobs

    async def download(self, subject: str) -> Job:
        """Fetches a model of config.yaml, or one of the hub or of Ollama's library, which it adds.

        Raises ProviderRateLimit while another download runs.
        """
        reloader = reloader_of(self._services)
        jobs = await self._known()
        work = self._services.shared(Pulls).begin(self._services.gateway.config, _as_ollama(subject))
        job = self._new(jobs, "download", subject)

        async def run() -> None:
            done: dict[str, int] = {}
            totals: dict[str, int] = {}
            try:
                async for step in work.steps(reloader):
                    if "total" in step:
                        done[step["digest"]], totals[step["digest"]] = step["completed"], step["total"]
                        job.done, job.total = sum(done.values()), sum(totals.values())
                    job.said = step["status"]
            finally:
                await work.stop()  # so that one may be begun again at once
            job.model = work.model

        await self._begin(job, run)
        return job

    async def tune(self, model: str, minutes: float) -> Job:
        """Looks for faster settings and writes the best into config.yaml. Raises ProviderRateLimit."""
        reloader_of(self._services)
        argv = ["tune", model, "--apply", "--minutes", f"{minutes:g}"]
        return await self._measure("tune", model, argv, {})

    async def evaluate(self, model: str, suite: str, key: str | None) -> Job:
        """Asks the running gateway the questions of the suite. key: to ask it with. Raises ProviderRateLimit."""
        from gateway.cli.client import base_url

        config = self._services.gateway.config
        if config.server.uds is not None:
            raise ProviderInvalidRequest("an evaluation asks the gateway by a port, and this one has none")
        result = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{_NEVER.sub('-', model)[:60]}"
        out = config.state_dir / "evaluations" / result
        argv = ["model-test", "run", "--base-url", f"{base_url(config.server)}/v1", "--model", model, "--suite", suite]
        argv += ["--out", str(out), "--no-html", "--no-png"]
        await asyncio.to_thread(prune_results, out.parent)
        return await self._measure("evaluate", model, argv, {"OPENAI_API_KEY": key or "unused"}, result)

    async def stop(self, id: str) -> Job:
        """Ends a job; what it has fetched stays for the next one. Raises ProviderInvalidRequest if there is none."""
        job = next((job for job in await self._known() if job.id == id), None)
        if job is None:
            raise ProviderInvalidRequest(f"there is no job {id[:40]}", code="not_found", status=404)
        if (task := self._tasks.get(id)) is not None:
            _stop(task)
            await asyncio.wait({task})
        return job

    async def aclose(self) -> None:
        """A job that runs is interrupted: the next gateway lists it so."""
        for job in self._jobs or ():
            if (task := self._tasks.get(job.id)) is not None and not task.cancelling():
                job.state, job.ended = "interrupted", time.time()
        tasks = [*self._tasks.values()]
        for task in tasks:
            _stop(task)
        if tasks:
            await asyncio.wait(tasks)

    async def _measure(
        self, kind: Kind, model: str, argv: list[str], environ: Mapping[str, str], result: str = ""
    ) -> Job:
        config = self._services.gateway.config
        jobs = await self._known()
        for other in jobs:
            if other.state == "running" and other.kind != "download":
                message = f"{other.subject} is being measured: only one measurement can run at a time"
                raise ProviderRateLimit(message, code="job_running", retry_after=30)
        job = self._new(jobs, kind, model)
        job.result = result

        async def run() -> None:
            command = [sys.executable, "-m", "gateway", argv[0], *argv[1:], "--config", str(config.source)]
            process = await Process.start(command, {**os.environ, **environ}, cwd=Path.cwd(), grace=GRACE_SECONDS)
            self._commands[job.id] = process
            try:
                if not await process.wait(LIMIT_SECONDS):
                    raise ProviderInvalidRequest(f"it took longer than {LIMIT_SECONDS / 3600:g} hours")
            finally:
                try:
                    await process.stop()
                finally:
                    _follow(job, process)
                    del self._commands[job.id]
            if process.returncode not in HAS_RESULTS[kind]:
                raise ProviderInvalidRequest(job.lines[-1] if job.lines else process.ending())

        await self._begin(job, run)
        return job

    def _new(self, jobs: list[Job], kind: Kind, subject: str) -> Job:
        job = Job(id=os.urandom(6).hex(), kind=kind, subject=subject, at=time.time())
        # One begun again takes the place of the one that was cut off.
        jobs[:] = [job, *(old for old in jobs if old.state == "running" or (old.kind, old.subject) != (kind, subject))]
        while len(jobs) > KEPT:
            jobs.remove(next(old for old in reversed(jobs) if old.state != "running"))
        return job

    async def _begin(self, job: Job, run: Callable[[], Awaitable[None]]) -> None:
        task = self._tasks[job.id] = asyncio.create_task(self._run(job, run), name=f"{job.kind} {job.subject}")
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        await self._save()

    async def _run(self, job: Job, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
            job.state = "done"
        except asyncio.CancelledError:
            if job.state == "running":
                job.state = "stopped"
        except GatewayError as error:
            job.state, job.said = "failed", error.message
        except Exception:
            log.exception("the job %s of %s failed", job.kind, job.subject)
            job.state, job.said = "failed", "an internal error: the gateway's log has it"
        job.ended = time.time()
        await self._save()

    async def _known(self) -> list[Job]:
        if self._jobs is None:
            read = await asyncio.to_thread(_read, self._file)
            if self._jobs is None:  # another request may have been faster
                self._jobs = read
        return self._jobs

    async def _save(self) -> None:
        async with self._writing:
            content = msgspec.json.encode(self._jobs)
            try:
                await asyncio.to_thread(whole, self._file, content)
            except OSError as error:
                log.warning("the list of jobs can't be written: %s", error)


def _stop(task: asyncio.Task[None]) -> None:
    """Once: a second time would interrupt the end of its program, and another could begin beside it."""
    if not task.cancelling():
        task.cancel()


def _as_ollama(subject: str) -> str:
    """A source as Ollama's clients write it."""
    kind, colon, rest = subject.partition(":")
    return f"{HUB[0]}{rest}" if colon and kind == "hf" else rest if colon and kind == "ollama" else subject


def _follow(job: Job, command: Process) -> None:
    job.lines = [*command.tail][-LINES:]
    for line in reversed(job.lines):
        if (found := _COUNTED.match(line)) is not None:
            job.done, job.total, job.said = int(found[1]), int(found[2]), found[3]
            return


def prune_results(folder: Path) -> None:
    """Leaves room for one more evaluation. What a person has put there stays."""
    with suppress(OSError):
        for old in sorted(path for path in folder.iterdir() if _OWN.fullmatch(path.name))[: 1 - RESULTS]:
            shutil.rmtree(old, ignore_errors=True)


def _read(file: Path) -> list[Job]:
    """Those of an earlier gateway. What ran then was interrupted."""
    try:
        content = file.read_bytes()
        jobs = msgspec.json.decode(content, type=list[Job])[:KEPT] if len(content) <= MAX_BYTES else []
    except (OSError, ValueError):
        return []
    for job in jobs:
        if job.state == "running":
            job.state = "interrupted"
    return jobs

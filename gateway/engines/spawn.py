"""Starts an engine's process, with its log and its pid file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gateway.engines.environment import for_engine
from gateway.engines.logfile import LogFile, log_path
from gateway.engines.pidfile import PidFiles
from gateway.engines.process import Process
from gateway.engines.recipe import Recipe
from gateway.engines.sandbox import Sandbox, Start
from gateway.errors import ProviderUnavailable

log = logging.getLogger("ctxgate")


async def spawn(
    model: str,
    recipe: Recipe,
    *,
    state_dir: Path | None,
    pid_files: PidFiles | None,
    grace: float,
    hide: Callable[[str], str] = str,
    sandbox: Sandbox | None = None,
) -> Process:
    """Logs to `state_dir` and writes a pid file, if these are given; the pid file goes when the process ends.

    hide: hides secrets in what the process prints. The process gets an environment without secrets, and a working
    folder of its own in `state_dir`. sandbox: what it may do; None: all that the user may. Raises ProviderUnavailable
    if the system can't start a process.
    """
    lines = LogFile(log_path(state_dir, model)) if state_dir is not None else None
    written: list[Path] = []

    def began(pid: int) -> None:
        if lines is not None:
            lines.note(f"{recipe.engine} started, pid {pid}")
        if pid_files is not None and (path := _write_pid_file(pid_files, model, pid)) is not None:
            written.append(path)

    def ended() -> None:
        if lines is not None:
            lines.note(f"{recipe.engine} {process.ending()}")
            lines.close()
        for path in written:
            path.unlink(missing_ok=True)

    folder = _folder(state_dir, model)
    start = await _start(recipe, folder, sandbox)
    try:
        process = await Process.start(
            start.argv, start.env, cwd=folder, grace=grace, hide=hide, began=began, rules=start.rules,
            wrote=lines.write if lines is not None else None,
        )  # fmt: skip
    except OSError as error:
        raise ProviderUnavailable(f"model {model!r}: can't start a process for {recipe.engine}: {error}") from error
    process.on_end(ended)
    return process


async def _start(recipe: Recipe, folder: Path | None, sandbox: Sandbox | None) -> Start:
    start = Start(recipe.argv) if sandbox is None else await asyncio.to_thread(sandbox.start, recipe, folder)
    return replace(start, env={**for_engine(recipe.pass_env), **start.env, **recipe.env})


def _folder(state_dir: Path | None, model: str) -> Path | None:
    """The engine's working folder; None, the gateway's own, if there is no place for one."""
    if state_dir is None:
        return None
    folder = state_dir / "work" / model
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.warning("model %s's engine works in the gateway's folder: %s", model, error)
        return None
    return folder


def _write_pid_file(pid_files: PidFiles, model: str, pid: int) -> Path | None:
    try:
        return pid_files.write(model, pid)
    except OSError as error:
        # The engine works without it: it would only be left behind if both the gateway and the guard were killed.
        log.warning("can't write the pid file of model %s's engine: %s", model, error)
        return None

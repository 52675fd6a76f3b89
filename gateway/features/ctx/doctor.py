"""Checks a tree and says how to repair it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.config import Config
from gateway.errors import GatewayError
from gateway.features.ctx import drivers
from gateway.features.ctx.availability import missing_credential, talks
from gateway.features.ctx.control import USE_CASES
from gateway.features.ctx.launcher import shebang
from gateway.features.ctx.listing import aliases
from gateway.features.ctx.listing import answers as reachable
from gateway.features.ctx.objects import Triple
from gateway.features.ctx.projection import projection
from gateway.features.ctx.tree import EXEC_SOCKET, RUNNER, objects, others, read_control

SECONDS = 10.0
"""Time for the runner to start."""

SYNC = "run: ctxgate ctx sync"
SERVE = "set ctx: {enabled: true} in config.yaml and (re)start the gateway: ctxgate serve"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. cure: empty if nothing is wrong."""

    message: str
    cure: str = ""

    @property
    def problem(self) -> bool:
        return bool(self.cure)

    def __str__(self) -> str:
        return f"problem: {self.message}\n    {self.cure}" if self.problem else f"ok: {self.message}"


def examine(root: Path, config: Config) -> Iterator[Finding]:
    """Yields findings, the fundamental ones first. Stops early if there is no tree."""
    made = projection(config)
    yield from (Finding(misfit.message, misfit.cure) for misfit in made.misfits)
    if not root.is_dir():
        yield Finding(f"there is no tree at {root}", SYNC)
        return
    yield from _places(root)
    yield _runner(root)
    answers = reachable(root / EXEC_SOCKET)
    yield Finding(f"a gateway answers for {root}") if answers else Finding(f"no gateway answers for {root}", SERVE)
    found = list(objects(root))
    yield from _missing(root, made.objects, found)
    for triple in found:
        yield from _object(root, triple, config, made.objects, answers=answers)
    for triple in others(root):
        yield from _other(root, triple, config, answers=answers)
    for alias, target in aliases(root).items():
        if target is None:
            yield Finding(f"the alias {alias} leads to no object", f"remove it or correct it; {SYNC}")


def _places(root: Path) -> Iterator[Finding]:
    status = root.stat()
    if status.st_mode & 0o077:
        yield Finding(f"{root} can be read by others ({stat.filemode(status.st_mode)})", f"chmod 700 {root}")
    else:
        yield Finding(f"only the owner can use {root}")
    if hasattr(os, "ST_NOEXEC") and os.statvfs(root).f_flag & os.ST_NOEXEC:
        yield Finding(f"the file system of {root} is mounted noexec", "choose another --root or $CTX_ROOT")


def _runner(root: Path) -> Finding:
    try:
        done = subprocess.run([root / RUNNER], capture_output=True, timeout=SECONDS, check=False)  # noqa: S603 - ours
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(f"the runner doesn't start: {error}", SYNC)
    if done.returncode != 2 or b"usage:" not in done.stderr:
        return Finding(f"the runner doesn't work: {done.stderr.decode(errors='replace').strip()}", SYNC)
    return Finding("the runner starts")


def _missing(root: Path, wanted: dict[str, str | None], found: list[Triple]) -> Iterator[Finding]:
    for name in wanted.keys() - {triple.name.name for triple in found}:
        yield Finding(f"{name} isn't in the tree", SYNC)


def _other(root: Path, triple: Triple, config: Config, *, answers: bool) -> Iterator[Finding]:
    """Checks an agent or a tool. Reports tools only if something is wrong, since there are many."""
    from gateway.features.ctx.agents.settings import read_settings
    from gateway.features.ctx.tools.execution import policy_of

    name = triple.name
    try:
        if name.kind == "tool":
            policy_of(triple)
            return
        read_settings(triple, root, config)
    except GatewayError as error:
        yield Finding(f"{name}: {error}", f"correct or remove it; {SYNC}")
        return
    if answers and not reachable(triple.sock):
        yield Finding(f"{name}: its socket doesn't answer", f"{SYNC}; if that doesn't help, see the gateway's log")
    else:
        yield Finding(str(name))


def _object(
    root: Path, triple: Triple, config: Config, wanted: dict[str, str | None], *, answers: bool
) -> Iterator[Finding]:
    problems: list[Finding] = []
    name = triple.name
    head = triple.entry.read_text("utf-8", errors="replace").partition("\n")[0]
    if head != f"#!{shebang(root)}" or not os.access(triple.entry, os.X_OK):
        problems.append(Finding(f"{name} can't be executed: {head}", f"remove it; {SYNC}"))
    try:
        control = read_control(triple)
    except GatewayError as error:
        yield Finding(f"{name}: {error}", f"correct or remove it; {SYNC}")
        return
    unknown = {driver for use in USE_CASES for driver in control.routes.drivers(use)} - drivers.DRIVERS.keys()
    if unknown:
        cure = f"use {', '.join(drivers.DRIVERS)}"
        problems.append(Finding(f"{name}: unknown driver {', '.join(sorted(unknown))}", cure))
    if control.id not in wanted:
        problems.append(
            Finding(f"{name}: its id {control.id!r} is not a model of {config.source}", "correct its id file")
        )
    else:
        of = wanted[control.id]
        key = missing_credential(config, config.models[of] if of is not None else None)
        if key is not None:
            cure = f"set {key.upper().replace('-', '_')}_API_KEY, or: keyring set cortexfs:{key} default"
            problems.append(Finding(f"{name}: the key of its server is missing", cure))
    if control.session == "socket" and talks(config, control.id) and answers and not reachable(triple.sock):
        what = "its socket doesn't answer" if triple.sock.exists() else f"its socket {triple.sock} is missing"
        problems.append(Finding(f"{name}: {what}", f"{SYNC}; if that doesn't help, see the gateway's log"))
    yield from problems
    if not problems:
        yield Finding(str(name))

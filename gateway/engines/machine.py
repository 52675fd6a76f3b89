"""What recipes need to know of the machine that the gateway runs on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from importlib.util import find_spec

from gateway.engines.environment import inherited
from gateway.engines.recipe import HOST, Machine

VERSION_SECONDS = 10.0


def this_machine() -> Machine:
    return Machine(cores=_cores(), which=_which, has=_has, free_port=free_port)


def _which(program: str) -> str | None:
    """Absolute: engines have a working folder of their own."""
    found = shutil.which(program)
    return os.path.abspath(found) if found is not None else None


def free_port() -> int:
    """A port that was free a moment ago. An engine that finds it taken fails, and starts again on another."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def runs(program: str) -> bool:
    """False if SIGILL kills `program --version`: it was built for another processor.

    A program that dies only once it has a model passes. Blocks for VERSION_SECONDS at most.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [program, "--version"], capture_output=True, timeout=VERSION_SECONDS, check=False, env=inherited()
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != -signal.SIGILL


def _cores() -> int:
    """The cores that this process may use; the machine may have more."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _has(module: str) -> bool:
    return find_spec(module) is not None

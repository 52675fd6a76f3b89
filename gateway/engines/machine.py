"""The machine that the gateway runs on, as recipes see it."""

from __future__ import annotations

import os
import shutil
import socket
from importlib.util import find_spec

from gateway.engines.recipe import HOST, Machine


def this_machine() -> Machine:
    return Machine(cores=_cores(), which=shutil.which, has=_has, free_port=free_port)


def free_port() -> int:
    """A port that was free a moment ago: an engine that finds it taken fails to start and is started on another."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _cores() -> int:
    """The cores that this process may use, not those that the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _has(module: str) -> bool:
    return find_spec(module) is not None

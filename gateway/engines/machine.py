"""What recipes need to know of the machine that the gateway runs on."""

from __future__ import annotations

import os
import shutil
import socket
from importlib.util import find_spec

from gateway.engines.recipe import HOST, Machine


def this_machine() -> Machine:
    return Machine(cores=_cores(), which=shutil.which, has=_has, free_port=free_port)


def free_port() -> int:
    """A port that was free a moment ago. An engine that finds it taken fails, and starts again on another."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _cores() -> int:
    """The cores that this process may use; the machine may have more."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _has(module: str) -> bool:
    return find_spec(module) is not None

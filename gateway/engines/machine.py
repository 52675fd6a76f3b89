"""Facts that recipes need about the machine that the gateway runs on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from gateway.engines import gpu_placement
from gateway.engines.environment import inherited
from gateway.engines.recipe import HOST, Machine

VERSION_SECONDS = 10.0


def this_machine() -> Machine:
    return Machine(cores=_cores(), which=_which, has=_has, free_port=free_port, knows=_knows, gpus=_gpus)


def _which(program: str) -> str | None:
    """Absolute: engines have a working folder of their own."""
    found = shutil.which(program)
    return os.path.abspath(found) if found is not None else None


def free_port(host: str = HOST) -> int:
    """A port that was free a moment ago. An engine that finds it taken fails, and starts again on another."""
    with socket.socket() as probe:
        probe.bind((host, 0))
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


def _knows(program: str, option: str) -> bool:
    """Blocks for VERSION_SECONDS at most, the first time."""
    try:
        changed = os.stat(program).st_mtime_ns
    except OSError:
        return False
    return option in _help(program, changed)


@lru_cache(maxsize=8)
def _help(program: str, _changed: int) -> frozenset[str]:
    """The options that `program --help` lists; none if it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            [program, "--help"], capture_output=True, timeout=VERSION_SECONDS, check=False, env=inherited(), text=True
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(re.findall(r"(?<![\w-])--[a-z][\w-]+", done.stdout))


GPU_DEVICES = ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg")
"""Files in /dev that GPUs have on Linux."""


def _gpus(program: Sequence[str]) -> tuple[int, ...] | None:
    """What the program itself sees: it counts GPUs in another order than nvidia-smi, and may be built for none.

    program: () asks whether there may be any, for Linux by GPU_DEVICES. Blocks for VERSION_SECONDS at most.
    """
    if not program:
        found = sys.platform != "linux" or any(found for name in GPU_DEVICES for found in Path("/dev").glob(name))
        return () if found else None
    listed = list_devices(program)
    return None if gpu_placement.none(listed) else gpu_placement.devices(listed)


def list_devices(program: Sequence[str]) -> str:
    """ "" if it fails."""
    command = [*program, "--list-devices"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, timeout=VERSION_SECONDS, check=False, env=inherited(), text=True
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _cores() -> int:
    """The physical cores that this process may use; the machine may have more."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # macOS
        import psutil

        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    cores = physical_cores(allowed, Path("/sys/devices/system/cpu"))
    return max(1, min(cores, quota(Path("/sys/fs/cgroup")) or cores))


def processors() -> int:
    """The hardware threads that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def physical_cores(processors: Collection[int], folder: Path) -> int:
    """How many cores these processors belong to: two hardware threads of one core slow each other down.

    folder: the system's description of the processors, with `cpuN` for each. One without its siblings is a core.
    """
    cores = set()
    for processor in processors:
        try:
            cores.add((folder / f"cpu{processor}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(processor))
    return len(cores)


def quota(folder: Path) -> int | None:
    """The processors that the control group in `folder` may keep busy, at least 1; None: all."""
    try:
        found = re.match(r"(\d+) (\d+)", (folder / "cpu.max").read_text())
    except OSError:
        return None
    return max(1, round(int(found[1]) / int(found[2]))) if found is not None else None


def _has(module: str) -> bool:
    return find_spec(module) is not None

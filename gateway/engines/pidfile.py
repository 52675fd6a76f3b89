"""Engine processes written down, so that a gateway finds those that a killed one has left behind.

An engine's guard ends it when its gateway dies. This is for the day on which both were killed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import msgspec

log = logging.getLogger("ctxgate")

KILLED_WITHIN = 5.0
POLL_SECONDS = 0.01
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and its gateway. A pid with another start time is another process's by now."""

    model: str
    pid: int
    started: str
    gateway_pid: int
    gateway_started: str


def start_time(pid: int) -> str | None:
    """When the process started, in the system's own words; None where there is none. Differs between boots."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return None
        return _start_time_by_ps(pid)
    # The name in parentheses may hold anything; the state is field 3, the start time field 22.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_BOOT_ID.read_text().strip()} {fields[19].decode()}"


def _start_time_by_ps(pid: int) -> str | None:
    done = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=5, check=False
    )
    state, _, started = done.stdout.strip().partition(" ")
    return started.strip() if state and not state.startswith("Z") else None


class PidFiles:
    """One file for each engine process, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._me: tuple[int, str] | None = None

    def write(self, model: str, pid: int) -> Path | None:
        """None where the process has ended already."""
        started = start_time(pid)
        if started is None:
            return None
        if self._me is None or self._me[0] != os.getpid():
            self._me = (os.getpid(), start_time(os.getpid()) or "")
        entry = Entry(model=model, pid=pid, started=started, gateway_pid=self._me[0], gateway_started=self._me[1])
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"{pid}.json"
        # Whole or not at all: a half-written one would hide an engine.
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(entry))
        fresh.replace(path)
        return path

    def reap(self) -> list[Entry]:
        """Ends the engines whose gateways are gone; returns them. Blocks until they have ended, seconds at most."""
        ended = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                entry = msgspec.json.decode(path.read_bytes(), type=Entry)
            except FileNotFoundError:
                continue  # another gateway that starts now was first
            except ValueError:  # DecodeError and UnicodeDecodeError are ValueErrors
                log.warning("%s says nothing of an engine and is removed", path)
                path.unlink(missing_ok=True)
                continue
            if start_time(entry.gateway_pid) == entry.gateway_started:
                continue
            if start_time(entry.pid) == entry.started:
                log.warning("ends the engine of %s (pid %d) that a killed gateway left", entry.model, entry.pid)
                _kill(entry.pid, entry.started)
                ended.append(entry)
            path.unlink(missing_ok=True)
        return ended


def _kill(pid: int, started: str) -> None:
    # Engines lead a process group of their own, and keep nothing that a SIGTERM would save.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILLED_WITHIN
    while start_time(pid) == started:
        if time.monotonic() >= deadline:
            log.error("process %d does not end", pid)
            return
        time.sleep(POLL_SECONDS)

"""Pid files of engines: a gateway finds and ends the engines that a killed one left behind.

An engine's guard ends it when its gateway dies. Pid files are for the case that both were killed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from gateway.config.folders import whole

log = logging.getLogger("ctxgate")

KILLED_WITHIN = 5.0
POLL_SECONDS = 0.01
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PidEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and its gateway. If the start time differs, another process has the pid now."""

    model: str
    pid: int
    started: str
    gateway_pid: int
    gateway_started: str


def start_time(pid: int) -> str | None:
    """Tells a process from any other that gets its pid, also after a restart of the machine; None if it has ended."""
    if not sys.platform.startswith("linux"):
        return portable_start_time(pid)
    # psutil adds the time of boot, which moves with the system's clock: a living gateway would seem gone.
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything; the state is field 3, the start time field 22.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_BOOT_ID.read_text().strip()} {fields[19].decode()}"


def portable_start_time(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None


class PidFiles:
    """One file for each engine process, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._me: tuple[int, str] | None = None

    def write(self, model: str, pid: int) -> Path | None:
        """The new file; None if the process has ended already."""
        started = start_time(pid)
        if started is None:
            return None
        if self._me is None or self._me[0] != os.getpid():
            self._me = (os.getpid(), start_time(os.getpid()) or "")
        entry = PidEntry(model=model, pid=pid, started=started, gateway_pid=self._me[0], gateway_started=self._me[1])
        path = self.folder / f"{pid}.json"
        whole(path, msgspec.json.encode(entry))  # half a file would hide an engine
        return path

    def reap(self) -> list[PidEntry]:
        """Ends the engines whose gateways are gone, and returns them. Blocks until they have ended, seconds at most."""
        ended = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                entry = msgspec.json.decode(path.read_bytes(), type=PidEntry)
            except FileNotFoundError:
                continue  # another gateway that starts now was faster
            except ValueError:  # DecodeError and UnicodeDecodeError are ValueErrors
                log.warning("removes %s, which is not a valid pid file", path)
                path.unlink(missing_ok=True)
                continue
            if start_time(entry.gateway_pid) == entry.gateway_started:
                continue
            if start_time(entry.pid) == entry.started:
                log.warning("ends the engine of %s (pid %d), left behind by a killed gateway", entry.model, entry.pid)
                _kill(entry.pid, entry.started)
                ended.append(entry)
            path.unlink(missing_ok=True)
        return ended


def _kill(pid: int, started: str) -> None:
    # An engine leads its own process group, and has nothing to save on SIGTERM.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILLED_WITHIN
    while start_time(pid) == started:
        if time.monotonic() >= deadline:
            log.error("process %d does not end after SIGKILL", pid)
            return
        time.sleep(POLL_SECONDS)

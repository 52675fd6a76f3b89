"""Processes under measurement: start, pin, wait for, read, stop. Linux only."""

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


BUSY_SHARE = 0.2
"""Of a core: above what an idle server under valgrind takes for its timers."""


class Failed(Exception):
    """A server ended, gave no 200 or answered wrongly; carries the end of its log."""


def end_on_sigterm() -> None:
    """Makes SIGTERM leave through every `finally`, so that no child outlives a benchmark."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Pins this process, and what it starts meanwhile, to one core; None leaves it free."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def parents() -> dict[int, int]:
    """pid → parent pid of every process now."""
    table: dict[int, int] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            table[int(stat.parent.name)] = parse_ppid(stat.read_text())
    return table


def parse_ppid(stat: str) -> int:
    """The parent in a /proc/PID/stat line; the command may hold spaces and parentheses."""
    return int(stat.rpartition(")")[2].split()[1])


def tree(root: int, table: Mapping[int, int]) -> list[int]:
    """`root` and its descendants."""
    found = [root]
    for pid in found:
        found.extend(child for child, parent in table.items() if parent == pid)
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system seconds of these processes, all threads.

    Reads each process's CPU clock, which counts what utime + stime in /proc/PID/stat do, in ns
    instead of ticks of 10 ms. The clock's number is made as in clock_getcpuclockid(3).
    """
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def rss_mb(pids: Sequence[int]) -> float:
    """Resident megabytes (10^6 bytes), summed; pages that processes share count for each."""
    pages = sum(int((_PROC / str(pid) / "statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def machine_cpu_seconds() -> float:
    """CPU seconds that everything on this machine has used since it booted."""
    user, nice, system, _idle, _iowait, irq, softirq = (_PROC / "stat").read_text().split(maxsplit=8)[1:8]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def machine() -> str:
    """The machine in one line, for the head of a report."""
    info = (_PROC / "cpuinfo").read_text()
    model = next((line.split(": ", 1)[1] for line in info.splitlines() if line.startswith("model name")), "?")
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


@dataclass
class Server:
    """A child process that serves on 127.0.0.1:`port`, in a session of its own."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> "Server":
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        return cls(process, port, log)

    def wait_ready(self, path: str, timeout: float) -> None:
        """Returns at the first 200 on `path`; raises `Failed`."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"ended with {self.process.returncode}: {self.last_words()}")
            if _answers_200(self.port, path):
                return
            time.sleep(0.002)
        raise Failed(f"no 200 on {path} within {timeout:g} s: {self.last_words()}")

    def wait_idle(self, timeout: float, quiet: float = 1.0) -> None:
        """Returns once all but idle for `quiet` seconds: what loads after the first 200 is done. Raises `Failed`."""
        deadline = time.monotonic() + timeout
        used, before = quiet, cpu_seconds(self.pids())
        while used > 0.05 * quiet:  # event loops tick
            if time.monotonic() > deadline:
                raise Failed(f"still busy after {timeout:g} s")
            time.sleep(quiet)
            now = cpu_seconds(self.pids())
            used, before = now - before, now

    def pids(self) -> list[int]:
        return tree(self.process.pid, parents())

    def stop(self, grace: float = 10.0) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(grace)

    def last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-4:])[-600:]


def _answers_200(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            return connection.recv(4096).startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))
    except OSError:
        return False

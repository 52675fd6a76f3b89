"""Asks a gateway for its health and measures its memory, from a process of its own, while a test does harm.

    python -m tests.hostile.watch PORT PID

Prints `watching` once it knows how the gateway is before, and a JSON object when its standard input ends. At the same
moment as the gateway it asks a second server, which does nothing else than answer: what that one takes, or the time
that the gateway waits for a processor, is the machine's own delay, whoever else may be busy on it.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

EVERY_SECONDS = 0.05
GIVE_UP_SECONDS = 30.0
BEFORE, AFTER = 3, 6
"""Answers that must come before the harm, and after it."""
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ANSWERER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        with listener.accept()[0] as one:
            one.settimeout(30)
            one.recv(1000)
            one.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
"""


@dataclass(frozen=True)
class Report:
    """seconds: of the slowest answer, less the machine's own delay then. delay: the machine's longest.

    grown: bytes of resident memory above those before, at the peak. statuses: every first line that was answered.
    """

    answers: int
    seconds: float
    delay: float
    grown: int
    statuses: list[str]


def ask(ports: list[int]) -> list[tuple[float, bytes]]:
    """Asks all at the same moment: seconds and answer of each; an answer that doesn't come is empty."""
    began = time.monotonic()
    open_, answers = {}, dict.fromkeys(ports, (GIVE_UP_SECONDS, b""))
    for port in ports:
        with suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_SECONDS)
            one.sendall(REQUEST)
            open_[one] = port
    while open_ and (left := began + GIVE_UP_SECONDS - time.monotonic()) > 0:
        for one in select.select([*open_], [], [], left)[0]:
            try:
                answer = one.recv(65536)
            except OSError:
                answer = b""
            answers[open_.pop(one)] = (time.monotonic() - began, answer)
            one.close()
    for one in open_:
        one.close()
    return [answers[port] for port in ports]


class Memory:
    """Of one process: its peak above what was resident before. Linux counts the peak, elsewhere samples must do."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._proc = Path(f"/proc/{pid}")
        self.before = self._sampled = self._process.memory_info().rss
        self._counted = False
        with suppress(OSError):
            (self._proc / "clear_refs").write_text("5")
            self._counted = True

    def sample(self) -> None:
        self._sampled = max(self._sampled, self._process.memory_info().rss)

    def peak(self) -> int:
        if self._counted:
            status = (self._proc / "status").read_text()
            return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
        return self._sampled


def _waited(pid: int) -> float:
    """Seconds for which the process's main thread was ready and got no processor; Linux alone counts them."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def watch(port: int, pid: int, reference: int) -> Report:
    done = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    seconds = delay = 0.0
    statuses: dict[str, None] = {}
    answers, after = 0, 0
    memory = Memory(pid)
    while after < AFTER:
        after += done.is_set()
        waited = _waited(pid)
        (took, answer), (own, _) = ask([port, reference])
        own = max(own, _waited(pid) - waited)
        statuses[answer.partition(b"\r\n")[0].decode("latin-1")] = None
        seconds, delay = max(seconds, took - own), max(delay, own)
        answers += 1
        memory.sample()
        if answers == BEFORE:
            print("watching", flush=True)
        time.sleep(EVERY_SECONDS)
    return Report(answers, seconds, delay, memory.peak() - memory.before, [*statuses])


def main() -> None:
    port, pid = map(int, sys.argv[1:])
    with subprocess.Popen([sys.executable, "-c", ANSWERER], stdout=subprocess.PIPE, text=True) as answerer:
        try:
            assert answerer.stdout is not None
            report = watch(port, pid, int(answerer.stdout.readline()))
        finally:
            answerer.kill()
    print(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()

"""Asks a gateway for its health and measures its memory, from a process of its own, while a test does harm.

    python -m tests.hostile.watch

For a line `PORT PID` of its standard input it prints `watching` once it knows how the gateway is before, and a JSON
object after the next line. It ends with its input. At the same moment as the gateway it asks a second server, which
does nothing else than answer: what that one takes, or the time that a thread of the gateway waits for a processor, is
the machine's own delay, whoever else may be busy on it.

    python -m tests.hostile.watch PORT PID on

goes on until its standard input ends: for each line there it prints a JSON list, the late answers since the last one.
"""

from __future__ import annotations

import json
import math
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
OFTEN_SECONDS = 0.02
LATE_SECONDS = 0.1
GIVE_UP_SECONDS = 30.0
BEFORE, AFTER = 3, 6
"""Answers that must come before the harm, and after it."""
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ANSWERER = """
import select, socket, sys
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
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
        self.begin()

    def begin(self) -> None:
        """What is resident now is what was before."""
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


def _scheduled(pid: int) -> dict[str, tuple[float, float]]:
    """Seconds for which each of the process's threads ran, and was ready and got no processor; Linux alone counts them.

    While one waits for a processor that has the interpreter's lock, so does the event loop.
    """
    found = {}
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                ran, waited, _ = (thread / "schedstat").read_bytes().split()
                found[thread.name] = int(ran) / 1e9, int(waited) / 1e9
    return found


@dataclass(frozen=True)
class Look:
    """One answer of the gateway. began: by the monotonic clock, which all processes share.

    seconds: less `delay`, the machine's own delay meanwhile. ran: for how long the busiest of the gateway's threads had
    a processor meanwhile; infinite where the system doesn't tell. status: the first line of the answer.
    """

    began: float
    seconds: float
    delay: float
    ran: float
    status: str

    def later_than(self, limit: float) -> bool:
        """Whether the gateway itself took longer. On a machine that is busy with other things, the time of a clock says
        little: there it counts only as far as the gateway ran; elsewhere, to wait for a lock or a disk is late, too."""
        return self.seconds > limit and (self.ran > limit or self.delay < limit)


def look(port: int, pid: int, reference: int) -> Look:
    began, before = time.monotonic(), _scheduled(pid)
    (took, answer), (own, _) = ask([port, reference])
    ran = math.inf
    for thread, (on, off) in _scheduled(pid).items():
        on_before, off_before = before.get(thread, (0.0, 0.0))
        own = max(own, off - off_before)
        ran = max(0.0 if ran == math.inf else ran, on - on_before)
    return Look(began, took - own, own, ran, answer.partition(b"\r\n")[0].decode("latin-1"))


def watch(port: int, pid: int, reference: int) -> Report:
    done = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    seconds = delay = 0.0
    statuses: dict[str, None] = {}
    answers, after = 0, 0
    memory = Memory(pid)
    while after < AFTER:
        after += done.is_set()
        found = look(port, pid, reference)
        statuses[found.status] = None
        seconds, delay = max(seconds, found.seconds), max(delay, found.delay)
        answers += 1
        memory.sample()
        if answers == BEFORE:
            print("watching", flush=True)
        if answers >= BEFORE:
            time.sleep(EVERY_SECONDS)
    return Report(answers, seconds, delay, memory.peak() - memory.before, [*statuses])


def keep_watching(port: int, pid: int, reference: int) -> None:
    """Prints what is late, or isn't a 200, whenever it is asked; what it prints holds for all time before."""
    late: list[Look] = []
    asked = 0
    with suppress(EOFError):
        while True:
            found = look(port, pid, reference)
            if found.seconds > LATE_SECONDS or found.status != "HTTP/1.1 200 OK":
                late.append(found)
            if asked:
                asked -= 1
                print(json.dumps([asdict(each) for each in late]), flush=True)
                late.clear()
            if select.select([sys.stdin], [], [], OFTEN_SECONDS)[0]:
                if not sys.stdin.readline():
                    raise EOFError
                asked += 1


def main() -> None:
    # It ends when this process does, however that ends: its input is ours alone.
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as answerer:
        try:
            assert answerer.stdout is not None
            reference = int(answerer.stdout.readline())
            if sys.argv[3:] == ["on"]:
                keep_watching(int(sys.argv[1]), int(sys.argv[2]), reference)
                return
            while line := sys.stdin.readline():
                port, pid = map(int, line.split())
                print(json.dumps(asdict(watch(port, pid, reference))), flush=True)
        finally:
            answerer.kill()


if __name__ == "__main__":
    main()

"""Starts `ctxgate serve` as a process of its own, and learns where it listens."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from gateway.errors import ProviderUnavailable

START_SECONDS = 30
STOP_SECONDS = 20
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/v1")


def spawned(config: Path | None, model: str, log: Path, port: int = 0) -> tuple[subprocess.Popen[bytes], str]:
    """The process and its address on this machine, without TLS; it listens. Its words go to `log`.

    port: 0 for a free one, which it takes itself: one that we chose could be another's by then. Raises
    ProviderUnavailable where it doesn't come up.
    """
    command = [sys.executable, "-m", "gateway", "serve", *(["--config", str(config)] if config else [])]
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-tls", "--model", model]
    log.parent.mkdir(parents=True, exist_ok=True)
    before = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        # A session of its own: Ctrl-C is for the program in front.
        process = subprocess.Popen(  # noqa: S603
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        return process, _address(process, log, before)
    except BaseException:
        stop(process)
        raise


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, before: int) -> str:
    """What it says of where it is, in its log behind so many bytes; it listens by then."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        said = log.read_bytes()[before:].decode("utf-8", "replace")
        if (found := _ADDRESS.search(said)) is not None and not ended:
            return found[1]
        if ended:
            raise ProviderUnavailable(f"ctxgate serve ended: {said.strip()[-500:]}")
        time.sleep(0.05)
    raise ProviderUnavailable(f"ctxgate serve didn't say where it is within {START_SECONDS} s")

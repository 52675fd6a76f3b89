"""An engine's output in a log of bounded size."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

MAX_BYTES = 1024 * 1024
"""Size of one file; each model has two at most."""


def log_path(state_dir: Path, model: str) -> Path:
    return state_dir / "logs" / f"{model}.log"


class LogFile:
    """Appends lines to `path`; a full file replaces `path.1`.

    If the folder isn't writable, the log ends but the engine continues: `failure` says why.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.failure: OSError | None = None
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._size = 0

    def note(self, text: str) -> None:
        """Writes a line of the gateway's own, with the time."""
        self.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%SZ} {text}")

    def write(self, line: str) -> None:
        if self.failure is not None:
            return
        data = line.encode("utf-8", "replace") + b"\n"
        try:
            if self._file is None or self._size + len(data) > self._max_bytes:
                self._open(len(data))
            assert self._file is not None
            os.write(self._file, data)
        except OSError as error:
            self.failure = error
            self.close()
        else:
            self._size += len(data)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, more: int) -> None:
        self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size + more > self._max_bytes:
            self.path.replace(rotated(self.path))
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size


def rotated(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def last_lines(path: Path, count: int) -> Iterator[str]:
    """The last lines of the log at `path` and of the file rotated before it."""
    lines: deque[str] = deque(maxlen=count)
    for part in (rotated(path), path):
        if part.exists():
            lines.extend(part.read_text("utf-8", "replace").splitlines())
    yield from lines

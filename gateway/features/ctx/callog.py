"""The call logs of the objects: when each was called and how that ended, without content."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from gateway.features.ctx.events import Status
from gateway.features.ctx.objects import Triple
from gateway.features.ctx.tree import write

MAX_WAITING = 1024
MAX_LOG = 64 * 1024
"""Bytes. A longer log loses its older half."""


class CallLog:
    """Collects entries in memory until `flush`."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Path, str]] = deque(maxlen=MAX_WAITING)

    def add(self, triple: Triple, session: str | None, run: str, status: Status) -> None:
        entry = {
            "ts": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "type": f"{triple.name.kind}.call",
            "object": str(triple.name),
            "session": session,
            "run": run,
            "status": status,
        }
        self.waiting.append((triple.control / "log", json.dumps(entry) + "\n"))

    def flush(self, root: Path) -> None:
        by_file: dict[Path, list[str]] = {}
        while self.waiting:
            path, entry = self.waiting.popleft()
            by_file.setdefault(path, []).append(entry)
        for path, entries in by_file.items():
            # A removed object has no log.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > MAX_LOG:
                    newer = path.read_bytes()[-MAX_LOG // 2 :].partition(b"\n")[2]
                    write(root, str(path.relative_to(root)), newer, 0o600)
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(entries)

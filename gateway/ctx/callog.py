"""The short call logs of the objects: who was asked when, and how it ended. Never what was said."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from gateway.ctx.objects import Triple
from gateway.ctx.tree import write
from gateway.wire.events import Status

MAX_WAITING = 1024
MAX_LOG = 64 * 1024
"""Bytes; beyond, the older half goes."""


class CallLog:
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
            # An object that was removed has no log.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > MAX_LOG:
                    kept = path.read_bytes()[-MAX_LOG // 2 :].partition(b"\n")[2]
                    write(root, str(path.relative_to(root)), kept, 0o600)
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(entries)

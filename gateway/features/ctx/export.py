"""Writes a session as files, in the layout of the object ABI."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.ctx.frames import Scope
from gateway.features.ctx.journal import event_table, results_of, run_table, stored
from gateway.features.ctx.objects import ObjectName
from gateway.services import store_url
from gateway.store import Store


async def export(config: Config, root: Path, name: ObjectName, session: str, scope: Scope, to: Path | None) -> Path:
    """Exports a session; returns the folder, which only its owner can read. to: by default its place in the tree.

    Raises NotFound for a missing session, ProviderInvalidRequest for a folder with other files, ProviderUnavailable if
    the store can't be read or the folder can't be written.
    """
    store = await Store.open(store_url(config))
    try:
        files = await store.read(lambda connection: _files(connection, name, session, scope))
    finally:
        await store.aclose()
    if to is None:
        home = root / "shared" if scope == "shared" else root / "home" / str(os.geteuid())
        to = home / name.kind / f"{name.name}.d" / "session" / session
    elif to.is_dir() and any(to.iterdir()) and not (to / "messages.jsonl").exists():
        raise ProviderInvalidRequest(f"{to} has other files: name a new folder or that of an earlier export")
    try:
        _write(to, files)
    except OSError as error:
        raise ProviderUnavailable(f"{to} can't be written: {error}") from error
    return to


def _write(folder: Path, files: dict[str, str]) -> None:
    if folder.is_symlink():
        raise ProviderInvalidRequest(f"{folder} is a symlink: name the folder itself")
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700)
    folder.chmod(0o700)
    (folder / "context").mkdir(mode=0o700, exist_ok=True)
    for name, text in files.items():
        aside = folder / f".{name}.{os.getpid()}"
        aside.unlink(missing_ok=True)
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        aside.replace(folder / name)


def _files(connection: Connection, name: ObjectName, session: str, scope: Scope) -> dict[str, str]:
    found = stored(connection, name, session, scope)
    runs = connection.execute(
        select(run_table).where(run_table.c.session == found.id).order_by(run_table.c.first_event)
    ).all()
    events = connection.execute(
        select(event_table.c.frame).where(event_table.c.session == found.id).order_by(event_table.c.number)
    ).scalars()
    messages: list[dict[str, Any]] = []
    latest = ""
    for run in runs:
        for result in results_of(run.results):
            part = {"type": "tool_result", "tool_call_id": result.id, "content": result.content}
            messages.append({"role": "tool", "run": run.id, "content": [part]})
        if run.input:
            messages.append({"role": "user", "run": run.id, "content": [{"type": "text", "text": run.input}]})
        if run.answer is not None:
            answer = msgspec.json.decode(run.answer)
            messages.append(answer)
            latest = "".join(part["text"] for part in answer["content"])
    active = next((run.id for run in runs if run.state == "active"), "")
    return {
        "messages.jsonl": "".join(json.dumps(message, ensure_ascii=False) + "\n" for message in messages),
        "events.jsonl": "".join(events),
        "latest.md": f"{latest}\n",
        "state": f"{found.state}\n",
        "cwd": f"{found.cwd or ''}\n",
        "created_at": f"{_moment(found.created_at)}\n",
        "updated_at": f"{_moment(found.updated_at)}\n",
        "current_run": f"{active}\n",
        "meta.json": json.dumps({"client": "ctxgate", "model": name.name, "scope": found.scope}) + "\n",
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")

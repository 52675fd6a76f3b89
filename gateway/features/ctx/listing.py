"""The objects of a tree as a table, read from its files alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from gateway.errors import GatewayError
from gateway.features.ctx.availability import OFFLINE
from gateway.features.ctx.objects import ObjectName, name_at
from gateway.features.ctx.projection import RESERVED
from gateway.features.ctx.tree import EXEC_SOCKET, objects, others, read_control, read_text

SECONDS = 1.0
"""Time for a socket to accept a connection."""


def table(root: Path) -> list[str]:
    """The lines of the table, with a heading."""
    names = aliases(root)
    serving = answers(root / EXEC_SOCKET)
    rows = [("OBJECT", "STATUS", "SESSION", "DRIVER", "ALIASES")]
    for triple in objects(root):
        try:
            control = read_control(triple)
            driver, session = ",".join(control.routes.drivers("default")), control.session
        except GatewayError as error:
            driver, session = f"({error})", "none"
        # A killed gateway leaves its last status.
        file = triple.control / "status"
        status = file.read_text("utf-8").strip() if serving and file.is_file() else OFFLINE
        own = sorted(alias for alias, target in names.items() if target == triple.name)
        rows.append((triple.name.name, status, session, driver, " ".join(own)))
    for triple in others(root):
        if triple.name.kind == "agent":
            file = triple.control / "status"
            status = file.read_text("utf-8").strip() if serving and file.is_file() else OFFLINE
            model = (triple.control / "model").read_text("utf-8").strip()
            rows.append((str(triple.name), status, "socket", f"model {model}", ""))
    return _lines(rows)


def tool_table(root: Path) -> list[str]:
    """The lines of the table of tools, with a heading."""
    rows = [("TOOL", "CAP", "DESCRIPTION")]
    for triple in others(root):
        if triple.name.kind == "tool":
            cap, about = (read_text(triple.control / name).strip() for name in ("cap", "description"))
            rows.append((triple.name.name, cap.replace("\n", ","), about))
    return _lines(rows)


def _lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def answers(path: Path) -> bool:
    """Whether a process listens on a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        try:
            client.connect(os.fspath(path))
        except OSError:
            return False
        return True


def aliases(root: Path) -> dict[str, ObjectName | None]:
    """Symlinks in `model/` and in the user's own folder → the objects that they lead to, None for none."""
    found: dict[str, ObjectName | None] = {}
    for folder, prefix in ((root / "model", ""), (root / "home" / str(os.geteuid()) / "model", "~/")):
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_symlink() and not path.name.endswith(RESERVED):
                    try:
                        found[prefix + path.name] = name_at(root, path)
                    except GatewayError:
                        found[prefix + path.name] = None
    return found

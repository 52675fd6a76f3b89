"""The objects of a tree as a table, from its files alone."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.ctx.objects import ObjectName, name_at
from gateway.ctx.tree import objects, read_control
from gateway.errors import GatewayError


def table(root: Path) -> list[str]:
    """The lines, a heading first."""
    names = aliases(root)
    rows = [("OBJECT", "STATUS", "SESSION", "DRIVER", "ALIASES")]
    for triple in objects(root):
        try:
            control = read_control(triple)
            driver, session = ",".join(control.routes.drivers("default")), control.session
        except GatewayError as error:
            driver, session = f"({error})", "none"
        status = (
            (triple.control / "status").read_text("utf-8").strip() if (triple.control / "status").is_file() else "-"
        )
        own = sorted(alias for alias, target in names.items() if target == triple.name)
        rows.append((triple.name.name, status, session, driver, " ".join(own)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def aliases(root: Path) -> dict[str, ObjectName | None]:
    """Symlinks below `model/` and the user's own folder, each with the object that it leads to; None: to none."""
    found: dict[str, ObjectName | None] = {}
    for folder, prefix in ((root / "model", ""), (root / "home" / str(os.geteuid()) / "model", "~/")):
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_symlink():
                    try:
                        found[prefix + path.name] = name_at(root, path)
                    except GatewayError:
                        found[prefix + path.name] = None
    return found

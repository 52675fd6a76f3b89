"""The folder of a room's files, and the files as a jailed filesystem with the room's quota."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.tools.files import file_system

if TYPE_CHECKING:
    from gateway.tools.vfs import JailedFileSystem


def folder(config: Config, tenant: str, room_id: str) -> Path:
    """The folder of a room's files. It may not exist yet."""
    key = hashlib.sha256(f"{tenant}\0{room_id}".encode()).hexdigest()[:32]
    return config.state_dir / "rooms" / "files" / key


def files(config: Config, tenant: str, room_id: str) -> JailedFileSystem:
    """The room's files, within its quota. Creates the folder; blocks; raises OSError."""
    return file_system(config.rooms.tools, folder(config, tenant, room_id))

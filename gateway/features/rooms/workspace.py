"""A room's files: its own folder, as a jailed filesystem with a quota, and the host's folders that it has mounted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest
from gateway.features.agents.settings import Rooms
from gateway.features.agents.tools import Mount
from gateway.features.agents.tools.files import file_system

if TYPE_CHECKING:
    from gateway.features.agents.tools.vfs import JailedFileSystem


LOCAL = "local"
"""The tenant of everybody on this machine, without keys."""


def folder(config: Config, tenant: str, room_id: str) -> Path:
    """The folder of a room's files. It may not exist yet."""
    key = hashlib.sha256(f"{tenant}\0{room_id}".encode()).hexdigest()[:32]
    return config.state_dir / "rooms" / "files" / key


def files(config: Config, tenant: str, room_id: str, mounts: Sequence[str] = ()) -> JailedFileSystem:
    """The room's files, within its quota. Creates the folder; blocks; raises OSError."""
    return file_system(config.section(Rooms).tools, folder(config, tenant, room_id), mounted(config, tenant, mounts))


def mounted(config: Config, tenant: str, names: Sequence[str]) -> dict[str, Mount]:
    """The mounts of these names that the configuration has, today, for the tenant."""
    found = {name: config.section(Rooms).mounts[name] for name in names if name in config.section(Rooms).mounts}
    return {
        name: Mount(
            path=mount.path, writable=mount.access == "edit", max_bytes=mount.quota_bytes, max_count=mount.quota_count
        )
        for name, mount in found.items()
        if tenant in (mount.tenants or (LOCAL,))
    }


def check_mounts(config: Config, tenant: str, names: Sequence[str]) -> None:
    """Raises ProviderInvalidRequest for a mount that the tenant doesn't have."""
    known = mounted(config, tenant, [*config.section(Rooms).mounts])
    for index, name in enumerate(names):
        if name not in known:
            listed = ", ".join(known) or "none"
            message = f"mounts[{index}]: no mount {name!r}; rooms.mounts in config.yaml has for this tenant: {listed}"
            raise ProviderInvalidRequest(message, code="mount_unknown", param=f"mounts[{index}]")

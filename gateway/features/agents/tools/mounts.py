"""Files of a jail with folders of this machine below `/mnt`, each a jail of its own."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gateway.features.agents.tools.base import Mount
from gateway.features.agents.tools.vfs import DEEPEST, JailedFileSystem, Limits, names

MOUNTS = "mnt"
FOLDER = {"type": "directory", "size": 0, "mtime": 0.0, "mode": "dr-xr-xr-x"}


class MountedFileSystem(JailedFileSystem):
    """`/mnt/NAME` is the folder of the mount NAME; everything else is below `root`.

    Raises what JailedFileSystem raises; EROFS for a change of what is mounted read-only, ENOENT for a mounted folder
    that isn't there, EXDEV for a move between folders.
    """

    def __init__(self, root: Path, limits: Limits, mounts: Mapping[str, Mount]) -> None:
        super().__init__(root, limits)
        self._mounts = {name: _HostFolder(mount) for name, mount in mounts.items()}

    def _place(self, path: str) -> tuple[_HostFolder | None, str, str]:
        """The mount that a path is in, the path there, and what stands before it."""
        wanted = names(path)
        if wanted[:1] != (MOUNTS,) or len(wanted) < 2:
            return None, path, ""
        mount = self._mounts.get(wanted[1])
        if mount is None:
            raise OSError(errno.ENOENT, f"there is no mount {wanted[1]!r}")
        return mount, "/".join(wanted[2:]), f"{MOUNTS}/{wanted[1]}"

    def _changed(self, path: str) -> tuple[_HostFolder | None, str]:
        """The same for a change."""
        mount, inner, _ = self._place(path)
        if mount is None and names(path) == (MOUNTS,):
            raise OSError(errno.EPERM, "/mnt has the mounts of the configuration, and nothing else")
        if mount is not None and not mount.writable:
            raise OSError(errno.EROFS, "the folder is mounted read-only")
        return mount, inner

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        mount, inner, before = self._place(path)
        if mount is not None:
            return _below(before, mount.info(inner))
        return {"name": MOUNTS, **FOLDER} if names(path) == (MOUNTS,) else super().info(path)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        mount, inner, before = self._place(path)
        if mount is not None:
            found = [_below(before, info) for info in mount.ls(inner)]
        elif names(path) == (MOUNTS,):
            found = [{"name": f"{MOUNTS}/{name}", **FOLDER} for name in sorted(self._mounts)]
        else:
            found = [info for info in super().ls(path) if info["name"] != MOUNTS]
            if not names(path):
                found = sorted([*found, {"name": MOUNTS, **FOLDER}], key=lambda info: str(info["name"]))
        return found if detail else [info["name"] for info in found]

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> BinaryIO:
        mount, inner, _ = self._place(path)
        return super()._open(path, mode) if mount is None else mount._open(inner, mode)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        mount, inner = self._changed(path)
        if mount is None:
            super().pipe_file(path, value, mode)
        else:
            mount.pipe_file(inner, value, mode)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        if names(path) == (MOUNTS,) or (self._place(path)[0] is not None and len(names(path)) == 2):
            raise OSError(errno.EEXIST, "it already exists")
        mount, inner = self._changed(path)
        if mount is None:
            super().mkdir(path, create_parents)
        else:
            mount.mkdir(inner, create_parents)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        mount, inner = self._changed(path)
        if mount is None:
            super().rm(path, recursive)
        else:
            mount.rm(inner, recursive)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        (source, from_inner), (target, to_inner) = self._changed(path1), self._changed(path2)
        if source is not target:
            raise OSError(errno.EXDEV, "files can't be moved between folders of the machine")
        if source is None:
            super().mv(path1, path2)
        else:
            source.mv(from_inner, to_inner)


class _HostFolder(JailedFileSystem):
    """A folder that isn't ours: it is never created, and its owner's files count towards the quota."""

    def __init__(self, mount: Mount) -> None:
        if not mount.path.is_dir():
            raise OSError(errno.ENOENT, "the mounted folder isn't there")
        super().__init__(mount.path, Limits(mount.max_bytes, mount.max_count, DEEPEST))
        self.writable = mount.writable


def _below(before: str, info: dict[str, Any]) -> dict[str, Any]:
    return {**info, "name": f"{before}/{info['name']}".rstrip("/")}

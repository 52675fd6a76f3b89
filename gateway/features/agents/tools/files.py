"""`tool.*`: list, read and change files in a jailed folder."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.features.agents.settings import RoomTools
from gateway.features.agents.tools.base import Access, Mount, Run, Tool, ToolContext, ToolError

if TYPE_CHECKING:
    from gateway.features.agents.tools.vfs import JailedFileSystem

Work = Callable[["JailedFileSystem", dict[str, Any], int], dict[str, Any]]
"""(files, arguments, most characters of a result) → result."""

ENTRIES = 500
"""Most entries of a result."""
SEEN = 20_000
"""Most entries that a call reads."""

CODES = {
    errno.ENOENT: ("not_found", "there is no such file or folder"),
    errno.EEXIST: ("exists", ""),
    errno.ENOTDIR: ("not_a_folder", "it isn't a folder"),
    errno.EISDIR: ("not_a_file", ""),
    errno.ENOTEMPTY: ("not_empty", "the folder isn't empty: pass recursive"),
    errno.EDQUOT: ("quota_exceeded", ""),
    errno.ENOSPC: ("quota_exceeded", "the disk is full"),
    errno.EPERM: ("path_refused", ""),
    errno.EACCES: ("path_refused", "the gateway has no permission"),
    errno.ELOOP: ("path_refused", "links are not followed"),
    errno.EXDEV: ("path_refused", "it is on another file system"),
    errno.EFBIG: ("too_large", "it has too many files or bytes: choose a folder further down"),
    errno.EROFS: ("read_only", "the folder is mounted read-only"),
    errno.EINVAL: ("path_refused", ""),
    errno.ENAMETOOLONG: ("path_refused", "the path is too long"),
    errno.EBUSY: ("busy", ""),
}
"""OSError → code and message for the model. An empty message stands for the error's own, from `vfs`."""

_PATH = {"type": "string", "maxLength": 4096, "description": "Path from the root of the files, `/`."}
_DEPTH = {"type": "integer", "minimum": 1, "maximum": 64, "description": "Folders to go down at most."}
_ALL = {"type": "boolean", "description": "Also names that begin with a dot. Default false."}


def file_system(settings: RoomTools, folder: Path, mounts: Mapping[str, Mount] | None = None) -> JailedFileSystem:
    """The files below `folder`, within the quota of the settings, and the mounted folders as `/mnt/NAME`.

    Creates the folder; blocks; raises OSError.
    """
    from gateway.features.agents.tools.vfs import JailedFileSystem, Limits

    limits = Limits(settings.files_max_bytes, settings.files_max_count, settings.files_max_depth)
    if mounts:
        from gateway.features.agents.tools.mounts import MountedFileSystem

        return MountedFileSystem(folder, limits, mounts)
    return JailedFileSystem(folder, limits)


def tools(settings: RoomTools) -> list[Tool]:
    def rooms_own(context: ToolContext, folder: Path) -> JailedFileSystem:
        return file_system(settings, folder, context.mounts)

    return [
        Tool(
            name=name,
            description=description,
            parameters=_object(properties, required),
            access=access,
            effect="read" if access == "read" else "write",
            # A second change finds what the first one left: `exists`, `not_found`.
            idempotent=access == "read",
            cost="local",
            run=runner(rooms_own, settings.max_result_chars, work),
        )
        for name, access, description, properties, required, work in rows(settings)
    ]


_Row: TypeAlias = tuple[str, Access, str, dict[str, Any], list[str], Work]


def rows(settings: RoomTools) -> list[_Row]:
    """Name, access, description, properties, required ones and work of each tool."""
    return [*_reading(settings), *_EDITING]


def _reading(settings: RoomTools) -> list[_Row]:
    maximum = settings.max_result_chars
    return [
        (
            *("tool.ls", "read", "List the entries of a folder of the room's files."),
            {
                "path": {**_PATH, "description": "Folder or file; default `/`."},
                "all": _ALL,
                "long": {"type": "boolean", "description": "Also size, time of change and mode. Default false."},
                "recursive": {"type": "boolean", "description": "Also what lies in its folders. Default false."},
                "max_depth": _DEPTH,
            },
            [],
            _ls,
        ),
        (
            *("tool.cat", "read", "Read one of the room's files."),
            {
                "path": _PATH,
                "encoding": {
                    "enum": ["utf-8", "utf-16", "latin-1", "ascii", "base64"],
                    "description": "Default utf-8; base64 gives the bytes as they are.",
                },
                "max_chars": {"type": "integer", "minimum": 1, "maximum": maximum},
            },
            ["path"],
            _cat,
        ),
        (
            *("tool.glob", "read", "Find the room's files by a pattern: * ? [abc] within a name, ** for any folders."),
            {
                "pattern": {"type": "string", "minLength": 1, "maxLength": 500},
                "cwd": {**_PATH, "description": "Folder that the pattern starts at; default `/`."},
                "all": _ALL,
                "type": {"enum": ["file", "directory", "any"], "description": "Default any."},
                "max_depth": _DEPTH,
            },
            ["pattern"],
            _glob,
        ),
    ]


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def runner(opened: Callable[[ToolContext, Path], JailedFileSystem], maximum: int, work: Work) -> Run:
    """Runs `work` on the files of the context, in a thread. opened: makes them of their folder."""

    def blocking(context: ToolContext, given: dict[str, Any]) -> dict[str, Any]:
        if context.files is None:
            raise ToolError("not_available", "there are no files here")
        try:
            return work(opened(context, context.files), given, maximum)
        except OSError as error:
            if error.errno not in CODES:
                raise
            code, message = CODES[error.errno]
            raise ToolError(code, message or str(error.strerror)) from None

    async def run(context: ToolContext, given: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(blocking, context, given)

    return run


def _ls(files: JailedFileSystem, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    path = given.get("path", "/")
    top = files.info(path)
    if top["type"] != "directory":
        return {"path": _absolute(top), "entries": [_entry(top, given)], "truncated": False}
    depth = given.get("max_depth", 64) if given.get("recursive") else 1
    entries, truncated = _first(_visible(files, path, depth, given), maximum)
    return {"path": _absolute(top), "entries": [_entry(info, given) for info in entries], "truncated": truncated}


def _cat(files: JailedFileSystem, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    path, encoding = given["path"], given.get("encoding", "utf-8")
    maximum = given.get("max_chars", maximum)
    with files.open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(maximum // 4 * 3 if encoding == "base64" else 4 * maximum + 4)
    cut = len(data) < size
    if encoding == "base64":
        content = base64.b64encode(data).decode()
    else:
        try:
            # Cutting a file may split its last character.
            content = data.decode(encoding, "strict" if not cut else "ignore")
        except UnicodeDecodeError:
            raise ToolError("not_text", f"the file isn't {encoding} text; base64 reads any file") from None
    result = {"path": "/" + "/".join(_names(path)), "encoding": encoding, "size": size, "content": content[:maximum]}
    return {**result, "truncated": cut or len(content) > maximum}


def _glob(files: JailedFileSystem, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    cwd, kind = given.get("cwd", "/"), given.get("type", "any")
    pattern = _names(given["pattern"])
    if len(pattern) > 64:
        raise ToolError("invalid_arguments", "the pattern has more than 64 names")
    if files.info(cwd)["type"] != "directory":
        raise ToolError("not_a_folder", "cwd isn't a folder")
    top = len(_names(cwd))
    depth = given.get("max_depth", 64 if "**" in pattern else max(len(pattern), 1))
    hidden = given.get("all") or any(name.startswith(".") for name in pattern)
    matches = (
        info
        for info in _visible(files, cwd, depth, {**given, "all": hidden})
        if kind in ("any", info["type"]) and _matches(tuple(info["name"].split("/")[top:]), pattern)
    )
    entries, truncated = _first(matches, maximum)
    return {"matches": [_absolute(info) for info in entries], "truncated": truncated}


def _mkdir(files: JailedFileSystem, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    path = given["path"]
    if given.get("parents"):
        files.makedirs(path, exist_ok=True)
    else:
        files.mkdir(path, create_parents=False)
    return {"path": "/" + "/".join(_names(path)), "created": True}


def _rm(files: JailedFileSystem, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    path = given["path"]
    try:
        files.rm(path, recursive=given.get("recursive", False))
    except FileNotFoundError:
        if not given.get("force"):
            raise
        return {"path": "/" + "/".join(_names(path)), "removed": False}
    return {"path": "/" + "/".join(_names(path)), "removed": True}


def _mv(files: JailedFileSystem, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    files.mv(given["source"], given["destination"])
    source, destination = ("/" + "/".join(_names(given[key])) for key in ("source", "destination"))
    return {"source": source, "destination": destination}


def _names(path: str) -> tuple[str, ...]:
    from gateway.features.agents.tools.vfs import names

    return names(path)


def _visible(files: JailedFileSystem, path: str, depth: int, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what is below a folder; without `all`, not the hidden files and folders."""
    top = len(_names(path))
    for seen, info in enumerate(files.below(path, depth)):
        if seen >= SEEN:
            raise ToolError("too_large", f"more than {SEEN} entries: choose a folder further down")
        if given.get("all") or not any(name.startswith(".") for name in info["name"].split("/")[top:]):
            yield info


def _first(infos: Iterator[dict[str, Any]], maximum: int) -> tuple[list[dict[str, Any]], bool]:
    """The first entries that fit, and whether there are more."""
    entries: list[dict[str, Any]] = []
    for info in infos:
        maximum -= len(info["name"])
        if len(entries) == ENTRIES or maximum < 0:
            return entries, True
        entries.append(info)
    return entries, False


def _absolute(info: dict[str, Any]) -> str:
    return f"/{info['name']}"


def _entry(info: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    entry = {"path": _absolute(info), "type": info["type"]}
    if given.get("long"):
        changed = datetime.fromtimestamp(info["mtime"], UTC).isoformat(timespec="seconds")
        entry |= {"size": info["size"], "modified": changed.replace("+00:00", "Z"), "mode": info["mode"]}
    return entry


@lru_cache(maxsize=256)
def _name_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Matches name by name; `**` matches any number of names. Takes time in the product of the two lengths."""
    reached = {0}
    for name in (*path, None):
        # `**` also matches no name.
        for at in range(len(pattern)):
            if at in reached and pattern[at] == "**":
                reached.add(at + 1)
        if name is None:
            break
        reached = {
            after
            for at in reached
            if at < len(pattern)
            for after in ((at,) if pattern[at] == "**" else (at + 1,))
            if pattern[at] == "**" or _name_pattern(pattern[at]).match(name)
        }
    return len(pattern) in reached


_EDITING: list[_Row] = [
    (
        *("tool.mkdir", "edit", "Make one folder among the room's files."),
        {
            "path": _PATH,
            "parents": {
                "type": "boolean",
                "description": "Also make the folders above it, and let it be there already. Default false.",
            },
        },
        ["path"],
        _mkdir,
    ),
    (
        *("tool.rm", "edit", "Remove one of the room's files or folders."),
        {
            "path": _PATH,
            "recursive": {"type": "boolean", "description": "A folder with all that is in it. Default false."},
            "force": {"type": "boolean", "description": "No error where there is nothing. Default false."},
        },
        ["path"],
        _rm,
    ),
    (
        *("tool.mv", "edit", "Rename or move one of the room's files or folders; it overwrites nothing."),
        {"source": _PATH, "destination": {**_PATH, "description": "The new path, its own name included."}},
        ["source", "destination"],
        _mv,
    ),
]

"""`fs.*`: list, read and change files in a folder of this machine, which is jailed like a room's but has no quota."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.features.agents.settings import RoomTools
from gateway.features.agents.tools import curl, data, files
from gateway.features.agents.tools.base import Tool, ToolContext, ToolError

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.features.agents.tools.vfs import JailedFileSystem

NAMES = {
    "tool.ls": ("fs.list", "List the entries of a folder; `/` is the folder you work in."),
    "tool.cat": ("fs.read", "Read a file."),
    "tool.glob": ("fs.find", "Find files by a pattern: * ? [abc] within a name, ** for any folders."),
    "tool.mkdir": ("fs.mkdir", "Make a folder."),
    "tool.rm": ("fs.remove", "Remove a file or folder."),
    "tool.mv": ("fs.move", "Rename or move a file or folder; overwrites nothing."),
}
"""Tool of a room's files → name and description of the same tool for a folder of this machine."""

LONGEST = 1_000_000
"""Characters that `fs.write` writes."""

_WRITE = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 4096, "description": "Path of the file."},
        "content": {"type": "string", "maxLength": LONGEST, "description": "Its whole text."},
    },
    "required": ["path", "content"],
    "additionalProperties": False,
}


def tools(settings: RoomTools) -> list[Tool]:
    """The tools that work in a folder of this machine: `fs.*`, and those that need no files."""
    return [*fs_tools(settings), *curl.tools(settings), *data.tools(settings)]


def fs_tools(settings: RoomTools) -> list[Tool]:
    maximum = settings.max_result_chars
    work = {name: work for name, _, _, _, _, work in files.rows(settings)}
    made = [
        replace(tool, name=name, description=description, run=files.runner(opened, maximum, work[tool.name]))
        for tool in files.tools(settings)
        for name, description in (NAMES[tool.name],)
    ]
    write = Tool(
        name="fs.write",
        description="Write a text file as a whole: makes it, or replaces what it has.",
        parameters=_WRITE,
        access="edit",
        effect="write",
        idempotent=True,
        cost="local",
        run=files.runner(opened, maximum, _write),
    )
    return [*made, write]


def opened(context: ToolContext, folder: Path) -> JailedFileSystem:
    """Raises ToolError if there is no such folder."""
    from gateway.features.agents.tools.vfs import JailedFileSystem

    if not folder.is_dir():
        raise ToolError("not_found", "the folder to work in doesn't exist")
    return JailedFileSystem(folder, None)


def _write(files: JailedFileSystem, given: dict[str, Any], maximum: int) -> dict[str, Any]:
    written = given["content"].encode()
    files.pipe_file(given["path"], written)
    return {"path": f"/{files._strip_protocol(given['path'])}", "size": len(written)}

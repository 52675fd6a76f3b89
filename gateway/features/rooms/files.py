"""A room's files over HTTP: list, upload, get, delete, and all of a folder as a zip."""

from __future__ import annotations

import asyncio
import errno
import tempfile
import threading
import weakref
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from gateway.errors import ProviderInvalidRequest
from gateway.features.agents.tools.files import CODES
from gateway.features.rooms.endpoints import enveloped
from gateway.features.rooms.service import Rooms
from gateway.observe.shares import has_share
from gateway.server.asgi import ASGIApp
from gateway.server.http import Request, download
from gateway.server.principal import Principal

if TYPE_CHECKING:
    from gateway.features.agents.tools.vfs import JailedFileSystem

T = TypeVar("T")

MAX_ENTRIES = 1000
ZIP_ENTRIES, ZIP_BYTES = 20_000, 256 * 1024**2
"""Entries and bytes of files that one zip may have."""
ZIPS = 8
"""Zips on disk at a time: a client that reads slowly keeps its own there."""
PART = 256 * 1024

STATUS = {"not_found": 404, "exists": 409, "busy": 409, "not_empty": 409, "quota_exceeded": 413, "read_only": 403}
"""Code → HTTP status; of all others 400."""


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Raises ProviderInvalidRequest in place of the file system's errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in CODES:
            raise
        code, message = CODES[error.errno]
        status = STATUS.get(code, 400)
        text = f"{path or '/'}: {message or error.strerror}"
        raise ProviderInvalidRequest(text, code=f"file_{code}", status=status, param="path") from None


async def _on(
    request: Request,
    path: str,
    work: Callable[[JailedFileSystem], T],
    rooms: Rooms | None = None,
    *,
    change: bool = False,
) -> T:
    """Runs `work` on the room's files in a thread."""
    service = rooms or request.services.shared(Rooms)
    opened = await service.files(request.principal.tenant, request.path_params["id"], change=change)

    def run() -> T:
        with _told(path):
            return work(opened())

    return await asyncio.to_thread(run)


def _shown(info: dict[str, Any]) -> dict[str, Any]:
    changed = datetime.fromtimestamp(info["mtime"], UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"path": f"/{info['name']}", "type": info["type"], "size": info["size"], "modified": changed}


@enveloped
async def listed(rooms: Rooms, request: Request) -> tuple[int, Any]:
    path = request.query_params.get("path", "/")
    limit, depth = request.number("limit", MAX_ENTRIES, MAX_ENTRIES, 1), 64 if request.flag("recursive") else 1

    def work(files: JailedFileSystem) -> dict[str, Any]:
        top = files.info(path)
        found = [top] if top["type"] != "directory" else list(islice(files.below(path, depth), limit + 1))
        return {"entries": [_shown(info) for info in found[:limit]], "more": len(found) > limit}

    return 200, await _on(request, path, work, rooms)


@enveloped
async def upload(rooms: Rooms, request: Request) -> tuple[int, Any]:
    """Replaces a file, as a whole or not at all; makes the folders above it."""
    path, content = request.path_params["path"], await request.body()

    def work(files: JailedFileSystem) -> tuple[int, dict[str, Any]]:
        above = path.strip("/").rpartition("/")[0]
        if above:
            files.makedirs(above, exist_ok=True)
        try:
            files.pipe_file(path, content, "create")
            status = 201
        except FileExistsError:
            files.pipe_file(path, content)
            status = 200
        return status, _shown(files.info(path))

    return await _on(request, path, work, rooms, change=True)


@enveloped
async def delete(rooms: Rooms, request: Request) -> tuple[int, Any]:
    path, recursive = request.path_params["path"], request.flag("recursive")
    await _on(request, path, lambda files: files.rm(path, recursive=recursive), rooms, change=True)
    return 200, None


async def content(request: Request) -> ASGIApp:
    path = request.path_params["path"]
    file: BinaryIO = await _on(request, path, lambda files: files.open(path, "rb"))
    return download(file, path.rpartition("/")[2], "application/octet-stream", {})


async def zipped(request: Request) -> ASGIApp:
    """`x-ctxgate-skipped` counts the links and other things that aren't plain files."""
    path = request.query_params.get("path", "/")
    file, skipped = await _on(request, path, lambda files: packed(files, path, request.principal))
    name = path.strip("/").rpartition("/")[2] or "files"
    return download(file, f"{name}.zip", "application/zip", {"x-ctxgate-skipped": str(skipped)})


_zips: Counter[str] = Counter()
"""By tenant."""
_counting = threading.RLock()


def _count(tenant: str, number: int) -> None:
    with _counting:
        _zips[tenant] += number


def packed(files: JailedFileSystem, path: str, principal: Principal) -> tuple[BinaryIO, int]:
    left, skipped = ZIP_BYTES, 0
    top = len(path.strip("/")) + 1 if path.strip("/") else 0
    tenant = principal.tenant
    with _counting:
        if not has_share(tenant, _zips[tenant] + 1, _zips.total() + 1, ZIPS):
            raise OSError(errno.EBUSY, "other zips are being sent: retry")
        _zips[tenant] += 1
    found = tempfile.TemporaryFile()  # noqa: SIM115 - the answer closes it
    weakref.finalize(found, _count, tenant, -1)
    try:
        with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
            for number, info in enumerate(files.below(path)):
                if number >= ZIP_ENTRIES or left < info["size"]:
                    raise OSError(errno.EFBIG, "")
                name = info["name"][top:]
                if info["type"] == "directory":
                    archive.mkdir(name)
                    continue
                try:
                    source = files.open(info["name"], "rb")
                except OSError:
                    skipped += 1
                    continue
                with source, archive.open(name, "w") as target:
                    while part := source.read(min(PART, left + 1)):
                        left -= len(part)
                        if left < 0:  # it grew meanwhile
                            raise OSError(errno.EFBIG, "")
                        target.write(part)
    except BaseException:
        found.close()
        raise
    found.seek(0)
    return found, skipped

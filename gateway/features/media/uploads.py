"""Uploads on disk: forms whose files may be larger than memory, and other bodies.

An upload comes whole before an engine hears of it. So a slow client takes no place at an engine and keeps no model in
memory, the model's name may stand behind the file, and the engine gets the body as fast as it reads.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from gateway.backends import Forward
from gateway.errors import ProviderUnavailable
from gateway.features.media.settings import Media
from gateway.features.media.wire.form import BadForm, FileStart, FormReader
from gateway.server.bodies import Bodies, Body, pieces
from gateway.server.http import Request
from gateway.server.principal import LOCAL, Principal
from gateway.services import Services
from gateway.wire.body import invalid_form

STEP = 256 * 1024
"""Bytes of an upload that are in memory at a time."""


class Uploads:
    """The uploads of this process; `services.shared(Uploads)`."""

    def __init__(self, services: Services) -> None:
        self._config = services.gateway.config
        self.folder = self._config.state_dir / "uploads"
        self._services = services
        self._bodies = Bodies(0, "on disk", "media.max_upload_bytes", "media.max_uploads_bytes")

    def begin(self, principal: Principal = LOCAL) -> Upload:
        """principal: whose share of the disk it takes."""
        settings = self._services.gateway.config.section(Media)
        self._bodies.maximum = settings.max_uploads_bytes
        return Upload(self.folder, Body(self._bodies, settings.max_upload_bytes, principal))

    async def aclose(self) -> None:
        """Holds nothing open: a file without a name goes with its last reader."""


class StoredFile(NamedTuple):
    """A file of a form. at, size: where its content is in the upload."""

    name: str
    filename: str
    kind: str
    at: int
    size: int


class Upload:
    """The content of one upload, in a file without a name. Close it. body: counts what came."""

    def __init__(self, folder: Path, body: Body) -> None:
        self.size = 0
        self.fields: dict[str, list[str]] = {}
        self.files: list[StoredFile] = []
        self.body = body
        self._folder = folder
        self._file: BinaryIO | None = None
        self._unwritten: list[bytes] = []
        self._waiting = 0
        """Bytes of `_unwritten`."""

    async def write(self, piece: bytes) -> None:
        """Raises ProviderUnavailable if the disk is full."""
        self.size += len(piece)
        self._unwritten.append(piece)
        self._waiting += len(piece)
        if self._waiting >= STEP:
            await self.flush()

    async def flush(self) -> None:
        """Call it after the last `write`. Raises ProviderUnavailable."""
        unwritten, self._unwritten, self._waiting = self._unwritten, [], 0
        try:
            await asyncio.to_thread(self._write, unwritten)
        except OSError as error:
            message = f"an upload can't be kept in {self._folder.name} of the state folder: {error.strerror or error}"
            raise ProviderUnavailable(message, code="upload_unwritable") from error

    def _write(self, unwritten: list[bytes]) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115 - `close` closes it
        self._file.writelines(unwritten)

    def file(self, name: str) -> StoredFile | None:
        return next((file for file in self.files if file.name == name), None)

    def field(self, name: str) -> str | None:
        return next(iter(self.fields.get(name, ())), None)

    def leave_out(self, names: Iterable[str]) -> None:
        """Removes these fields and files; [] behind a name, as one of several has it, is no part of it."""
        bare = {name.removesuffix("[]") for name in names}
        self.fields = {name: values for name, values in self.fields.items() if name.removesuffix("[]") not in bare}
        self.files = [file for file in self.files if file.name.removesuffix("[]") not in bare]

    async def pieces(self, at: int, size: int) -> AsyncIterator[bytes]:
        while size > 0:
            piece = await asyncio.to_thread(self._read, at, min(size, STEP))
            if not piece:
                raise OSError("an upload is shorter than it was")
            at, size = at + len(piece), size - len(piece)
            yield piece

    def _read(self, at: int, size: int) -> bytes:
        assert self._file is not None
        self._file.seek(at)
        return self._file.read(size)

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self.body.close()


async def read_form(request: Request, named: Callable[[str], object]) -> Upload:
    """The form of a request. named: gets the model's name as soon as it has come; what it raises ends the upload.

    Raises ClientGone, and ProviderInvalidRequest for a bad form.
    """
    try:
        reader = FormReader(request.headers.get("content-type", ""))
    except BadForm as error:
        raise invalid_form(error) from None

    async def take(upload: Upload, piece: bytes) -> None:
        for event in reader.feed(piece):
            if isinstance(event, bytes):
                await upload.write(event)
                upload.files[-1] = upload.files[-1]._replace(size=upload.size - upload.files[-1].at)
            elif isinstance(event, FileStart):
                upload.files.append(StoredFile(*event, upload.size, 0))
            else:
                upload.fields.setdefault(event.name, []).append(event.value)
                if event.name == "model":
                    named(event.value)

    upload = await _read(request, take)
    try:
        reader.finish()
    except BadForm as error:
        upload.close()
        raise invalid_form(error) from None
    return upload


async def read_body(request: Request) -> Upload:
    """Any other body. Raises ClientGone."""
    return await _read(request, lambda upload, piece: upload.write(piece))


async def _read(request: Request, take: Callable[[Upload, bytes], Awaitable[None]]) -> Upload:
    upload = request.services.shared(Uploads).begin(request.principal)
    try:
        async for piece in pieces(upload.body, request.scope, request.receive):
            await take(upload, piece)
        await upload.flush()
    except BadForm as error:
        upload.close()
        raise invalid_form(error) from None
    except BaseException:
        upload.close()
        raise
    return upload


def form(path: str, fields: Iterable[tuple[str, str]], upload: Upload) -> Forward:
    """A request with these fields, and the files of the upload."""
    boundary = secrets.token_hex(16)
    heads = [_head(boundary, {"name": name}) + b"\r\n" + value.encode() + b"\r\n" for name, value in fields]
    before = b"".join(heads)
    files = [(_file_head(boundary, file), file) for file in upload.files]
    end = f"--{boundary}--\r\n".encode()
    size = len(before) + sum(len(head) + file.size + 2 for head, file in files) + len(end)

    async def body() -> AsyncIterator[bytes]:
        yield before
        for head, file in files:
            yield head
            async for piece in upload.pieces(file.at, file.size):
                yield piece
            yield b"\r\n"
        yield end

    return Forward("POST", path, f"multipart/form-data; boundary={boundary}", body, size)


def _file_head(boundary: str, file: StoredFile) -> bytes:
    head = _head(boundary, {"name": file.name, "filename": file.filename})
    kind = file.kind if file.kind.isprintable() else ""
    return head + f"Content-Type: {kind or 'application/octet-stream'}\r\n\r\n".encode()


def _head(boundary: str, named: Mapping[str, str]) -> bytes:
    # As browsers escape them.
    escapes = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}
    named = {key: value.translate(escapes) for key, value in named.items()}
    told = "; ".join(f'{key}="{value}"' for key, value in named.items())
    return f"--{boundary}\r\nContent-Disposition: form-data; {told}\r\n".encode()

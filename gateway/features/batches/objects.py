"""OpenAI's files and batches: validates requests and the lines of input files, writes objects and lines of output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from gateway.errors import ProviderInvalidRequest
from gateway.wire import body
from gateway.wire.chat import encode
from gateway.wire.stored import check_metadata
from gateway.wire.values import MAX_TOKENS

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]  # fmt: skip

OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""The states of a batch with work left."""
WINDOW_SECONDS = 24 * 3600
MAX_FAULTS = 100
"""Faults of an input file that a failed batch lists."""
LONGEST_ID = 512
"""Characters of a `custom_id`."""
EXPIRY_SECONDS = 3600, 30 * 86400
"""The bounds of `expires_after`: OpenAI's limits."""
UNANSWERED = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "The batch was cancelled before this request was answered.",
    "storage_limit_exceeded": "The user's files and answers exceed batches.storage_max_bytes.",
}
"""Why a line has no answer: OpenAI's codes, and one of ours."""


class ExpiresAfter(Struct):
    anchor: Literal["created_at"]
    seconds: int


class CreateBatch(Struct):
    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateBatch:
        """Raises ProviderInvalidRequest, which names the invalid field."""
        request = body.read(_batch_decoder, data)
        check_metadata(request.metadata)
        if request.output_expires_after is not None:
            check_expiry(request.output_expires_after.seconds, "output_expires_after")
        return request


class Fault(Struct):
    """What is wrong with one line, numbered from 1, or with the whole file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Line(NamedTuple):
    """A request of a batch. request: JSON of its `custom_id` and of its body, as the gateway will ask it."""

    number: int
    custom_id: str
    model: str
    request: bytes


class _Line(Struct):
    custom_id: str
    method: str
    url: str
    body: Raw


class _Body(Struct):
    """What is read of a line's body. The rest of it isn't decoded: it may have millions of fields."""

    model: Raw = Raw(b'""')
    stream: Raw = Raw(b"false")
    background: Raw = Raw(b"false")


class Kept(Struct):
    """The `request` of a `Line`."""

    custom_id: str
    body: Raw


_batch_decoder = msgspec.json.Decoder(CreateBatch)
_line_decoder = msgspec.json.Decoder(_Line)
_body_decoder = msgspec.json.Decoder(_Body)
decode_kept = msgspec.json.Decoder(Kept).decode
_decode_text = msgspec.json.Decoder(str).decode


class LineReader:
    """Reads an input file piece by piece: `feed` for each piece, then `finish`; both return what has become whole.

    It stops at MAX_FAULTS.
    """

    def __init__(self, endpoint: Endpoint, maximum: int) -> None:
        """maximum: lines that a batch may have."""
        self.total = 0
        self._endpoint = endpoint
        self._maximum = maximum
        self._ids: set[str] = set()
        self._number = 0
        self._faults = 0
        self._rest = b""

    def feed(self, data: bytes) -> list[Line | Fault]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        return list(self._read(whole))

    def finish(self) -> list[Line | Fault]:
        found = list(self._read([self._rest]))
        if not self.total and not self._faults and not found:
            found.append(Fault("empty_file", "The input file has no requests."))
        return found

    def _read(self, lines: list[bytes]) -> Iterator[Line | Fault]:
        for line in lines:
            if self._faults == MAX_FAULTS:
                return
            self._number += 1
            if not line.strip():
                continue
            self.total += 1
            if self.total == self._maximum + 1:
                self._faults += 1
                message = f"A batch may have {self._maximum} requests (batches.max_lines)."
                yield Fault("too_many_requests", message, line=self._number)
            if self.total <= self._maximum:
                found = self._parsed(line)
                self._faults += isinstance(found, Fault)
                yield found

    def _parsed(self, text: bytes) -> Line | Fault:
        try:
            line = body.read(_line_decoder, text, MAX_TOKENS)
            if not bytes(line.body).startswith(b"{"):
                raise ProviderInvalidRequest("body: expected `object`", param="body")
            known = body.read(_body_decoder, bytes(line.body), MAX_TOKENS)
        except ProviderInvalidRequest as error:
            message = error.message.replace("the request body", "the line")
            return Fault("invalid_json_line", message, error.param, self._number)
        if (fault := self._fault(line, known)) is not None:
            code, message, param = fault
            return Fault(code, message, param, self._number)
        self._ids.add(line.custom_id)
        fields = bytes(line.body).rstrip()[:-1].rstrip()
        # The last of two fields of one name counts.
        asked = Raw(fields + (b"" if fields.endswith(b"{") else b",") + b'"service_tier":"flex"}')
        request = {"custom_id": line.custom_id, "body": asked}
        return Line(self._number, line.custom_id, _text(known.model), encode(request))

    def _fault(self, line: _Line, known: _Body) -> tuple[str, str, str] | None:
        """Code, message and the field at fault."""
        if not 1 <= len(line.custom_id) <= LONGEST_ID:
            return "invalid_custom_id", f"custom_id: use 1 to {LONGEST_ID} characters", "custom_id"
        if line.custom_id in self._ids:
            return "duplicate_custom_id", f"custom_id: another line has {line.custom_id!r}", "custom_id"
        if line.method != "POST":
            return "invalid_method", f"method: must be POST, not {line.method[:20]!r}", "method"
        if line.url != self._endpoint:
            return "invalid_url", f"url: must be the batch's endpoint, {self._endpoint}", "url"
        for name in ("stream", "background"):
            if bytes(getattr(known, name)) == b"true":
                return "invalid_request", f"body.{name}: not in a batch", f"body.{name}"
        return None


def _text(value: Raw) -> str:
    try:
        # NUL: PostgreSQL's texts can't have it, and no model's name does.
        return _decode_text(value).replace("\0", "")
    except msgspec.DecodeError:
        return ""  # the endpoint itself refuses it


def check_expiry(seconds: int, param: str) -> int:
    """Raises ProviderInvalidRequest."""
    least, maximum = EXPIRY_SECONDS
    if not least <= seconds <= maximum:
        raise ProviderInvalidRequest(f"{param}.seconds: must be from {least} to {maximum}", param=param)
    return seconds


def file_object(row: Any) -> dict[str, Any]:
    """row: of the table `files`."""
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.bytes,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(request: CreateBatch, id: str, created_at: int) -> dict[str, Any]:
    """A new batch, without its counts."""
    return {
        "id": id,
        "object": "batch",
        "endpoint": request.endpoint,
        "errors": None,
        "input_file_id": request.input_file_id,
        "completion_window": request.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": created_at,
        "in_progress_at": None,
        "expires_at": created_at + WINDOW_SECONDS,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "metadata": request.metadata,
    }


def answered(custom_id: str, status: int, answer: bytes) -> bytes:
    """The line of a request that was answered, if only by an error. answer: JSON."""
    response = {"status_code": status, "request_id": f"req_{uuid4().hex}", "body": Raw(answer)}
    return _output(custom_id, response, None)


def unanswered(custom_id: str, code: str) -> bytes:
    """The line of an unanswered request. code: of UNANSWERED."""
    return _output(custom_id, None, {"code": code, "message": UNANSWERED[code]})


def _output(custom_id: str, response: Any, error: Any) -> bytes:
    return encode(
        {"id": f"batch_req_{uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}
    )  # fmt: skip

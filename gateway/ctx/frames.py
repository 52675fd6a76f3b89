"""Parses and checks the requests of the socket protocol (object ABI). No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.config.projection import is_component
from gateway.ctx.errors import TooLong
from gateway.errors import ProviderInvalidRequest

MAX_FRAME = 1024 * 1024
"""Bytes, including the newline."""
MAX_EXEC_FRAME = 8 * MAX_FRAME
"""Bytes of the runner's frame: an input of 1 MiB is longer as JSON."""
MAX_INPUT = MAX_FRAME

Scope = Literal["private", "shared", "temp"]


class _Request(Struct, tag_field="op", kw_only=True):
    pass


class Send(_Request, tag="send", kw_only=True):
    """Asks the object. id: chosen by the client; the same id again is a retry."""

    id: str
    input: str
    session: str = "default"
    scope: Scope = "private"
    cwd: str | UnsetType = UNSET


class Resume(_Request, tag="resume", kw_only=True):
    """Follows a session. after: an event's id; by default all events. scope: by default private, then shared."""

    session: str = "default"
    after: str | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET


class Cancel(_Request, tag="cancel", kw_only=True):
    """Cancels a run. id: of the run, or of the message that started it."""

    id: str


class Ping(_Request, tag="ping", kw_only=True):
    pass


class Exec(_Request, tag="exec", kw_only=True):
    """An executed object; only on the runner's socket. object: kind/name."""

    object: str
    input: str
    run: str = "r1"


R = TypeVar("R")
Request = Send | Resume | Cancel | Ping
_decode_request: Callable[[bytes], Request] = msgspec.json.Decoder(Request).decode
_decode_exec = msgspec.json.Decoder(Exec).decode


def parse(frame: bytes | Literal["too long"]) -> Request:
    """Parses a frame of an object's socket; ignores unknown fields.

    Raises ProviderInvalidRequest (EINVAL) and TooLong (EMSGSIZE).
    """
    request = _parsed(frame, _decode_request)
    _check(request)
    return request


def parse_exec(frame: bytes | Literal["too long"]) -> Exec:
    """Parses the first frame of the runner's socket. Raises like `parse`. Any later frame cancels the run."""
    request = _parsed(frame, _decode_exec)
    _component("run", request.run)
    _input(request.input)
    return request


def _parsed(frame: bytes | Literal["too long"], decode: Callable[[bytes], R]) -> R:
    if isinstance(frame, str):
        raise TooLong(f"the frame exceeds {MAX_FRAME} bytes")
    try:
        if not frame.isascii():
            # The decoder checks only the fields that it reads.
            frame.decode()
        return decode(frame)
    except msgspec.ValidationError as error:
        raise ProviderInvalidRequest(f"the frame is not a request: {error}") from None
    except msgspec.DecodeError as error:
        raise ProviderInvalidRequest(f"the frame is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise ProviderInvalidRequest("the frame is not valid UTF-8") from None
    except RecursionError:
        raise ProviderInvalidRequest("the frame is nested too deeply") from None


def _check(request: Request) -> None:
    match request:
        case Send():
            _component("id", request.id)
            _component("session", request.session)
            _input(request.input)
            if request.cwd is not UNSET:
                _cwd(request.cwd)
        case Resume():
            _component("session", request.session)
            if request.after is not UNSET:
                _component("after", request.after)
        case Cancel():
            _component("id", request.id)


def _component(field: str, value: str) -> None:
    if not is_component(value):
        raise ProviderInvalidRequest(f"{field}: {value[:80]!r} is not a name: letters, digits and . _ + -, at most 64")


def _input(text: str) -> None:
    if not text.strip():
        raise ProviderInvalidRequest("input: it is empty")
    if "\0" in text:
        raise ProviderInvalidRequest("input: it contains NUL")
    if len(text) > MAX_INPUT or len(text.encode()) > MAX_INPUT:
        raise TooLong(f"input: it exceeds {MAX_INPUT} bytes")


def _cwd(path: str) -> None:
    if not path.startswith("/") or ".." in path.split("/") or any(char < " " for char in path) or len(path) > 4096:
        raise ProviderInvalidRequest("cwd: must be an absolute path without .. and control characters")

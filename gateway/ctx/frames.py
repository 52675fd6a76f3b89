"""Requests of the socket protocol, read and checked (object ABI). No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.config.projection import is_component
from gateway.ctx.errors import TooLong
from gateway.errors import ProviderInvalidRequest

MAX_FRAME = 1024 * 1024
"""Bytes, the newline among them."""
MAX_EXEC_FRAME = 8 * MAX_FRAME
"""Of the runner's one frame: an input of 1 MiB grows when it becomes JSON."""
MAX_INPUT = MAX_FRAME

Scope = Literal["private", "shared", "temp"]


class _Request(Struct, tag_field="op", kw_only=True):
    pass


class Send(_Request, tag="send", kw_only=True):
    """id: the client's own, by which a retry is known."""

    id: str
    input: str
    session: str = "default"
    scope: Scope = "private"
    cwd: str | UnsetType = UNSET


class Resume(_Request, tag="resume", kw_only=True):
    """after: an event's id; all events where it isn't given. scope: the private session first where it isn't given."""

    session: str = "default"
    after: str | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET


class Cancel(_Request, tag="cancel", kw_only=True):
    """id: of a run, or of the client's message that began it."""

    id: str


class Ping(_Request, tag="ping", kw_only=True):
    pass


class Exec(_Request, tag="exec", kw_only=True):
    """An object was executed; on the runner's socket alone. object: kind/name."""

    object: str
    input: str
    run: str = "r1"


R = TypeVar("R")
Request = Send | Resume | Cancel | Ping
_decode_request: Callable[[bytes], Request] = msgspec.json.Decoder(Request).decode
_decode_exec = msgspec.json.Decoder(Exec).decode


def parse(frame: bytes | Literal["too long"]) -> Request:
    """A frame of an object's socket. Unknown fields are ignored.

    Raises ProviderInvalidRequest (EINVAL), and TooLong (EMSGSIZE).
    """
    request = _parsed(frame, _decode_request)
    _check(request)
    return request


def parse_exec(frame: bytes | Literal["too long"]) -> Exec:
    """The one frame of the runner's socket: whatever it says later cancels. Raises as `parse`."""
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
        raise ProviderInvalidRequest(f"the frame is no request: {error}") from None
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
        raise ProviderInvalidRequest(f"{field}: {value[:80]!r} isn't a name: letters, digits and . _ + -, at most 64")


def _input(text: str) -> None:
    if not text.strip():
        raise ProviderInvalidRequest("input: there is nothing in it")
    if "\0" in text:
        raise ProviderInvalidRequest("input: it has a NUL")
    if len(text) > MAX_INPUT or len(text.encode()) > MAX_INPUT:
        raise TooLong(f"input: it exceeds {MAX_INPUT} bytes")


def _cwd(path: str) -> None:
    if not path.startswith("/") or ".." in path.split("/") or any(char < " " for char in path) or len(path) > 4096:
        raise ProviderInvalidRequest("cwd: write an absolute path without .. and control characters")

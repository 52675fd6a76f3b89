"""Parses and checks the requests of the socket protocol (object ABI). No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.errors import TooLong
from gateway.features.ctx.projection import is_component
from gateway.wire.body import told

MAX_FRAME = 1024 * 1024
"""Bytes, including the newline."""
MAX_INPUT = MAX_FRAME

Scope = Literal["private", "shared", "temp"]


def event_id(number: int) -> str:
    """The id of an event of a model's session."""
    return f"event-{number}"


class _Request(Struct, tag_field="op", kw_only=True):
    pass


class ToolResult(Struct):
    """What a tool returned that the client has run. id: of the tool call."""

    id: str
    content: Any


class Send(_Request, tag="send", kw_only=True):
    """Asks the object. id: chosen by the client; the same id again is a retry.

    It has `input`, or `tool_results` of the calls in the last answer, or both. tools: that the model may call in this
    answer, as in a chat request.
    """

    id: str
    input: str | None = None
    tool_results: list[ToolResult] | UnsetType = UNSET
    tools: list[dict[str, Any]] | UnsetType = UNSET
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


Request = Send | Resume | Cancel | Ping
_decode_request: Callable[[bytes], Request] = msgspec.json.Decoder(Request).decode


def parse(frame: bytes | Literal["too long"]) -> Request:
    """Parses a frame of an object's socket; ignores unknown fields.

    Raises ProviderInvalidRequest (EINVAL) and TooLong (EMSGSIZE).
    """
    request = _parsed(frame)
    _check(request)
    return request


def check_run(run: str) -> None:
    """Raises ProviderInvalidRequest for what can't be the id of an executed object's run."""
    _component("run", run)


def _parsed(frame: bytes | Literal["too long"]) -> Request:
    if isinstance(frame, str):
        raise TooLong(f"the frame exceeds {MAX_FRAME} bytes")
    try:
        if not frame.isascii():
            # The decoder checks only the fields that it reads.
            frame.decode()
        return _decode_request(frame)
    except msgspec.ValidationError as error:
        raise ProviderInvalidRequest(f"the frame is not a request: {told(error)}") from None
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
            if request.input is not None:
                _input(request.input)
            elif not request.tool_results:
                raise ProviderInvalidRequest("input: it is missing, and there are no tool_results either")
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

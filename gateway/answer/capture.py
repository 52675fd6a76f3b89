"""Records requests and answers as bytes, if config.yaml enables it."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

import msgspec

from gateway.answer.normalize import Answer
from gateway.wire.chat import ChatRequest, decode

MAX_RECORDING = 1024 * 1024
"""Largest recording of one exchange in bytes. A longer exchange sets `cut`."""

SMALL_FIELD = 1024
"""The longest fields, in bytes, that the recording of a long request keeps."""


class Recording(msgspec.Struct, weakref=True):
    """raw: the engine's payloads, or its one body. clean: the payloads or body for the client.

    request: the client's fields, unchanged. sent: the fields that the engine got otherwise, None for one that it didn't
    get. cut: the recording ends before the answer does. size: bytes so far. accepted: when the engine accepted the
    request, by time.monotonic; 0 if none did. marks: for each step of the answer, milliseconds since then, and how many
    of `raw` and of `clean` it has brought.
    """

    request: dict[str, msgspec.Raw]
    tool_call_format: str
    reasoning_open: bool
    cut: bool
    size: int
    raw: list[bytes] = []
    clean: list[bytes] = []
    sent: dict[str, msgspec.Raw | None] = {}
    accepted: float = 0.0
    marks: list[tuple[float, int, int]] = []

    def add(self, raw: list[bytes], clean: list[bytes]) -> None:
        size = sum(map(len, raw)) + sum(map(len, clean))
        self.cut = self.cut or self.size + size > MAX_RECORDING
        if not self.cut:
            self.size += size
            self.raw += raw
            self.clean += clean
            self.marks.append((round(1000 * (monotonic() - self.accepted), 1), len(raw), len(clean)))

    def clear(self) -> None:
        self.request, self.raw, self.clean, self.size, self.sent, self.marks = {}, [], [], 0, {}, []

    @property
    def kept(self) -> bool:
        """Whether it still has content: the log drops the oldest recordings."""
        return bool(self.raw or self.request)

    @property
    def completion_id(self) -> str | None:
        """The `id` of the client's answer, if it has one."""
        found = decode(self.clean[0]).get("id") if self.clean else None
        return found if isinstance(found, str) else None


class RecordedAnswer(Answer):
    """An answer that records its bytes before and after normalising."""

    __slots__ = ("recording",)
    recording: Recording

    def __init__(
        self, request: ChatRequest, *args: Any, sent: Mapping[str, msgspec.Raw] | None = None, **settings: Any
    ) -> None:
        super().__init__(request, *args, **settings)
        reading = self.contents.reading
        self.recording = recorded(request.fields, reading.spec.name, reading.reasoning_open)
        self.recording.accepted = monotonic()
        if sent is not None:
            differing = {name: value for name, value in sent.items() if not _same(value, request.fields.get(name))}
            # Half of what is left: the answer needs room, too.
            kept, size, _ = _kept(differing, (MAX_RECORDING - self.recording.size) // 2)
            self.recording.sent = {**kept, **{name: None for name in request.fields if name not in sent}}
            self.recording.size += size

    def passes(self, payload: bytes, out: list[bytes]) -> bool:
        before, passes = len(out), False
        try:
            passes = super().passes(payload, out)
        finally:
            self.recording.add([payload], [payload] if passes else out[before:])
        return passes

    def finish(self, *, done: bool) -> list[bytes]:
        clean = super().finish(done=done)
        self.recording.add([], clean)
        return clean

    def remaining(self) -> list[bytes]:
        clean = super().remaining()
        self.recording.add([], clean)
        return clean

    def whole(self, payload: bytes) -> bytes:
        clean: list[bytes] = []
        try:
            clean.append(super().whole(payload))
        finally:
            self.recording.add([payload], clean)
        return clean[0]


def recorded(fields: Mapping[str, msgspec.Raw], format: str = "", reasoning_open: bool = False) -> Recording:
    """The recording of a request without an answer so far."""
    kept, size, cut = _kept(fields, MAX_RECORDING)
    return Recording(kept, format, reasoning_open, cut, size)


def asked(body: bytes) -> Recording | None:
    """The recording of a request that was refused unread; None for a body that isn't a JSON object."""
    try:
        return recorded(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def model_in(body: bytes) -> str:
    """The model that a possibly invalid request names; "" if it names none."""
    try:
        named = msgspec.json.decode(body, type=_Named).model
        model = msgspec.json.decode(named) if len(named) <= LONGEST_MODEL else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return model if isinstance(model, str) else ""


LONGEST_MODEL = 4096
"""Bytes. Whatever is longer is no name, and isn't decoded."""


class _Named(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b'""')


def _same(one: msgspec.Raw, other: msgspec.Raw | None) -> bool:
    return other is not None and bytes(one) == bytes(other)


def _kept(fields: Mapping[str, msgspec.Raw], maximum: int) -> tuple[dict[str, msgspec.Raw], int, bool]:
    """Copies of the fields, only the short ones if all exceed `maximum` bytes; their size; whether some are missing."""
    size = sum(len(bytes(value)) for value in fields.values())
    if cut := size > maximum:
        fields = {name: value for name, value in fields.items() if len(bytes(value)) <= SMALL_FIELD}
        size = sum(len(bytes(value)) for value in fields.values())
        if size > maximum:
            fields, size = {}, 0
    # Copies, else each keeps all of the body.
    return {name: value.copy() for name, value in fields.items()}, size, cut

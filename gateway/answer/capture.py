"""Records requests and answers as bytes, if config.yaml enables it."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.answer.normalize import Answer
from gateway.wire.chat import ChatRequest, decode

MAX_RECORDING = 1024 * 1024
"""Largest recording of one exchange in bytes. A longer exchange sets `cut`."""

SMALL_FIELD = 1024
"""Bytes of a field that the recording of a longer request keeps."""


class Recording(msgspec.Struct):
    """raw: the engine's payloads, or its one body. clean: the payloads or body for the client.

    request: the client's fields, unchanged. cut: the recording ends before the answer does. size: bytes so far.
    """

    request: dict[str, msgspec.Raw]
    tool_call_format: str
    reasoning_open: bool
    raw: list[bytes] = []
    clean: list[bytes] = []
    cut: bool = False
    size: int = 0

    def add(self, raw: list[bytes], clean: list[bytes]) -> None:
        size = sum(map(len, raw)) + sum(map(len, clean))
        self.cut = self.cut or self.size + size > MAX_RECORDING
        if not self.cut:
            self.size += size
            self.raw += raw
            self.clean += clean

    def clear(self) -> None:
        self.request, self.raw, self.clean, self.size = {}, [], [], 0

    @property
    def completion_id(self) -> str | None:
        """The `id` of the client's answer, if it has one."""
        found = decode(self.clean[0]).get("id") if self.clean else None
        return found if isinstance(found, str) else None


class RecordedAnswer(Answer):
    """An answer that records its bytes before and after normalising."""

    __slots__ = ("recording",)
    recording: Recording

    def __init__(self, request: ChatRequest, *args: Any, **settings: Any) -> None:
        super().__init__(request, *args, **settings)
        fields = dict(request.fields)
        size = sum(len(bytes(value)) for value in fields.values())
        if cut := size > MAX_RECORDING:
            fields = {name: value for name, value in fields.items() if len(bytes(value)) <= SMALL_FIELD}
            size = sum(len(bytes(value)) for value in fields.values())
            if size > MAX_RECORDING:
                fields, size = {}, 0
        fields = {name: value.copy() for name, value in fields.items()}  # else each keeps all of the body
        self.recording = Recording(fields, self._spec.name, self._reasoning_open, cut=cut, size=size)

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

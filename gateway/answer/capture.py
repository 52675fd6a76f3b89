"""An exchange kept as bytes, where config.yaml says so."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.answer.normalize import Answer
from gateway.wire.chat import ChatRequest, decode

MAX_RECORDING = 1024 * 1024
"""Bytes that are kept of one exchange; what comes later is left out, and that is said."""


class Recording(msgspec.Struct):
    """raw: the engine's payloads, or its one body. clean: what the client got of them.

    request: the client's fields as they came. cut: the recording ends before the answer did.
    """

    request: dict[str, msgspec.Raw]
    tool_call_format: str
    reasoning_open: bool
    raw: list[bytes] = []
    clean: list[bytes] = []
    cut: bool = False
    size: int = 0

    def keep(self, raw: list[bytes], clean: list[bytes]) -> None:
        size = sum(map(len, raw)) + sum(map(len, clean))
        self.cut = self.cut or self.size + size > MAX_RECORDING
        if not self.cut:
            self.size += size
            self.raw += raw
            self.clean += clean

    def forget(self) -> None:
        self.request, self.raw, self.clean, self.size = {}, [], [], 0

    @property
    def completion_id(self) -> str | None:
        """The `id` in the answer that the client got."""
        found = decode(self.clean[0]).get("id") if self.clean else None
        return found if isinstance(found, str) else None


class RecordedAnswer(Answer):
    """An answer whose bytes are kept, before and after."""

    __slots__ = ("recording",)
    recording: Recording

    def __init__(self, request: ChatRequest, *args: Any, **settings: Any) -> None:
        super().__init__(request, *args, **settings)
        fields = dict(request.fields)
        size = sum(len(bytes(value)) for value in fields.values())
        if cut := size > MAX_RECORDING:
            del fields["messages"]
        self.recording = Recording(fields, self._spec.name, self._reasoning_open, cut=cut, size=0 if cut else size)

    def passes(self, payload: bytes, out: list[bytes]) -> bool:
        before, passes = len(out), False
        try:
            passes = super().passes(payload, out)
        finally:
            self.recording.keep([payload], [payload] if passes else out[before:])
        return passes

    def finish(self, *, done: bool) -> list[bytes]:
        clean = super().finish(done=done)
        self.recording.keep([], clean)
        return clean

    def rest(self) -> list[bytes]:
        clean = super().rest()
        self.recording.keep([], clean)
        return clean

    def whole(self, payload: bytes) -> bytes:
        clean: list[bytes] = []
        try:
            clean.append(super().whole(payload))
        finally:
            self.recording.keep([payload], clean)
        return clean[0]

"""The last answers, kept in memory: how each went and, where config.yaml says so, its bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import monotonic, time
from typing import Any

import msgspec

from gateway.normalize import Answer
from gateway.stats import Ended, Outcome, Repairs, tokens
from gateway.wire.chat import ChatRequest, decode

MAX_RECORDING = 1024 * 1024
"""Bytes that are kept of one exchange; what comes later is left out, and that is said."""
MAX_RECORDED = 32 * 1024 * 1024
"""Bytes of all recordings together: the oldest lose theirs first."""


NONE = Repairs("none", {}, [])


class Recording(msgspec.Struct):
    """An exchange as bytes. raw: the engine's payloads, or its one body. clean: what the client got of them.

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

    @property
    def completion_id(self) -> str | None:
        """The `id` in the answer that the client got."""
        found = decode(self.clean[0]).get("id") if self.clean else None
        return found if isinstance(found, str) else None


class RecordedAnswer(Answer):
    """An answer whose bytes are kept, before and after."""

    __slots__ = ("recording",)

    def __init__(self, request: ChatRequest, *args: Any, **settings: Any) -> None:
        super().__init__(request, *args, **settings)
        fields = dict(request.fields)
        size = sum(len(bytes(value)) for value in fields.values())
        if cut := size > MAX_RECORDING:
            del fields["messages"]
        self.recording = Recording(fields, self._spec.name, self._reasoning_open, cut=cut, size=0 if cut else size)

    def feed(self, payloads: list[bytes], out: list[bytes]) -> None:
        before = len(out)
        try:
            super().feed(payloads, out)
        finally:
            self.recording.keep(payloads, out[before:])

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


class Entry(msgspec.Struct):
    """One answer. at: the moment of its end, in seconds since 1970. Durations are seconds.

    first_seconds: None where no payload of a stream came. warnings: codes of `normalizers.Warn`.
    """

    id: int
    at: float
    model: str
    stream: bool
    outcome: Outcome
    seconds: float
    first_seconds: float | None
    prompt_tokens: int
    completion_tokens: int
    mended: str
    healed: dict[str, int]
    warnings: list[str]
    recorded: bool


class RequestLog:
    """The last `size` answers. bodies: whether their bytes are kept, too."""

    def __init__(self, size: int, *, bodies: bool) -> None:
        self.bodies = bodies
        self._ended: deque[Ended] = deque(maxlen=size)
        self._total = 0
        self._recordings: dict[int, Recording] = {}
        """By their answer's number, the oldest first."""
        self._recorded = 0

    def add(self, ended: Ended, recording: Recording | None = None) -> None:
        self._total += 1
        self._ended.append(ended)
        if recording is not None:
            self._recordings[self._total] = recording
            self._recorded += recording.size
        if self._recordings:
            self._bound()

    def entries(self) -> Iterator[Entry]:
        """The newest first."""
        clock = time() - monotonic()
        for behind, ended in enumerate(reversed([*self._ended])):
            number = self._total - behind
            yield _entry(number, ended, clock, recorded=number in self._recordings)

    def find(self, key: str) -> tuple[Entry, Recording | None] | None:
        """By its number or, where bodies are kept, by the id of the completion as the client saw it."""
        for entry in self.entries():
            recording = self._recordings.get(entry.id)
            if key == str(entry.id) or (recording is not None and key == recording.completion_id):
                return entry, recording
        return None

    def configure(self, size: int, *, bodies: bool) -> None:
        """From now on; of what is kept, as much as there is room for stays."""
        self.bodies = bodies
        if size != self._ended.maxlen:
            self._ended = deque(self._ended, maxlen=size)
            self._bound()

    def _bound(self) -> None:
        """Drops the recordings of answers that are forgotten, and the oldest of those that are too many bytes."""
        oldest = self._total - len(self._ended)
        for number in [*self._recordings]:
            if number > oldest and self._recorded <= MAX_RECORDED:
                break
            self._recorded -= self._recordings.pop(number).size


def _entry(number: int, ended: Ended, clock: float, *, recorded: bool) -> Entry:
    prompt, completion, _ = tokens(ended.usage)
    repairs = ended.repairs or NONE
    return Entry(
        id=number,
        at=clock + ended.end,
        model=ended.model,
        stream=ended.stream,
        outcome=ended.outcome,
        seconds=ended.end - ended.began,
        first_seconds=ended.first - ended.began if ended.first else None,
        prompt_tokens=prompt,
        completion_tokens=completion,
        mended=repairs.mended,
        healed=dict(repairs.healed),
        warnings=repairs.warnings,
        recorded=recorded,
    )

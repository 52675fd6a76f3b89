"""Normalises an engine's answer: payloads in, payloads out, no I/O.

Streamed and whole answers go through the same `normalizers.Normalizer`, a whole one as a single piece, so they can't
differ. A payload that needs no change passes byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.answer import whole
from gateway.answer.contents import NOTHING, Contents, mended
from gateway.answer.reading import Reading, refusing
from gateway.answer.report import Report
from gateway.answer.stream import AnswerStream
from gateway.wire.chat import ChatRequest
from gateway.wire.engine import Decided, Fixup
from normalizers import FormatSpec


class Answer:
    """Normalises one answer: `whole` once, or `feed` for each batch of payloads and then `finish`.

    spec, reasoning_open, guarded, unmarked_guarded: see `Reading`. fixup: corrects the engine's own mistakes first.
    healed, decided: see `Report`.
    """

    __slots__ = ("_fixup", "_request", "_stream", "contents", "report")

    recording: Any = None
    """Its recording by `gateway.answer.capture`; None if there is none."""

    def __init__(
        self,
        request: ChatRequest,
        spec: FormatSpec,
        fixup: Fixup | None = None,
        *,
        reasoning_open: bool = False,
        guarded: bool = False,
        unmarked_guarded: bool = False,
        healed: Mapping[str, int] = NOTHING,
        decided: Decided | None = None,
    ) -> None:
        self._request = request
        self._fixup = fixup
        spec = refusing(spec) if request.limited else spec
        self.contents = Contents(Reading(request, spec, reasoning_open, guarded, unmarked_guarded))
        self.report = Report(healed, decided, request.fallback, fixup)
        self._stream: AnswerStream | None = None

    @property
    def mended(self) -> str:
        """The repairs of the model's calls so far, one of `gateway.wire.chat.MENDED`."""
        return mended(self.contents.choices.values()) if self.contents.choices else "none"

    def warnings(self) -> list[dict[str, str]]:
        """Problems in the answer and changes to the request's messages, each with a `code` and a `text`."""
        return self.report.warnings(self.contents.choices.values())

    @property
    def usage(self) -> Mapping[str, Any]:
        """The engine's token counts as OpenAI's `usage` object; empty until they arrive."""
        return self.contents.usage

    @property
    def chunks(self) -> int:
        """Number of streamed payloads so far. With most engines each is a token."""
        return self.contents.chunks

    def feed(self, payloads: list[bytes], out: list[bytes]) -> None:
        """Appends the clean payloads to `out`. Raises as `passes` does."""
        for payload in payloads:
            if self.passes(payload, out):
                out.append(payload)

    def passes(self, payload: bytes, out: list[bytes]) -> bool:
        """See `AnswerStream.passes`."""
        return (self._stream or self._begun()).passes(payload, out)

    def finish(self, *, done: bool) -> list[bytes]:
        """See `AnswerStream.finish`."""
        return (self._stream or self._begun()).finish(done=done)

    def remaining(self) -> list[bytes]:
        """See `AnswerStream.remaining`."""
        return (self._stream or self._begun()).remaining()

    def whole(self, payload: bytes) -> bytes:
        """See `gateway.answer.whole.read`."""
        return whole.read(payload, self.contents, self.report, self._fixup)

    def _begun(self) -> AnswerStream:
        self._stream = stream = AnswerStream(self._request, self.contents, self.report, self._fixup)
        return stream

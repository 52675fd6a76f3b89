"""What an engine tells only if it is asked, in the place where clients look for it."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from gateway.wire.chat import ChatRequest
from gateway.wire.engine import Fixup


class StopWord(Fixup):
    """Names the stop sequence that ended an answer of llama.cpp, as vLLM does in a choice's `stop_reason`.

    llama.cpp tells it only among the details of a `verbose` answer. In a stream they may come before the end.
    """

    every_chunk = True

    def __init__(self) -> None:
        self._word: str | None = None

    @classmethod
    def asked(cls, request: ChatRequest, fields: dict[str, Raw]) -> StopWord | None:
        """Asks for the details if the answer has to name its stop sequence."""
        if not request.names_stop:
            return None
        fields["verbose"] = Raw(b"true")
        return cls()

    def answer(self, answer: dict[str, Any]) -> None:
        self.chunk(answer)

    def chunk(self, chunk: dict[str, Any]) -> None:
        details = chunk.pop("__verbose", None)
        if isinstance(details, dict) and isinstance(word := details.get("stopping_word"), str):
            self._word = word or None
        for choice in chunk.get("choices") or ():
            if self._word is not None and choice.get("finish_reason"):
                choice["stop_reason"] = self._word

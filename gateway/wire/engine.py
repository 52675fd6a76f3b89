"""Values that pass between the pure stages of a request and the backends: no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

Notation = Literal["gbnf", "lark"]
"""How a grammar is written: as llama.cpp reads it, or as llguidance does."""


NEVER = 2.0
"""A threshold that no probability reaches."""


class Decision(Struct, frozen=True):
    """What is needed to decide, before an answer is written, whether it calls a tool.

    It does if the probability that its first token begins a call is at least `threshold`, and never with 1. openers:
    what a call may begin with. called, words: the grammars of an answer that calls, and of one that doesn't.
    """

    threshold: float
    openers: tuple[str, ...]
    called: str
    words: str

    def grammar(self, decided: Decided) -> str:
        return self.called if decided.calls else self.words


class Decided(Struct, frozen=True):
    """The decision for one answer: how likely its first token begins a call, and whether it calls."""

    probability: float
    threshold: float

    @property
    def calls(self) -> bool:
        return self.probability >= self.threshold < 1


class RawText(Struct, frozen=True):
    """How to ask for the model's raw text, unparsed by the engine.

    markers: special tokens to keep in the text. think: the pairs of marks around reasoning. grammar: what the whole
    answer must match. in_reasoning: the same for an answer that begins within reasoning. starts: marks behind which the
    grammar guards calls. unmarked: it also guards calls without marks at the answer's start. With either, the grammar
    allows any text outside of calls; with neither, it forces the whole answer. escaped: the request is escaped against
    control tokens in its texts, see `gateway.wire.control_tokens`. decision: whether the answer calls a tool is decided
    by this, where the engine can; None leaves it to the model.
    """

    markers: tuple[str, ...] = ()
    think: tuple[tuple[str, str], ...] = ()
    grammar: str | None = None
    in_reasoning: str | None = None
    starts: tuple[str, ...] = ()
    unmarked: bool = False
    escaped: bool = False
    decision: Decision | None = None

    @property
    def forced(self) -> bool:
        """Whether a grammar forces the answer's form."""
        return self.grammar is not None and not (self.starts or self.unmarked)


BROKEN_OFF = "broken_off"
"""The code of the warning that an engine broke its answer off: what the answer was to be, it isn't."""


class Fixup:
    """Corrects one engine's own mistakes before the answer is normalised; one object for each answer.

    A fixup corrects facts about one engine, each with a test from that engine, recorded or running. The laws that hold
    for every engine (call ids, indices, argument strings, finish_reason) belong to `gateway.answer.normalize`.
    """

    every_chunk = False
    """Whether `chunk` sees chunks of plain text too, not only those with calls, a finish_reason or no choice."""
    warnings: Sequence[dict[str, str]] = ()
    """What the client should know about this answer, each with a `code` and a `text`."""

    def answer(self, answer: dict[str, Any]) -> None:
        """Corrects a whole answer in place."""

    def chunk(self, chunk: dict[str, Any]) -> None:
        """Corrects a streamed chunk in place."""

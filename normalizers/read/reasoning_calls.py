"""Calls within reasoning. Some models call before they close their thinking, and the answer ends there."""

from __future__ import annotations

from collections.abc import Callable

from normalizers.read.region import Region
from normalizers.read.scan import Literals, skip_space
from normalizers.read.trial import Attempt
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex


class ReasoningCalls(Attempt):
    """Reads reasoning from a call's opener on. The calls count if they end the answer; else they are reasoning."""

    __slots__ = ("_closing", "_dialect_of", "_end", "_marks")

    def __init__(
        self,
        spec: FormatSpec,
        schemas: SchemaIndex,
        dialect_of: Callable[[FormatSpec], Callable[..., Region]],
        *,
        closing: tuple[str, ...],
    ) -> None:
        super().__init__(spec, schemas)
        self._dialect_of = dialect_of
        self._marks = Literals((*closing, *spec.openers))
        self._closing = closing
        self._end = False
        """The reasoning was closed, so that nothing may follow."""

    def step(self, text: str, pos: int, reason: str | None) -> int:
        if reason is not None and any(mark in "".join(self._raw) + text[pos:] for mark in self._closing):
            reason = "length"  # the reasoning has ended since: a call that is still open was abandoned
        return super().step(text, pos, reason)

    def _between(self, text: str, pos: int, reason: str | None) -> int:
        at = skip_space(text, pos)
        if at == len(text):
            self._wait = True
            if reason is not None:
                self.verdict = "calls" if self._counted else "text"
            return at
        final = reason is not None
        mark = "" if self._end else self._marks.begin(text, at, final=final)
        if mark in self._closing:
            self._end = True
            return at + len(mark)
        if not mark and Literals(self._spec.drop).begin(text, at, final=final):
            self.verdict = "calls" if self._counted else "text"
            return at
        if not mark:
            self.verdict = "text"
            return at
        if mark in self._spec.open:
            at += len(mark)
        self._reader = self._dialect_of(self._spec)(self._spec, self.trial, self._schemas, bare=False, opener="")
        return at

    def _settled(self) -> bool:
        return self._reader is None and self._counted > 0

"""The normaliser's interface, and the writer that emits the events of all dialects."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from normalizers.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArgs,
    ToolEnd,
    ToolStart,
    Warn,
)

if TYPE_CHECKING:
    from normalizers.spec import FormatSpec
    from normalizers.values.coerce import SchemaIndex

Mended = Literal["none", "lexical", "schema"]

_MENDED: tuple[Mended, ...] = ("none", "lexical", "schema")


_MAX_TRIES = 4
"""To find an id that the model has not written itself."""


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


@dataclass(slots=True)
class Told:
    """What is known of an answer's calls. called: one is complete: the answer's finish_reason is ``tool_calls``, unless
    it was cut. mended: the strongest repair so far, of a literal's spelling or of a value that its schema refused.
    unmarked: one had no marks.
    """

    called: bool = False
    mended: Mended = "none"
    unmarked: bool = False


class Normalizer:
    """Model text in, events out, for one answer. Neither method ever raises.

    A whole answer is read like a streamed one: ``feed(text)``, then ``finish(reason)``. Every split
    of the text gives the same events, once neighbouring deltas are joined.

    `feed` returns untouched text as one `TextDelta`, so that a caller can forward the original bytes.
    """

    __slots__ = ("told",)

    def __init__(self, told: Told | None = None) -> None:
        self.told = told or Told()

    @property
    def called(self) -> bool:
        return self.told.called

    @property
    def mended(self) -> Mended:
        return self.told.mended

    @property
    def unmarked(self) -> bool:
        return self.told.unmarked

    @property
    def held(self) -> tuple[str, int] | None:
        """The name of the call that is held back, and how many characters of it; None if none is."""
        return None

    @property
    def pending(self) -> int:
        """Characters that are held back, and then read at once: as arguments, or again if they are no calls."""
        return 0

    def passes(self, text: str) -> bool:
        """True if `feed(text)` would return `text` as it is, and needn't be called. False promises nothing."""
        return True

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of text makes certain; may be empty."""
        return [TextDelta(text)]

    def finish(self, reason: str | None) -> list[Event]:
        """End the answer with the engine's finish_reason; returns all that was held back."""
        return []


class CallWriter:
    """Collects the events of one answer. At most one call is open at a time.

    Assigns indices and ids, and applies the policies on whole calls: `allow` (false for
    ``tool_choice: "none"``), `parallel` (false keeps the first call only), and the format's
    `unknown_tools` and `after`. A call that a policy forbids is still read, and ends as a `Warn`;
    a call of an unknown tool becomes content (see `Region`).

    guarded: the calls are certain to be readable, so each leaves piece by piece. Any other call is held until it is
    complete, and leaves at once.
    """

    __slots__ = (
        "_allow",
        "_forbidden",
        "_ids",
        "_index",
        "_parallel",
        "_schemas",
        "_spec",
        "_used_ids",
        "dropped",
        "guarded",
        "out",
        "told",
    )

    def __init__(
        self,
        told: Told,
        spec: FormatSpec,
        schemas: SchemaIndex,
        ids: Callable[[], str],
        *,
        allow: bool,
        parallel: bool,
        guarded: bool,
    ) -> None:
        self.out: list[Event] = []
        self.guarded = guarded
        self.told = told
        self._spec = spec
        self._schemas = schemas
        self._ids = ids
        self._allow = allow
        self._parallel = parallel
        self._index = -1
        self._forbidden = ""
        self._used_ids: set[str] = set()
        self.dropped: list[str] = []
        """Text after a call that the format's `after` drops."""

    def text(self, text: str) -> None:
        if self.drops:
            self.dropped.append(text)
        elif text:
            self.out.append(TextDelta(text))

    @property
    def drops(self) -> bool:
        """Whether text that comes now is dropped."""
        return self.told.called and self._spec.after == "drop"

    def reasoning(self, text: str) -> None:
        if text:
            self.out.append(ReasoningDelta(text))

    def warn(self, code: str, text: str) -> None:
        self.out.append(Warn(code, text))

    def repaired(self, level: Mended) -> None:
        if _MENDED.index(level) > _MENDED.index(self.told.mended):
            self.told.mended = level

    def refuses(self, name: str) -> bool:
        """Whether a call of that tool is text: the request doesn't declare it."""
        return self._spec.unknown_tools == "refuse" and name not in self._schemas

    def expects(self, name: str) -> bool:
        """Whether a call may come whose tool's name begins like that."""
        return True

    def start(self, name: str, native_id: str | None = None) -> None:
        if self.refuses(name):
            self._forbidden = "unknown_tool"
        elif not self._allow:
            self._forbidden = "calls_not_allowed"
        elif not self._parallel and self._index >= 0:
            self._forbidden = "parallel_call_dropped"
        else:
            self._forbidden = ""
            self._index += 1
            for _ in range(_MAX_TRIES):
                if native_id and native_id not in self._used_ids:
                    break
                native_id = self._ids()
            assert native_id is not None
            self._used_ids.add(native_id)
            self.out.append(ToolStart(self._index, native_id, name))

    def args(self, json: str) -> None:
        if json and not self._forbidden:
            self.out.append(ToolArgs(self._index, json))

    @property
    def live(self) -> int:
        """Index of the open call; -1 if a policy forbids it."""
        return -1 if self._forbidden else self._index

    def end(self, raw: str) -> None:
        """End the call. `raw` is its source, for the warning if a policy forbids it."""
        if self._forbidden:
            self.warn(self._forbidden, raw)
        else:
            self.told.called = True
            self.out.append(ToolEnd(self._index))

    def cut(self) -> None:
        """The answer's length cut the call."""
        if not self._forbidden:
            self.out.append(ToolEnd(self._index, cut=True))

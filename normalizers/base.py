"""The contract of a normaliser, and the writer through which every dialect emits events."""

from __future__ import annotations

import secrets
from collections.abc import Callable
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


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class Normalizer:
    """Model text in, events out, for one answer. Neither method ever raises.

    The whole answer goes the same way as a streamed one: ``feed(text)`` then ``finish(reason)``.
    Any split of the text gives the same events up to joining of neighbouring deltas.

    Text that passes through untouched comes back from `feed` as exactly one `TextDelta` whose
    ``text`` is the very object that was fed, so that a caller may forward its original bytes.
    """

    __slots__ = ("called", "mended")

    def __init__(self) -> None:
        self.called = False
        """A call was completed: the answer's finish_reason is ``tool_calls`` unless it was cut."""
        self.mended: Mended = "none"
        """The strongest mending so far: spelling of a literal, or a value against its schema."""

    def passes(self, text: str) -> bool:
        """Whether `feed(text)` would be `text` itself and leave everything as it is; False says nothing."""
        return True

    def feed(self, text: str) -> list[Event]:
        """The events that the next piece of text makes certain; may be empty."""
        return [TextDelta(text)]

    def finish(self, reason: str | None) -> list[Event]:
        """The text has ended (`reason` is the engine's finish_reason): whatever was held back."""
        return []


class CallWriter:
    """Collects the events of one answer; at most one call is open at a time.

    Gives out indices and ids, and holds the policies on whole calls: `allow` (``tool_choice:
    "none"`` when false), `parallel` (only the first call when false) and the format's `unknown_tools`
    and `after`. A call that a policy forbids is read all the same and ends as a `Warn`, that of an
    unknown tool as content, too.
    """

    __slots__ = (
        "_allow",
        "_given",
        "_ids",
        "_index",
        "_muted",
        "_owner",
        "_parallel",
        "_schemas",
        "_spec",
        "dropped",
        "out",
    )

    def __init__(
        self,
        owner: Normalizer,
        spec: FormatSpec,
        schemas: SchemaIndex,
        ids: Callable[[], str],
        *,
        allow: bool,
        parallel: bool,
    ) -> None:
        self.out: list[Event] = []
        self._owner = owner
        self._spec = spec
        self._schemas = schemas
        self._ids = ids
        self._allow = allow
        self._parallel = parallel
        self._index = -1
        self._muted = ""
        self._given: set[str] = set()
        self.dropped: list[str] = []
        """Text behind a call that is not content by the format's `after`."""

    def text(self, text: str) -> None:
        if self.drops:
            self.dropped.append(text)
        elif text:
            self.out.append(TextDelta(text))

    @property
    def drops(self) -> bool:
        """Text that comes now is dropped."""
        return self._owner.called and self._spec.after == "drop"

    def reasoning(self, text: str) -> None:
        if text:
            self.out.append(ReasoningDelta(text))

    def warn(self, code: str, text: str) -> None:
        self.out.append(Warn(code, text))

    def mend(self, level: Mended) -> None:
        owner = self._owner
        if _MENDED.index(level) > _MENDED.index(owner.mended):
            owner.mended = level

    def start(self, name: str, native_id: str | None = None) -> None:
        if not self._allow:
            self._muted = "calls_not_allowed"
        elif not self._parallel and self._index >= 0:
            self._muted = "parallel_call_dropped"
        elif self._spec.unknown_tools == "refuse" and name not in self._schemas:
            self._muted = "unknown_tool"
        else:
            self._muted = ""
            self._index += 1
            if not native_id or native_id in self._given:
                native_id = self._ids()
            self._given.add(native_id)
            self.out.append(ToolStart(self._index, native_id, name))

    def args(self, json: str) -> None:
        if json and not self._muted:
            self.out.append(ToolArgs(self._index, json))

    @property
    def live(self) -> int:
        """Index of the open call; -1 if it is not told."""
        return -1 if self._muted else self._index

    def end(self, raw: str) -> None:
        """`raw` is the call as the model wrote it, for the warning when a policy drops it."""
        if self._muted:
            if self._muted == "unknown_tool":
                self.text(self._spec.unmarked(raw))
            self.warn(self._muted, raw)
        else:
            self._owner.called = True
            self.out.append(ToolEnd(self._index))

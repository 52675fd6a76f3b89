"""Calls on trial: read as any others, but held back until it is certain that they count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from normalizers.base import CallWriter, Told
from normalizers.read.region import Region
from normalizers.read.scan import Wait
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex, read_container, schema_part
from normalizers.values.fit import fits
from normalizers.values.strict_json import loads


@dataclass(slots=True)
class HeldCall:
    name: str
    native_id: str | None
    arguments: str
    """JSON text of an object, coerced to the tool's schema."""
    raw: str
    """The call's source."""


class Trial(CallWriter):
    """Takes the events of a region in place of the answer's writer. `commit` passes its calls on.

    `failed`: the region holds something that isn't a complete call of a declared tool. `undeclared`: it is a call of
    another tool. `was_cut`: the answer's length cut a call.

    Once `pass_on` says that the calls count, they go to the answer's writer as they come.
    """

    __slots__ = ("_arguments", "_name", "_native_id", "_writer", "calls", "failed", "undeclared", "was_cut")

    def __init__(self, spec: FormatSpec, schemas: SchemaIndex) -> None:
        super().__init__(Told(), spec, schemas, str, allow=True, parallel=True, guarded=False)
        self.calls: list[HeldCall] = []
        self.failed = self.undeclared = self.was_cut = False
        self._writer: CallWriter | None = None
        self._name = ""
        self._native_id: str | None = None
        self._arguments = ""

    def pass_on(self, writer: CallWriter) -> None:
        """From now on write calls to the answer piece by piece. None has begun yet."""
        self._writer = writer
        self.guarded = writer.guarded = True

    @property
    def live(self) -> int:
        return super().live if self._writer is None else self._writer.live

    def text(self, text: str) -> None:
        self.failed = True

    def reasoning(self, text: str) -> None:
        self.failed = True

    def warn(self, code: str, text: str) -> None:
        self.failed = True
        self.undeclared |= code == "unknown_tool"
        if self._writer is not None and self.was_cut:
            self._writer.warn(code, text)

    def refuses(self, name: str) -> bool:
        return name not in self._schemas

    def expects(self, name: str) -> bool:
        return bool(self.calls) or any(known.startswith(name) for known in self._schemas.names)

    def start(self, name: str, native_id: str | None = None) -> None:
        self._name, self._native_id, self._arguments = name, native_id, ""
        if self.refuses(name):
            self.failed = self.undeclared = True
        elif self._writer is not None:
            self._writer.start(name, native_id)

    def args(self, json: str) -> None:
        if self._writer is not None:
            self._writer.args(json)
        else:
            self._arguments += json

    def cut(self) -> None:
        self.failed = self.was_cut = True
        if self._writer is not None:
            self._writer.cut()

    def end(self, raw: str) -> None:
        if self._writer is not None:
            self._writer.end(raw)
        self.calls.append(HeldCall(self._name, self._native_id, self._arguments, raw))

    def fit(self, first: int = 0) -> bool:
        """Whether the arguments of the calls, from the first of these on, fit the schemas of their tools."""
        return all(self._fits(call) for call in self.calls[first:])

    def _fits(self, call: HeldCall) -> bool:
        try:
            arguments, schema = loads(call.arguments), self._schemas.schema(call.name)
        except ValueError:
            return False
        lists_tool = {"type", "properties"} <= arguments.keys() - self._schemas.parameters(call.name).keys()
        return not lists_tool and fits(arguments, schema) and not self._is_answer(call.raw)

    def _is_answer(self, raw: str) -> bool:
        """Whether the source is the object that the request asks for, or an item of it: it fits that schema, which also
        declares its keys."""
        root = self._schemas.answer
        source = None if root is None else read_container(raw[raw.find("{") :])
        if root is None or source is None:
            return False
        value = loads(source)
        asked = (schema for schema in (root, schema_part(root, root, None)) if schema is not None)
        return any(
            fits(value, schema) and all(schema_part(schema, root, key) is not None for key in value) for schema in asked
        )

    def commit(self, writer: CallWriter, calls: Sequence[HeldCall]) -> None:
        """Write these calls to the answer, if they aren't there yet."""
        for call in calls if self._writer is None else ():
            writer.start(call.name, call.native_id)
            writer.args(call.arguments)
            writer.end(call.raw)
        writer.repaired(self.told.mended)


Verdict = Literal["", "calls", "text"]


class Attempt:
    """Reads text that may be calls, and holds it back until there is a `verdict`. Subclasses say what may follow what.

    `step` reads on. After the verdict ``calls``, `calls` has them, and `rest` is what was read and belongs to none of
    them. After ``text``, `rest` is everything that was read.
    """

    __slots__ = ("_complete", "_counted", "_raw", "_reader", "_schemas", "_size", "_spec", "_wait", "trial", "verdict")

    def __init__(self, spec: FormatSpec, schemas: SchemaIndex) -> None:
        self.verdict: Verdict = ""
        self.trial = Trial(spec, schemas)
        self._spec = spec
        self._schemas = schemas
        self._counted = 0
        self._reader: Region | None = None
        self._raw: list[str] = []
        self._size = 0
        self._complete = 0
        self._wait = False

    @property
    def calls(self) -> list[HeldCall]:
        return self.trial.calls[: self._counted]

    @property
    def size(self) -> int:
        """Characters that were read."""
        return self._size

    def held(self) -> tuple[str, int] | None:
        """The call in progress: its name, and the number of characters held back."""
        found = self._reader.held() if self._reader is not None else None
        return None if found is None else (found[0], self._size)

    def rest(self) -> str:
        raw = "".join(self._raw)
        return raw[self._complete :] if self.verdict == "calls" else raw

    def step(self, text: str, pos: int, reason: str | None) -> int:
        """Read on; returns the position up to which the text is consumed. With a `reason`, sets the verdict."""
        start = pos
        self._wait = False
        while not (self.verdict or self._wait):
            if self._reader is None:
                try:
                    pos = self._between(text, pos, reason)
                except Wait:
                    break
            else:
                pos = self._read_calls(self._reader, text, pos, reason)
                if self._reader is None:
                    self._end_item(self._size + pos - start)
            if self._settled():
                self._complete = self._size + pos - start
        self._raw.append(text[start:pos])
        self._size += pos - start
        return pos

    def _read_calls(self, reader: Region, text: str, pos: int, reason: str | None) -> int:
        pos = reader.step(text, pos, reason)
        if reader.done:
            self._reader = None
        elif reader.successor is not None:
            self._reader = reader.successor
        else:
            self._wait = True
        return pos

    def _end_item(self, end: int) -> None:
        """Judge what the reader has read, up to `end`."""
        trial = self.trial
        if not trial.failed and len(trial.calls) > self._counted and self._fits():
            self._counted = len(trial.calls)
            self._complete = end
        else:
            self._refuse_item()

    # -- for subclasses to define --------------------------------------------------------------

    def _between(self, text: str, pos: int, reason: str | None) -> int:
        """Read what may stand around calls, and set `_reader` where one begins. Raises `Wait`."""
        raise NotImplementedError

    def _settled(self) -> bool:
        """Whether what was just read belongs to the calls before it."""
        return False

    def _fits(self) -> bool:
        return True

    def _refuse_item(self) -> None:
        """What was read isn't a call."""
        self.verdict = "text"

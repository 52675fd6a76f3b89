"""One choice of an answer: what its text, its reasoning and its calls have come to so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import count, takewhile
from typing import Any

from gateway.answer.native_calls import CONTENT, NativeCalls
from gateway.answer.reading import Reading
from gateway.answer.unread import Watch, may_be_unread
from gateway.wire.lenient import EscapeJoiner, joined
from gateway.wire.shape import ROLE
from normalizers import Event, Normalizer, ReasoningDelta, TextDelta, ToolArgs, ToolStart, Warn, fold
from normalizers.read.quotes import LEFT_OUT, LOOK_BACK

CLEAN_FINISH = ("stop", "tool_calls", "function_call", None)
"""Finish reasons to replace by `stop` or `tool_calls`. Any other (length, content_filter) stays."""


class AnswerChoice:
    """One choice of an answer, while it is read."""

    __slots__ = (
        *("_called", "_escapes", "_indices", "_native", "_numbers", "_passed", "_reading", "_unsaid", "_warnings"),
        *("finished", "index", "normalizer", "spoken", "thoughts", "watch"),
    )

    def __init__(self, index: int, reading: Reading) -> None:
        self.index = index
        self.watch = Watch() if may_be_unread(reading.request) else None
        self.normalizer = reading.text()
        self.finished = False
        self.spoken = False
        """The client has its role."""
        self._reading = reading
        self._native: NativeCalls | None = None
        self.thoughts: Normalizer | None = None
        """Reads the reasoning that the engine keeps apart: a call at its end counts if nothing follows it."""
        self._passed = LEFT_OUT  # so that white space isn't the beginning of the reasoning
        """The last characters of the reasoning before what is read."""
        self._unsaid: list[str] = []
        """What the client hasn't got of that reasoning."""
        self._called: list[Event] = []
        """What calls in it come to, if nothing follows it."""
        self._indices = count()
        self._numbers: dict[int, int] = {}  # the normaliser's index → the answer's
        self._escapes: EscapeJoiner | None = None
        """Of the arguments of the call in the text that is open; whole ones leave nothing behind."""
        self._warnings: list[dict[str, str]] = []

    def speak(self, delta: dict[str, Any]) -> dict[str, Any]:
        """The choice's next delta: only the first has a role. Clients that concatenate the texts of deltas, OpenAI's
        own among them, turn more of them into `assistantassistant…`."""
        role = {} if self.spoken else {"role": ROLE}
        self.spoken = True
        return {**role, **{name: value for name, value in delta.items() if name != "role"}}

    def reason(self, engine_reason: str | None) -> str:
        if engine_reason not in CLEAN_FINISH:
            return str(engine_reason)
        return "tool_calls" if self.called else "stop"

    @property
    def called(self) -> bool:
        """The model has called a tool."""
        return any(each is not None and each.called for each in (self.normalizer, self._native, self.thoughts))

    @property
    def held(self) -> tuple[str, int] | None:
        """The name and the characters so far of the call that is held back."""
        return (self._native and self._native.held) or self.normalizer.held

    @property
    def pending(self) -> int:
        """See `Normalizer.pending`; with the calls that the engine parsed."""
        native = None if self._native is None else self._native.held
        thoughts = 0 if self.thoughts is None else self.thoughts.pending
        return self.normalizer.pending + thoughts + (0 if native is None else native[1])

    def warnings(self) -> list[dict[str, str]]:
        """Those of the text and of the calls that the engine parsed."""
        return self._warnings if self._native is None else self._warnings + self._native.warnings()

    def unread(self, tools: Collection[str]) -> bool:
        """Whether its text, which has ended, is or looks like a call of a tool."""
        if self.watch is None:
            return False
        return any(warning["code"] in CONTENT for warning in self.warnings()) or self.watch.holds_call(tools)

    def deltas(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        """Turns events into OpenAI deltas; joins adjacent ones of one kind."""
        deltas: list[dict[str, Any]] = []
        for event in events:
            last = deltas[-1] if deltas else {}
            match event:
                case TextDelta(text):
                    if self.watch is not None:
                        self.watch.text(text)
                    if "content" in last:
                        last["content"] += text
                    else:
                        deltas.append({"content": text})
                case ReasoningDelta(text):
                    if self.watch is not None:
                        self.watch.thought(text)
                    if "reasoning" in last:
                        last["reasoning_content"] = last["reasoning"] = last["reasoning"] + text
                    else:
                        deltas.append({"reasoning_content": text, "reasoning": text})
                case ToolStart(index, call_id, name):
                    self._escapes = EscapeJoiner()
                    self._numbers[index] = number = next(self._indices)
                    function = {"name": joined(name)[0], "arguments": ""}
                    call = {"index": number, "id": call_id, "type": "function", "function": function}
                    deltas.append({"tool_calls": [call]})
                case ToolArgs(index, json):
                    number = self._numbers[index]
                    assert self._escapes is not None
                    json = self._escapes.feed(json)
                    calls = last.get("tool_calls")
                    if calls and calls[0]["index"] == number:
                        calls[0]["function"]["arguments"] += json
                    else:
                        deltas.append({"tool_calls": [{"index": number, "function": {"arguments": json}}]})
                case Warn(code, text):
                    self._warnings.append({"code": code, "text": text})
        return deltas

    def native(self) -> NativeCalls:
        """The reader of calls that the engine parsed."""
        if self._native is None:
            self._native = self._reading.native(self._indices, self.normalizer)
        return self._native

    def may_call(self, thought: str) -> bool:
        """Whether this piece of the reasoning that the engine keeps apart has to be read, since a call may begin in
        it, or has begun."""
        if self.thoughts is not None or self._reading.calls_in_reasoning(thought):
            return True
        self._passed = (self._passed + thought)[-LOOK_BACK:]
        return False

    def think(self, thought: str) -> list[Event]:
        """The events of more such reasoning."""
        if self.thoughts is None:
            self.thoughts = self._reading.thoughts()
            self.thoughts.feed(self._passed)
        self._unsaid.append(thought)
        events = self.thoughts.feed(thought)
        said = [] if self._called else [*takewhile(lambda event: isinstance(event, ReasoningDelta), events)]
        self._called += events[len(said) :]
        if said:
            self._unsaid = ["".join(self._unsaid)[len(fold(said).reasoning) :]]
        return said

    def end_thinking(self, reason: str | None, *, more: bool) -> list[Event]:
        """What is held back of such reasoning. more: something follows it, so that no call in it counts."""
        if self.thoughts is None:
            return []
        called = [] if more else self._called + self.thoughts.finish(reason)
        if called and self.thoughts.called:
            return called
        unsaid = "".join(self._unsaid)
        self.thoughts, self._unsaid, self._called = None, [], []
        return [ReasoningDelta(unsaid)] if unsaid else []

    def ending(self, reason: str | None) -> list[dict[str, Any]]:
        """The last deltas: all that is held back."""
        deltas = self.deltas(self.end_thinking(reason, more=False) + self.normalizer.finish(reason))
        if self._native is not None:
            text, calls = self._native.finish(reason)
            deltas += self.deltas([TextDelta(text)]) if text else []
            deltas += [{"tool_calls": calls}] if calls else []
        return deltas

    def close(self) -> None:
        """It has ended; text that comes all the same passes unchanged."""
        self.finished = True
        self.normalizer = Normalizer(self.normalizer.told)

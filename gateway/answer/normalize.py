"""Normalises an engine's answer: payloads in, payloads out, no I/O.

Streamed and whole answers go through the same `normalizers.Normalizer`, a whole one as a single piece, so they can't
differ. A payload that needs no change passes byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any

import msgspec

from gateway.answer.native_calls import CONTENT, NativeCalls
from gateway.answer.unread import Watch, may_be_unread, may_hold_call
from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.wire.chat import (
    CALLING,
    ChatRequest,
    Chunk,
    Delta,
    ToolCallDelta,
    check_envelope,
    decode,
    decode_answer,
    decode_chunk,
    encode,
)
from gateway.wire.engine import Decided, Fixup
from gateway.wire.lenient import BROKEN, EscapeJoiner, joined, without_half_escapes
from gateway.wire.nulls import MAX_KEPT_BYTES
from gateway.wire.shape import ROLE, Repairs
from gateway.wire.usage import is_sound as is_sound_usage
from gateway.wire.usage import whole_number
from gateway.wire.values import MOST_TOKENS, MOST_VALUES, exceeds
from normalizers import (
    Event,
    FormatSpec,
    Normalizer,
    ReasoningDelta,
    TextDelta,
    ToolArgs,
    ToolStart,
    Warn,
    coalesce,
    fold,
)
from normalizers.registry import normalizer, passes
from normalizers.values.coerce import SchemaIndex

CLEAN_FINISH = ("stop", "tool_calls", "function_call", None)
"""Finish reasons to replace by `stop` or `tool_calls`. Any other (length, content_filter) stays."""


_SHARED_FIELDS = ("id", "created", "model", "system_fingerprint")


_UNPRINTABLE = re.compile("[^!-~]")
_LONGEST_NAME = 64

MOST_CHOICES = 256
"""Twice as many as OpenAI's APIs give."""

_PROBABILITIES = frozenset(("logprobs", "top_logprobs", "n_probs"))
_NO_TOOLS = SchemaIndex(())
_MORE = "."
"""Stands for whatever follows the reasoning."""
_NOTHING: Mapping[str, int] = {}

ADAPTED = {
    "system_messages": "system or developer messages joined with the first one, or given to the user",
    "joined_messages": "messages joined with the one before, of the same role",
    "moved_results": "results moved behind their calls",
    "added_messages": "messages added where the chat template asks for one",
    "split_messages": "messages split, since they had several calls",
    "texts_apart": "texts beside calls sent in messages of their own, since the chat template drops them there",
    "calls_in_words": "calls and results written as text",
    "images_left_out": "images left out, since the model reads text",
    "images_described": "images replaced by another model's descriptions",
}
"""Changes to a conversation that the model, or its chat template, refuses as it is: counted in `healed`, told as
warnings."""


@lru_cache(maxsize=8)
def _kept_tools(raw: bytes) -> SchemaIndex:
    return SchemaIndex(decode(raw))


def _tools(raw: bytes) -> SchemaIndex:
    """Cached, because agents send the same list with every turn."""
    return _kept_tools(raw) if len(raw) <= MAX_KEPT_BYTES else SchemaIndex(decode(raw))


@lru_cache(maxsize=64)
def _refusing(spec: FormatSpec) -> FormatSpec:
    """The format without calls of undeclared tools. Cached, because `passes` keeps an entry for each format."""
    return spec if spec.unknown_tools == "refuse" else replace(spec, unknown_tools="refuse")


@lru_cache(maxsize=64)
def in_words(spec: FormatSpec) -> FormatSpec:
    """The format for an answer of which it was decided that it calls no tool: what looks like a call without marks is
    an example."""
    return replace(spec, unmarked="never", calls_in_reasoning="never")


class _Choice:
    """The state of one choice of the answer."""

    __slots__ = (
        "blanks",
        "escapes",
        "finished",
        "index",
        "indices",
        "native",
        "normalizer",
        "numbers",
        "spoken",
        "thoughts",
        "warnings",
        "watch",
    )

    def __init__(self, index: int, text: Normalizer, watch: Watch | None) -> None:
        self.index = index
        self.watch = watch
        self.normalizer = text
        self.native: NativeCalls | None = None
        self.thoughts: Normalizer | None = None
        """Reads the reasoning that the engine keeps apart: a call at its end counts if nothing follows it."""
        self.blanks = ""
        """The white space at the end of that reasoning."""
        self.indices = count()
        self.numbers: dict[int, int] = {}  # the normaliser's index → the answer's
        self.escapes: EscapeJoiner | None = None
        """Of the arguments of the call in the text that is open; whole ones leave nothing behind."""
        self.finished = False
        self.spoken = False
        """The client has its role."""
        self.warnings: list[dict[str, str]] = []

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
        readers = (self.normalizer, self.native, self.thoughts)
        return any(reader is not None and reader.called for reader in readers)

    def all_warnings(self) -> list[dict[str, str]]:
        """The warnings of the text and of the native calls."""
        return self.warnings if self.native is None else self.warnings + self.native.warnings()

    def unread(self, tools: Collection[str]) -> bool:
        """Whether its text, which has ended, is or looks like a call of a tool."""
        if self.watch is None:
            return False
        return any(warning["code"] in CONTENT for warning in self.all_warnings()) or self.watch.holds_call(tools)

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
                    self.escapes = EscapeJoiner()
                    self.numbers[index] = number = next(self.indices)
                    function = {"name": joined(name)[0], "arguments": ""}
                    deltas.append(
                        {"tool_calls": [{"index": number, "id": call_id, "type": "function", "function": function}]}
                    )
                case ToolArgs(index, json):
                    number = self.numbers[index]
                    assert self.escapes is not None
                    json = self.escapes.feed(json)
                    calls = last.get("tool_calls")
                    if calls and calls[0]["index"] == number:
                        calls[0]["function"]["arguments"] += json
                    else:
                        deltas.append({"tool_calls": [{"index": number, "function": {"arguments": json}}]})
                case Warn(code, text):
                    self.warnings.append({"code": code, "text": text})
        return deltas


class Answer:
    """Normalises one answer: `whole` once, or `feed` for each batch of payloads and then `finish`.

    spec: the format in which the model writes calls. fixup: corrects the engine's own mistakes first.
    reasoning_open: the text starts within the model's reasoning. healed: the repairs to the request's history,
    counted by kind. The answer's `ctxgate` field reports them, the fallback that answers, and what was decided.

    guarded, unmarked_guarded: every call that a mark begins is certain to be readable, so it can be sent piece by
    piece, and so is every call without marks that begins the answer. Any other is held back until it is complete. Set
    both before the first payload.
    """

    __slots__ = (
        "_first",
        "_fixup",
        "_only",
        "_owes_usage",
        "_reasoning_open",
        "_repairs",
        "_request",
        "_spec",
        "choices",
        "chunks",
        "decided",
        "guarded",
        "healed",
        "unmarked_guarded",
        "usage",
    )

    recording: Any = None
    """Its recording by `gateway.answer.capture`; None if there is none."""

    def __init__(
        self,
        request: ChatRequest,
        spec: FormatSpec,
        fixup: Fixup | None = None,
        *,
        reasoning_open: bool = False,
        healed: Mapping[str, int] = _NOTHING,
    ) -> None:
        self.guarded = self.unmarked_guarded = False
        self.healed = healed
        self.decided: Decided | None = None
        """Whether it calls a tool was decided before it was written, and how. Set it before the first payload."""
        self._request = request
        self._spec = _refusing(spec) if request.limited else spec
        self._reasoning_open = reasoning_open
        self._fixup = fixup
        self._owes_usage = request.include_usage
        self._only: _Choice | None = None
        self._first = b""  # the first payload of the stream
        every_chunk = fixup is not None and fixup.every_chunk
        self._repairs = Repairs(request.model) if every_chunk else None
        """Set once a payload of the stream has to be repaired; then all others go through it, too."""
        self.choices: dict[int, _Choice] = {}
        self.chunks = 0
        """Number of streamed payloads so far. With most engines each is a token."""
        self.usage: Mapping[str, Any] = _NOTHING
        """The engine's token counts as OpenAI's `usage` object; empty until they arrive."""

    @property
    def mended(self) -> str:
        """The repairs of the model's calls so far, one of `gateway.wire.chat.MENDED`."""
        return _mended(self.choices.values()) if self.choices else "none"

    def warnings(self) -> list[dict[str, str]]:
        """Problems in the answer and changes to the request's messages, each with a `code` and a `text`."""
        return self._warnings(self.choices.values())

    def _warnings(self, choices: Iterable[_Choice]) -> list[dict[str, str]]:
        changes = [
            {"code": kind, "text": f"{ADAPTED[kind]}: {number}"}
            for kind, number in self.healed.items()
            if kind in ADAPTED
        ]
        engine = self._fixup.warnings if self._fixup is not None else ()
        return [*changes, *engine, *(warning for choice in choices for warning in choice.all_warnings())]

    @property
    def unread(self) -> bool:
        """Whether the answer, which has ended, calls no tool and looks like a call that nobody read."""
        tools = self._request.tools
        if tools is None or any(choice.called for choice in self.choices.values()):
            return False
        names = _tools(tools).names
        return any(choice.unread(names) for choice in self.choices.values())

    def describe_held(self) -> str:
        """The progress of the call that is held back; "" if none is. Names only tools that the request declares."""
        for choice in [*self.choices.values()]:  # a whole answer may be read in a thread meanwhile
            native = choice.native
            if (held := (native and native.held) or choice.normalizer.held) is not None:
                name, size = held
                tools = self._request.tools
                known = tools is not None and name in _tools(tools)
                return f"{CALLING} {_printable(name)} characters={size}" if known else f"{CALLING} characters={size}"
        return ""

    def _choice(self, index: int) -> _Choice:
        choice = self.choices.get(index)
        if choice is None:
            if len(self.choices) == MOST_CHOICES:
                raise ProviderInvalidResponse(f"the engine's answer has more than {MOST_CHOICES} choices")
            text = self._reader(reasoning_open=self._reasoning_open, guarded=self.guarded)
            watch = Watch() if may_be_unread(self._request) else None
            choice = self.choices[index] = _Choice(index, text, watch)
            self._only = choice if len(self.choices) == 1 else None
        return choice

    def _reader(self, *, reasoning_open: bool, guarded: bool) -> Normalizer:
        request = self._request
        return normalizer(
            self._spec,
            _tools(request.tools) if request.tools is not None else _NO_TOOLS,
            reasoning_open=reasoning_open,
            allow_calls=request.tool_choice != "none",
            parallel=request.parallel_tool_calls,
            guarded=guarded,
            unmarked_guarded=guarded and self.unmarked_guarded,
        )

    def _openers(self, index: int) -> list[dict[str, Any]]:
        """Empty chunks for the missing choices below `index`: clients expect choices to start in order."""
        if index >= (decode(self._request.fields.get("n", b"1")) or 1):
            return []
        missing = [at for at in range(index) if at not in self.choices]
        return [_chunk(self._envelope(), {"index": at}, self._choice(at).speak({})) for at in missing]

    def _calls_in_reasoning(self, choice: _Choice, text: str) -> bool:
        """Whether more of the reasoning that the engine keeps apart has to be read, since a call may begin in it."""
        if choice.thoughts is not None:
            return True
        spec, request = self._spec, self._request
        if request.tools is None or request.tool_choice == "none" or spec.calls_in_reasoning == "never":
            return False
        # White space before a call is layout, so it waits for what follows.
        return bool(spec.think) and (text[-1].isspace() or any(opener[0] in text for opener in spec.openers))

    def _reasoning(self, choice: _Choice, text: str) -> list[Event]:
        """The events of more such reasoning."""
        if choice.thoughts is None:
            choice.thoughts = self._reader(reasoning_open=True, guarded=False)
            choice.thoughts.feed(_MORE)  # so that white space isn't the beginning of the reasoning
        choice.blanks = _blanks_after(choice.blanks + text)
        return choice.thoughts.feed(text)

    def _end_reasoning(self, choice: _Choice, reason: str | None, *, more: bool) -> list[Event]:
        """What is held back of such reasoning. more: something follows it, so that no call in it counts."""
        thoughts = choice.thoughts
        if thoughts is None:
            return []
        rest = thoughts.feed(f"{self._spec.think[0][1]}{_MORE}") if more else []
        rest += thoughts.finish(reason)
        if thoughts.called:
            return rest
        choice.thoughts = None
        blanks, choice.blanks = choice.blanks, ""
        kept: list[Event] = [event for event in rest if isinstance(event, ReasoningDelta)]
        return [*kept, ReasoningDelta(blanks)] if blanks else kept

    def _native(self, choice: _Choice) -> NativeCalls:
        if choice.native is None:
            request, forwards = self._request, self._spec.unknown_tools == "forward"
            known = _tools(request.tools) if request.tools is not None else _NO_TOOLS
            choice.native = NativeCalls(
                choice.indices,
                lambda name: bool(name) and (forwards or name in known),
                choice.normalizer,
                allow=request.tool_choice != "none",
                parallel=request.parallel_tool_calls,
                piecewise=self.guarded,
            )
        return choice.native

    # Streamed

    def feed(self, payloads: list[bytes], out: list[bytes]) -> None:
        """Appends the clean payloads to `out`. Raises as `passes` does."""
        for payload in payloads:
            if self.passes(payload, out):
                out.append(payload)

    def passes(self, payload: bytes, out: list[bytes]) -> bool:
        """Returns True if the next payload needs no change; otherwise appends its replacements to `out`.

        Raises EngineError for an engine's error frame, ProviderInvalidResponse for a malformed payload.
        """
        self.chunks += 1
        if len(payload) > MOST_VALUES and exceeds(payload, MOST_VALUES):
            raise ProviderInvalidResponse(f"the engine sent a chunk of more than {MOST_VALUES} JSON values")
        chunk = self._sound(payload) if self._repairs is None else None
        if chunk is None:
            return self._general(out, payload, sound=False)
        choices = chunk.choices
        choice = self._only
        if len(choices) != 1:
            return self._general(out, payload)
        view = choices[0]
        if view.index and view.index not in self.choices:
            out += map(encode, self._openers(view.index))
        delta = view.delta
        if view.finish_reason is not None or delta.tool_calls is not None:
            return self._general(out, payload)
        if choice is None or choice.index != view.index:
            choice = self._choice(view.index)
        if (delta.role is None) is not choice.spoken:
            return self._general(out, payload)
        text = delta.content
        if not text and self._reasoning_passes(choice, delta):
            choice.spoken = True
            return True
        if not text or choice.thoughts is not None:
            return self._general(out, payload)
        choice.spoken = True
        if choice.normalizer.passes(text) or (events := choice.normalizer.feed(text)) == [TextDelta(text)]:
            if (watch := choice.watch) is not None and watch.room > 0:
                watch.room -= len(text)
                watch.texts.append(text)  # a method call would cost each chunk more
            return True
        self._rewrite(out, payload, choice, events)
        return False

    def _sound(self, payload: bytes) -> Chunk | None:
        """The chunk; None if it has to be repaired first. Raises EngineError."""
        try:
            if not payload.isascii():
                # The decoder doesn't validate the UTF-8 of fields that it skips.
                payload.decode()
            chunk = decode_chunk(payload)
            if not self._first:
                check_envelope(payload)
                self._first = payload
        except BROKEN:
            return None
        if chunk.error is not None:
            raise EngineError(payload)
        if (usage := chunk.usage) is not None:
            if not isinstance(usage, dict) or not is_sound_usage(usage):
                return None
            self.usage = usage
        return chunk

    def _reasoning_passes(self, choice: _Choice, delta: Delta) -> bool:
        """Whether a delta without content needs no change."""
        thought = delta.reasoning or delta.reasoning_content
        if delta.reasoning_content != delta.reasoning or (thought and self._calls_in_reasoning(choice, thought)):
            return False
        if choice.watch is not None and thought:
            choice.watch.thought(thought)
        return True

    def finish(self, *, done: bool) -> list[bytes]:
        """Returns the payloads still missing at the end of the stream.

        done: the engine sent `[DONE]`. Raises ProviderUnavailable for a truncated stream, without `[DONE]` and without
        a finish_reason.
        """
        out: list[bytes] = []
        for body in self._repairs.rest() if self._repairs is not None else ():
            self._clean(out, body)
        open_choices = [choice for choice in self.choices.values() if not choice.finished]
        if not done and (open_choices or not self.choices):
            raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
        if not open_choices:
            self._last_usage(out)
            return out
        envelope = self._envelope()
        for choice in open_choices:
            frame = {"index": choice.index, "delta": {}}
            out += [encode(_chunk(envelope, frame, delta)) for delta in self._ending(choice, None)]
            out.append(encode(self._last(choice, envelope, frame, None)))
        self._last_usage(out)
        return out

    def _last_usage(self, out: list[bytes]) -> None:
        """Adds a usage chunk for a client that asked for one if the engine put usage beside a choice."""
        if self._owes_usage and self.usage:
            self._owes_usage = False
            out.append(encode({**self._envelope(), "choices": [], "usage": self.usage}))

    def remaining(self) -> list[bytes]:
        """Returns the text still buffered when the engine fails, so that the client loses none of it."""
        out: list[bytes] = []
        for choice in self.choices.values():
            if not choice.finished:
                deltas = self._ending(choice, "error")
                out += [encode(_chunk(self._envelope(), {"index": choice.index}, delta)) for delta in deltas]
        return out

    def _envelope(self) -> dict[str, Any]:
        """The fields around the choices in the gateway's own chunks, taken from the engine's first chunk."""
        first = decode(self._first) if self._repairs is None else self._repairs.envelope()
        return {"object": "chat.completion.chunk", **{key: first[key] for key in _SHARED_FIELDS if key in first}}

    def _rewrite(self, out: list[bytes], payload: bytes, choice: _Choice, events: list[Event]) -> None:
        """Replaces a chunk of text by the events' chunks. The first one keeps the chunk's other fields."""
        body = _decoded(payload)
        frame = body["choices"][0]
        others = {key: value for key, value in frame["delta"].items() if key != "content"}
        deltas = choice.deltas(events)
        if not deltas:
            if not others and "usage" not in body and not frame.get("logprobs"):
                return
            deltas = [{}]
        for delta in deltas:
            frame["delta"] = {**others, **delta}
            out.append(encode(body))
            others = {}
            frame.pop("logprobs", None)
            body.pop("usage", None)

    def _general(self, out: list[bytes], payload: bytes, *, sound: bool = True) -> bool:
        """`passes` for chunks with calls, a finish_reason or not exactly one choice, and for a fixup of every chunk.

        sound: the chunk is as OpenAI's clients expect it, but for the fields around its choices, perhaps.
        """
        if sound and (body := _sound_body(payload)) is not None:
            return self._clean(out, body, unchanged=True)
        if self._repairs is None:
            self._repairs = Repairs(self._request.model, self._first)
        body = self._repairs.chunk(payload)
        if body.get("error") is not None:
            raise EngineError(encode(body))
        return self._clean(out, body)

    def _clean(self, out: list[bytes], body: dict[str, Any], *, unchanged: bool = False) -> bool:
        """Appends the clean chunks for a sound one to `out`. unchanged: it may pass as it came; then returns whether it
        does."""
        if isinstance(usage := body.get("usage"), dict):
            self.usage = usage
        if not body["choices"] and self._fixup is None and unchanged:
            self._owes_usage = self._owes_usage and not usage
            return True
        if self._fixup is not None:
            unchanged = False
            self._fixup.chunk(body)
        envelope = {key: value for key, value in body.items() if key not in ("choices", "usage")}
        clean: list[dict[str, Any]] = []
        for frame in body.get("choices") or []:
            self._frame(clean, envelope, frame)
        if not body["choices"]:
            self._owes_usage = self._owes_usage and not usage
            clean.append(body)
        elif clean and "usage" in body and (usage is None or not any(map(_ends, clean))):
            clean[-1]["usage"] = usage
        if unchanged and clean == [body]:
            return True
        out += map(encode, clean)
        return False

    def _frame(self, clean: list[dict[str, Any]], envelope: dict[str, Any], frame: dict[str, Any]) -> None:
        index = frame.get("index", 0)
        if index and index not in self.choices:
            clean += self._openers(index)
        choice = self._choice(index)
        reason = frame.get("finish_reason") or None
        others = choice.speak(frame.get("delta") or {})
        _both_names(others)
        text = others.pop("content", None)
        calls = others.pop("tool_calls", None)
        events: list[Event] = []
        thought = others.get("reasoning")
        held = isinstance(thought, str) and bool(thought) and self._calls_in_reasoning(choice, thought)
        if held:
            del others["reasoning"], others["reasoning_content"]
            events += self._reasoning(choice, str(thought))
        elif thought and choice.watch is not None:
            choice.watch.thought(str(thought))
        if calls or (text and not text.isspace()):
            events += self._end_reasoning(choice, "stop", more=True)
        deltas = choice.deltas(events + (choice.normalizer.feed(text) if text else []))
        if calls:
            calls = self._native(choice).feed(calls)
            deltas += [{"tool_calls": calls}] if calls else []
        if text is not None and not text and not deltas:
            others["content"] = text
        if others and deltas:
            deltas[0] = {**others, **deltas[0]}
        elif others or (reason is None and not text and calls is None and not held):
            deltas = [others]
        if reason is None or choice.finished:
            clean += [_chunk(envelope, frame, delta) for delta in deltas]
        else:
            # The last chunk keeps its own delta unless other chunks must precede it.
            ending = self._ending(choice, reason)
            last = deltas.pop() if deltas and not ending else {}
            clean += [_chunk(envelope, frame, delta) for delta in [*deltas, *ending]]
            clean.append(self._last(choice, envelope, {**frame, "delta": last}, reason))

    def _ending(self, choice: _Choice, reason: str | None) -> list[dict[str, Any]]:
        thoughts = self._end_reasoning(choice, reason, more=False)
        deltas = choice.deltas(thoughts + choice.normalizer.finish(reason))
        if choice.native is not None:
            text, calls = choice.native.finish(reason)
            deltas += choice.deltas([TextDelta(text)]) if text else []
            deltas += [{"tool_calls": calls}] if calls else []
        return deltas

    def _last(
        self, choice: _Choice, envelope: dict[str, Any], frame: dict[str, Any], reason: str | None
    ) -> dict[str, Any]:
        choice.finished = True
        if not self.usage and isinstance(timings := envelope.get("timings"), dict):
            self.usage = _of_timings(timings)
        last = {**envelope, "choices": [{**frame, "finish_reason": choice.reason(reason)}]}
        report = self._report(choice)
        if report or choice.normalizer.called:
            # With calls read from text, also report that none needed repair.
            last["ctxgate"] = {"mended": "none", **report}
        if (fallback := self._request.fallback) is not None:
            # Progress comments may have started the stream before the fallback was known, so a header isn't enough.
            last["ctxgate"] = {**last.get("ctxgate", {}), "fallback": fallback}
        read, choice.normalizer = choice.normalizer, Normalizer()  # text after the end passes unchanged
        choice.normalizer.mended, choice.normalizer.unmarked = read.mended, read.unmarked
        choice.normalizer.called = read.called
        return last

    def _report(self, *choices: _Choice) -> dict[str, Any]:
        """The `ctxgate` extension field: repairs, warnings and the decision."""
        report: dict[str, Any] = {"healed": self.healed} if self.healed else {}
        if warnings := self._warnings(choices):
            report["warnings"] = warnings
        if (mended := _mended(choices)) != "none":
            report["mended"] = mended
        if self.decided is not None:
            report["call_probability"] = round(self.decided.probability, 4)
            report["call_threshold"] = self.decided.threshold
        return report

    # Whole

    def whole(self, payload: bytes) -> bytes:
        """Returns the clean body of a whole answer. Raises EngineError, ProviderInvalidResponse."""
        if len(payload) > MOST_VALUES:
            # Only the probabilities of other tokens are that many.
            most = MOST_TOKENS if self._request.fields.keys() & _PROBABILITIES else MOST_VALUES
            if exceeds(payload, most):
                raise ProviderInvalidResponse(f"the engine's answer has more than {most} JSON values")
        if self._fixup is None and not self.healed and self.decided is None and self._passes(payload):
            return payload
        repairs = Repairs(self._request.model)
        body = repairs.answer(payload)
        if body.get("error") is not None:
            raise EngineError(encode(body))
        if isinstance(usage := body.get("usage"), dict):
            self.usage = usage
        changed = repairs.changed or self._fixup is not None
        if self._fixup is not None:
            self._fixup.answer(body)
        for frame in body["choices"]:
            changed = self._whole_choice(frame, frame["message"], self._choice(frame["index"])) or changed
        report = self._report(*self.choices.values()) if self.choices or self.healed or self.decided else None
        if report:
            body["ctxgate"] = report
        return encode(body) if changed or report else payload

    def _passes(self, payload: bytes) -> bool:
        """Whether a whole answer is certain to need no change: plain text without calls, and a valid finish_reason."""
        try:
            if not payload.isascii():
                # The decoder doesn't validate the UTF-8 of fields that it skips.
                payload.decode()
            answer = decode_answer(payload)
        except BROKEN:
            return False
        if answer.error is not None or self._reasoning_open or not answer.choices:
            return False
        if answer.usage is not None and not is_sound_usage(answer.usage):
            return False
        watched = may_be_unread(self._request)
        for choice in answer.choices:
            message = choice.message
            if (
                choice.finish_reason not in ("stop", "length")
                or message.content is None
                or message.tool_calls
                or message.reasoning_content != message.reasoning
                or (message.reasoning and self._spec.openers and self._request.tools is not None)
                or not passes(self._spec, message.content, tools=self._request.tools is not None)
                or (watched and (not message.content or may_hold_call(message.content)))
            ):
                return False
        self.usage = answer.usage or _NOTHING
        return True

    def _whole_choice(self, frame: dict[str, Any], message: dict[str, Any], choice: _Choice) -> bool:
        """Cleans one choice in place. Returns whether that changed it."""
        reason = frame.get("finish_reason")
        text = message.get("content")
        events: list[Event] = choice.normalizer.feed(text) if isinstance(text, str) and text else []
        events += choice.normalizer.finish(reason)
        native = message.get("tool_calls")
        calls: list[dict[str, Any]] = []
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and not native and not (isinstance(text, str) and text.strip()):
            events = self._whole_reasoning(message, choice, thought, reason) or events
        changed = bool(native)
        if native:
            refused, calls = _read_native(self._native(choice), native, reason)
            if refused:
                events.append(TextDelta(refused))
                message["content"] = text or ""
        if not isinstance(text, str) or coalesce(events) != [TextDelta(text)]:
            changed = changed or bool(text) or choice.called
            _fold(message, calls, choice, events)
        if calls:
            message["tool_calls"] = calls
            message["content"] = message.get("content") or None
        elif native:
            del message["tool_calls"]
            message["content"] = message.get("content") or ""
        changed = _both_names(message) or changed
        clean_reason = choice.reason(reason)
        changed = changed or clean_reason != reason
        frame["finish_reason"] = clean_reason
        if choice.watch is not None:
            choice.watch.message(message)
        return changed

    def _whole_reasoning(
        self, message: dict[str, Any], choice: _Choice, thought: str, reason: str | None
    ) -> list[Event] | None:
        """The events of the reasoning that the engine keeps apart, if it ends with a call; the message gives it up."""
        if not self._calls_in_reasoning(choice, thought):
            return None
        events = self._reasoning(choice, thought) + self._end_reasoning(choice, reason, more=False)
        if choice.thoughts is None:
            return None
        message.pop("reasoning_content", None)
        message.pop("reasoning", None)
        return events


def _read_native(reader: NativeCalls, native: Any, reason: str | None) -> tuple[str, list[dict[str, Any]]]:
    """The calls of a whole answer that are content, and the others."""
    try:
        msgspec.convert(native, list[ToolCallDelta])
    except msgspec.ValidationError as error:
        raise ProviderInvalidResponse(f"the engine's answer has malformed tool_calls: {error}") from error
    calls = reader.feed([{**call, "index": at} for at, call in enumerate(native)])
    refused, rest = reader.finish(reason)
    calls += rest
    for call in calls:
        del call["index"]
    return refused, calls


def _fold(message: dict[str, Any], calls: list[dict[str, Any]], choice: _Choice, events: list[Event]) -> None:
    """Replaces the message's text by the events read from it. Its calls come before those of `calls`."""
    folded = fold(events)
    choice.deltas(event for event in events if isinstance(event, Warn))
    if message.get("content") is not None:
        message["content"] = folded.content
    if folded.reasoning:
        _both_names(message)
        before = message.get("reasoning_content") or ""
        message["reasoning_content"] = message["reasoning"] = before + folded.reasoning
    calls[:0] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": joined(call.name)[0], "arguments": without_half_escapes(call.arguments)},
        }
        for call in folded.tool_calls
    ]


def _sound_body(payload: bytes) -> dict[str, Any] | None:
    """The decoded chunk; None if the fields around its choices have to be repaired."""
    try:
        check_envelope(payload)
        body: dict[str, Any] = decode(payload)
    except BROKEN:
        return None
    return body


def _decoded(payload: bytes) -> Any:
    """All of a chunk, whose fields that `decode_chunk` skips may be wrong, too. Raises ProviderInvalidResponse."""
    try:
        return decode(payload)
    except BROKEN as error:
        raise ProviderInvalidResponse(f"the engine sent a malformed chunk: {error}") from error


def _blanks_after(text: str) -> str:
    """The white space at the end of a text."""
    return text[len(text.rstrip()) :]


def _ends(chunk: dict[str, Any]) -> bool:
    """Whether it ends a choice. The usage beside that leaves in a chunk of its own, see `Answer._last_usage`."""
    return any(frame["finish_reason"] for frame in chunk["choices"])


def _printable(name: str) -> str:
    """A tool's name in one word of printable characters, as a comment needs it."""
    return _UNPRINTABLE.sub("?", name)[:_LONGEST_NAME]


class EngineError(Exception):
    """The engine sent an error in an answer with status 200. `Backend.error` interprets the payload."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload


def _of_timings(timings: Mapping[str, Any]) -> Mapping[str, Any]:
    """llama.cpp's token counts as `usage`. Its last chunk has them even without `include_usage`."""
    prompt, cached, predicted = (whole_number(timings.get(key)) for key in ("prompt_n", "cache_n", "predicted_n"))
    return {
        "prompt_tokens": prompt + cached,
        "completion_tokens": predicted,
        "total_tokens": prompt + cached + predicted,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _both_names(message: dict[str, Any]) -> bool:
    """Sets both names of the reasoning, since clients read one or the other. Returns whether one was missing."""
    one, other = message.get("reasoning_content"), message.get("reasoning")
    if bool(one) == bool(other):
        return False
    message["reasoning_content"] = message["reasoning"] = one or other
    return True


def _mended(choices: Iterable[_Choice]) -> str:
    """One of `gateway.wire.chat.MENDED`."""
    read = [choice.normalizer for choice in choices]
    found = [kind for kind in ("schema", "lexical") if any(each.mended == kind for each in read)][:1]
    return ", ".join(["unmarked"] * any(each.unmarked for each in read) + found) or "none"


def _chunk(envelope: dict[str, Any], frame: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    return {**envelope, "choices": [{**frame, "delta": delta, "finish_reason": None}]}

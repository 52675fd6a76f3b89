"""Normalises a streamed answer, chunk by chunk. A chunk that needs no change passes byte for byte."""

from __future__ import annotations

from typing import Any

from gateway.answer.choice import AnswerChoice
from gateway.answer.contents import Contents
from gateway.answer.errors import EngineError
from gateway.answer.report import Report
from gateway.answer.whole import both_names
from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.wire.chat import ChatRequest, Chunk, Delta, check_envelope, decode, decode_chunk, encode
from gateway.wire.engine import Fixup
from gateway.wire.lenient import BROKEN
from gateway.wire.shape import Repairs
from gateway.wire.usage import is_sound as is_sound_usage
from gateway.wire.values import MAX_VALUES, exceeds
from normalizers import Event, TextDelta

Json = dict[str, Any]

_SHARED_FIELDS = ("id", "created", "model", "system_fingerprint")


class AnswerStream:
    """`passes` for each payload, then `finish`, or `remaining` if the engine fails."""

    __slots__ = ("_contents", "_first", "_fixup", "_owes_usage", "_repairs", "_report", "_request")

    def __init__(self, request: ChatRequest, contents: Contents, report: Report, fixup: Fixup | None) -> None:
        self._request = request
        self._contents = contents
        self._report = report
        self._fixup = fixup
        self._owes_usage = request.include_usage
        self._first = b""
        """The first payload."""
        every_chunk = fixup is not None and fixup.every_chunk
        self._repairs = Repairs(request.model) if every_chunk else None
        """Set once a payload has to be repaired; then all others go through it, too."""

    def passes(self, payload: bytes, out: list[bytes]) -> bool:
        """Returns True if the next payload needs no change; otherwise appends its replacements to `out`.

        Raises EngineError for an engine's error frame, ProviderInvalidResponse for a malformed payload.
        """
        contents = self._contents
        contents.chunks += 1
        if len(payload) > MAX_VALUES and exceeds(payload, MAX_VALUES):
            raise ProviderInvalidResponse(f"the engine sent a chunk of more than {MAX_VALUES} JSON values")
        chunk = self._sound(payload) if self._repairs is None else None
        if chunk is None:
            return self._general(out, payload, sound=False)
        choices = chunk.choices
        choice = contents.only
        if len(choices) != 1:
            return self._general(out, payload)
        view = choices[0]
        if view.index and view.index not in contents.choices:
            out += map(encode, self._openers(view.index))
        delta = view.delta
        if view.finish_reason is not None or delta.tool_calls is not None:
            return self._general(out, payload)
        if choice is None or choice.index != view.index:
            choice = contents.choice(view.index)
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
            self._contents.count(usage)
        return chunk

    def _reasoning_passes(self, choice: AnswerChoice, delta: Delta) -> bool:
        """Whether a delta without content needs no change."""
        thought = delta.reasoning or delta.reasoning_content
        if delta.reasoning_content != delta.reasoning or (thought and choice.may_call(thought)):
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
        open_choices = [choice for choice in self._contents.choices.values() if not choice.finished]
        if not done and (open_choices or not self._contents.choices):
            raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
        if not open_choices:
            self._last_usage(out)
            return out
        envelope = self._envelope()
        for choice in open_choices:
            frame = {"index": choice.index, "delta": {}}
            out += [encode(_chunk(envelope, frame, delta)) for delta in choice.ending(None)]
            out.append(encode(self._last(choice, envelope, frame, None)))
        self._last_usage(out)
        return out

    def _last_usage(self, out: list[bytes]) -> None:
        """Adds a usage chunk for a client that asked for one if the engine put usage beside a choice."""
        if self._owes_usage and self._contents.usage:
            self._owes_usage = False
            out.append(encode({**self._envelope(), "choices": [], "usage": self._contents.usage}))

    def remaining(self) -> list[bytes]:
        """Returns the text still buffered when the engine fails, so that the client loses none of it."""
        out: list[bytes] = []
        for choice in self._contents.choices.values():
            if not choice.finished:
                deltas = choice.ending("error")
                out += [encode(_chunk(self._envelope(), {"index": choice.index}, delta)) for delta in deltas]
        return out

    def _envelope(self) -> Json:
        """The fields around the choices in the gateway's own chunks, taken from the engine's first chunk."""
        first = decode(self._first) if self._repairs is None else self._repairs.envelope()
        return {"object": "chat.completion.chunk", **{key: first[key] for key in _SHARED_FIELDS if key in first}}

    def _rewrite(self, out: list[bytes], payload: bytes, choice: AnswerChoice, events: list[Event]) -> None:
        """Replaces a chunk of text by the events' chunks. The first one keeps the chunk's other fields."""
        body = _decoded(payload)
        frame = body["choices"][0]
        others = {key: value for key, value in frame["delta"].items() if key != "content"}
        deltas = choice.deltas(events)
        self._contents.weigh(choice)
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

    def _clean(self, out: list[bytes], body: Json, *, unchanged: bool = False) -> bool:
        """Appends the clean chunks for a sound one to `out`. unchanged: it may pass as it came; then returns whether it
        does."""
        if isinstance(usage := body.get("usage"), dict):
            self._contents.count(usage)
        if not body["choices"] and self._fixup is None and unchanged:
            self._owes_usage = self._owes_usage and not usage
            return True
        if self._fixup is not None:
            unchanged = False
            self._fixup.chunk(body)
        envelope = {key: value for key, value in body.items() if key not in ("choices", "usage")}
        clean: list[Json] = []
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

    def _frame(self, clean: list[Json], envelope: Json, frame: Json) -> None:
        index = frame.get("index", 0)
        if index and index not in self._contents.choices:
            clean += self._openers(index)
        choice = self._contents.choice(index)
        reason = frame.get("finish_reason") or None
        others = choice.speak(frame.get("delta") or {})
        both_names(others)
        text = others.pop("content", None)
        calls = others.pop("tool_calls", None)
        events: list[Event] = []
        thought = others.get("reasoning")
        held = isinstance(thought, str) and bool(thought) and choice.may_call(thought)
        if held:
            del others["reasoning"], others["reasoning_content"]
            events += choice.think(str(thought))
        elif thought and choice.watch is not None:
            choice.watch.thought(str(thought))
        if calls or (text and not text.isspace()):
            events += choice.end_thinking("stop", more=True)
        deltas = choice.deltas(events + (choice.normalizer.feed(text) if text else []))
        if calls:
            calls = choice.native().feed(calls)
            deltas += [{"tool_calls": calls}] if calls else []
        self._contents.weigh(choice)
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
            ending = choice.ending(reason)
            last = deltas.pop() if deltas and not ending else {}
            clean += [_chunk(envelope, frame, delta) for delta in [*deltas, *ending]]
            clean.append(self._last(choice, envelope, {**frame, "delta": last}, reason))

    def _last(self, choice: AnswerChoice, envelope: Json, frame: Json, reason: str | None) -> Json:
        self._contents.count_timings(envelope.get("timings"))
        clean = choice.reason(reason)
        self._contents.end(envelope.get("id"), clean)
        last = {**envelope, "choices": [{**frame, "finish_reason": clean}]}
        if field := self._report.last_field(choice):
            last["ctxgate"] = field
        choice.close()
        return last

    def _openers(self, index: int) -> list[Json]:
        """Empty chunks for the missing choices below `index`."""
        if index >= (decode(self._request.fields.get("n", b"1")) or 1):
            return []
        missing = self._contents.missing(index)
        return [_chunk(self._envelope(), {"index": choice.index}, choice.speak({})) for choice in missing]


def _sound_body(payload: bytes) -> Json | None:
    """The decoded chunk; None if the fields around its choices have to be repaired."""
    try:
        check_envelope(payload)
        body: Json = decode(payload)
    except BROKEN:
        return None
    return body


def _decoded(payload: bytes) -> Any:
    """All of a chunk, whose fields that `decode_chunk` skips may be wrong, too. Raises ProviderInvalidResponse."""
    try:
        return decode(payload)
    except BROKEN as error:
        raise ProviderInvalidResponse(f"the engine sent a malformed chunk: {error}") from error


def _ends(chunk: Json) -> bool:
    """Whether it ends a choice. The usage beside that leaves in a chunk of its own, see `AnswerStream._last_usage`."""
    return any(frame["finish_reason"] for frame in chunk["choices"])


def _chunk(envelope: Json, frame: Json, delta: Json) -> Json:
    return {**envelope, "choices": [{**frame, "delta": delta, "finish_reason": None}]}

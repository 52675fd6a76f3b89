"""Normalises a whole answer. One that needs no change passes byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.answer.choice import AnswerChoice
from gateway.answer.contents import NOTHING, Contents
from gateway.answer.errors import EngineError
from gateway.answer.native_calls import NativeCalls
from gateway.answer.report import Report
from gateway.answer.unread import may_be_unread, may_hold_call
from gateway.errors import ProviderInvalidResponse
from gateway.wire.body import told
from gateway.wire.chat import ToolCallDelta, decode_answer, encode
from gateway.wire.engine import Fixup
from gateway.wire.lenient import BROKEN, joined, without_half_escapes
from gateway.wire.shape import Repairs
from gateway.wire.usage import is_sound as is_sound_usage
from gateway.wire.values import MAX_TOKENS, MAX_VALUES, exceeds
from normalizers import Event, TextDelta, Warn, coalesce, fold
from normalizers.registry import passes

Json = dict[str, Any]

_PROBABILITIES = frozenset(("logprobs", "top_logprobs", "n_probs"))


def read(payload: bytes, contents: Contents, report: Report, fixup: Fixup | None) -> bytes:
    """Returns the clean body of a whole answer. Raises EngineError, ProviderInvalidResponse."""
    if len(payload) > MAX_VALUES:
        # Only the probabilities of other tokens are that many.
        maximum = MAX_TOKENS if contents.reading.request.fields.keys() & _PROBABILITIES else MAX_VALUES
        if exceeds(payload, maximum):
            raise ProviderInvalidResponse(f"the engine's answer has more than {maximum} JSON values")
    if fixup is None and not report.healed and report.decided is None and _passes(payload, contents):
        return payload
    repairs = Repairs(contents.reading.request.model)
    body = repairs.answer(payload)
    if body.get("error") is not None:
        raise EngineError(encode(body))
    if isinstance(usage := body.get("usage"), dict):
        contents.count(usage)
    changed = repairs.changed or fixup is not None
    if fixup is not None:
        fixup.answer(body)
    for frame in body["choices"]:
        changed = _choice(frame, frame["message"], contents.choice(frame["index"])) or changed
        contents.end(body.get("id"), frame["finish_reason"])
    field = report.field(*contents.choices.values())
    if field:
        body["ctxgate"] = field
    return encode(body) if changed or field else payload


def _passes(payload: bytes, contents: Contents) -> bool:
    """Whether a whole answer is certain to need no change: plain text without calls, and a valid finish_reason."""
    reading = contents.reading
    try:
        if not payload.isascii():
            # The decoder doesn't validate the UTF-8 of fields that it skips.
            payload.decode()
        answer = decode_answer(payload)
    except BROKEN:
        return False
    if answer.error is not None or reading.reasoning_open or not answer.choices:
        return False
    if answer.usage is not None and not is_sound_usage(answer.usage):
        return False
    watched = may_be_unread(reading.request)
    for choice in answer.choices:
        message = choice.message
        if (
            choice.finish_reason not in ("stop", "length")
            or message.content is None
            or message.tool_calls
            or message.reasoning_content != message.reasoning
            or (message.reasoning and reading.spec.openers and reading.request.tools is not None)
            or not passes(reading.spec, message.content, tools=reading.request.tools is not None)
            or (watched and (not message.content or may_hold_call(message.content)))
        ):
            return False
    contents.count(answer.usage or NOTHING)
    contents.end(answer.id, answer.choices[0].finish_reason or "stop")
    return True


def _choice(frame: Json, message: Json, choice: AnswerChoice) -> bool:
    """Cleans one choice in place. Returns whether that changed it."""
    reason = frame.get("finish_reason")
    text = message.get("content")
    events: list[Event] = choice.normalizer.feed(text) if isinstance(text, str) and text else []
    events += choice.normalizer.finish(reason)
    native = message.get("tool_calls")
    calls: list[Json] = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and not native and not (isinstance(text, str) and text.strip()):
        events = (_reasoning(message, choice, thought, reason) or []) + events
    changed = bool(native)
    if native:
        refused, calls = _read_native(choice.native(), native, reason)
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
    changed = both_names(message) or changed
    clean_reason = choice.reason(reason)
    changed = changed or clean_reason != reason
    frame["finish_reason"] = clean_reason
    if choice.watch is not None:
        choice.watch.message(message)
    return changed


def _reasoning(message: Json, choice: AnswerChoice, thought: str, reason: str | None) -> list[Event] | None:
    """The events of the reasoning that the engine keeps apart, if it ends with a call; the message gives it up."""
    if not choice.may_call(thought):
        return None
    events = choice.think(thought) + choice.end_thinking(reason, more=False)
    if choice.thoughts is None:
        return None
    message.pop("reasoning_content", None)
    message.pop("reasoning", None)
    return events


def _read_native(reader: NativeCalls, native: Any, reason: str | None) -> tuple[str, list[Json]]:
    """The calls of a whole answer that are content, and the others."""
    try:
        msgspec.convert(native, list[ToolCallDelta])
    except msgspec.ValidationError as error:
        raise ProviderInvalidResponse(f"the engine's answer has malformed tool_calls: {told(error)}") from error
    calls = reader.feed([{**call, "index": at} for at, call in enumerate(native)])
    refused, rest = reader.finish(reason)
    calls += rest
    for call in calls:
        del call["index"]
    return refused, calls


def _fold(message: Json, calls: list[Json], choice: AnswerChoice, events: list[Event]) -> None:
    """Replaces the message's text by the events read from it. Its calls come before those of `calls`."""
    folded = fold(events)
    choice.deltas(event for event in events if isinstance(event, Warn))
    if message.get("content") is not None:
        message["content"] = folded.content
    if folded.reasoning:
        both_names(message)
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


def both_names(message: Json) -> bool:
    """Sets both names of the reasoning, since clients read one or the other. Returns whether one was missing."""
    one, other = message.get("reasoning_content"), message.get("reasoning")
    if bool(one) == bool(other):
        return False
    message["reasoning_content"] = message["reasoning"] = one or other
    return True

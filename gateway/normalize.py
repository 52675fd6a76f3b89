"""An engine's answer made clean: payloads in, payloads out, no I/O.

Both forms of an answer go through the same `normalizers.Normalizer`, a whole one as a single piece, so the
two can't differ. What needs no change leaves as the bytes that came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any

import msgspec

from gateway.backends.base import Mender
from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.wire.chat import ChatRequest, Chunk, decode, decode_chunk, encode
from normalizers import Event, FormatSpec, Normalizer, ReasoningDelta, TextDelta, ToolArgs, ToolStart, Warn, fold
from normalizers.base import new_call_id
from normalizers.coerce import SchemaIndex
from normalizers.registry import normalizer

CLEAN_FINISH = ("stop", "tool_calls", "function_call", None)
"""Reasons that say no more than whether the answer ends in calls; any other (length, content_filter) stands."""


_SHELL: dict[str, Any] = {"object": "chat.completion.chunk"}


_NO_TOOLS = SchemaIndex(())


@lru_cache(maxsize=64)
def _tools(raw: bytes) -> SchemaIndex:
    """Agents send the same list with every turn."""
    return SchemaIndex(decode(raw))


class _NativeCalls:
    """Holds the laws over calls that the engine parsed itself, as their fragments come.

    Every call has a unique id and type, an index from `indices`, arguments that are a string and at the end at
    least `{}`.
    """

    def __init__(self, indices: Iterator[int], *, allow: bool, parallel: bool) -> None:
        self._indices = indices
        self._allow = allow
        self._parallel = parallel
        self._open: dict[int, tuple[int, str | None, list[str]]] = {}  # engine's index -> ours, engine's id, arguments
        self._last = 0
        self._ids: set[str] = set()
        self.dropped = 0
        self.called = False

    def feed(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The fragments as they should read."""
        return [clean for call in calls if (clean := self._one(call)) is not None]

    def finish(self) -> list[dict[str, Any]]:
        """The fragments that calls without arguments still need."""
        return [
            {"index": index, "function": {"arguments": "{}"}}
            for index, _, parts in self._open.values()
            if index >= 0 and not any(parts)
        ]

    def _one(self, call: dict[str, Any]) -> dict[str, Any] | None:
        function = call.get("function") or {}
        name = function.get("name") or None
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = encode(arguments).decode()
        key = call.get("index")
        engine_id = call.get("id") or None
        if not isinstance(key, int):
            key = self._last + 1 if name and self._open else self._last
        current = self._open.get(key)
        if current is None or (name and self._is_another(current, engine_id, arguments)):
            return self._start(key, name, engine_id, arguments, call)
        self._last = key
        index, _, parts = current
        if index < 0:
            return None
        if arguments:
            parts.append(arguments)
        clean = {k: v for k, v in call.items() if k not in ("id", "type")}
        clean["index"] = index
        clean["function"] = {"arguments": arguments or ""}
        return clean

    def _is_another(self, current: tuple[int, str | None, list[str]], engine_id: str | None, arguments: Any) -> bool:
        _, known_id, parts = current
        if engine_id is not None and known_id is not None:
            return engine_id != known_id
        if not arguments:
            return False
        try:
            decode("".join(parts))
        except msgspec.DecodeError:
            return False
        return True

    def _start(
        self, key: int, name: str | None, engine_id: str | None, arguments: str | None, call: dict[str, Any]
    ) -> dict[str, Any] | None:
        self._last = key
        if not self._allow or (not self._parallel and self.called):
            self._open[key] = (-1, engine_id, [arguments or ""])
            self.dropped += 1
            return None
        self.called = True
        index = next(self._indices)
        self._open[key] = (index, engine_id, [arguments or ""])
        call_id = engine_id if engine_id is not None and engine_id not in self._ids else new_call_id()
        self._ids.add(call_id)
        return {
            **call,
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {**(call.get("function") or {}), "name": name or "", "arguments": arguments or ""},
        }


class _Choice:
    """What is known of one choice of the answer."""

    __slots__ = ("finished", "index", "indices", "native", "normalizer", "shift", "warnings")

    def __init__(self, index: int, text: Normalizer) -> None:
        self.index = index
        self.normalizer = text
        self.native: _NativeCalls | None = None
        self.indices = count()
        self.shift: dict[int, int] = {}  # the normaliser's index -> the answer's
        self.finished = False
        self.warnings: list[dict[str, str]] = []

    def reason(self, engine_reason: str | None) -> str:
        if engine_reason not in CLEAN_FINISH:
            return str(engine_reason)
        called = self.normalizer.called or (self.native is not None and self.native.called)
        return "tool_calls" if called else "stop"

    def deltas(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        """Events as OpenAI deltas, neighbours of one kind joined."""
        deltas: list[dict[str, Any]] = []
        for event in events:
            last = deltas[-1] if deltas else {}
            match event:
                case TextDelta(text):
                    if "content" in last:
                        last["content"] += text
                    else:
                        deltas.append({"content": text})
                case ReasoningDelta(text):
                    if "reasoning_content" in last:
                        last["reasoning_content"] += text
                    else:
                        deltas.append({"reasoning_content": text})
                case ToolStart(index, call_id, name):
                    self.shift[index] = ours = next(self.indices)
                    function = {"name": name, "arguments": ""}
                    deltas.append(
                        {"tool_calls": [{"index": ours, "id": call_id, "type": "function", "function": function}]}
                    )
                case ToolArgs(index, json):
                    ours = self.shift[index]
                    calls = last.get("tool_calls")
                    if calls and calls[0]["index"] == ours:
                        calls[0]["function"]["arguments"] += json
                    else:
                        deltas.append({"tool_calls": [{"index": ours, "function": {"arguments": json}}]})
                case Warn(code, text):
                    self.warnings.append({"code": code, "text": text})
        return deltas


class Answer:
    """Normalises one answer: `whole` once, or `feed` for each batch of payloads and then `finish`.

    spec: the format that the model writes calls in. mender: the engine's own mistakes, put right first.
    """

    __slots__ = ("_allow", "_every_chunk", "_mender", "_only", "_parallel", "_spec", "_tools", "choices")

    def __init__(self, request: ChatRequest, spec: FormatSpec, mender: Mender | None = None) -> None:
        self._spec = spec
        self._mender = mender
        self._every_chunk = mender is not None and mender.every_chunk
        self._allow = request.tool_choice != "none"
        self._parallel = request.parallel_tool_calls
        raw = request.tools
        self._tools = _tools(raw) if raw is not None else _NO_TOOLS
        self._only: _Choice | None = None
        self.choices: dict[int, _Choice] = {}

    def _choice(self, index: int) -> _Choice:
        choice = self.choices.get(index)
        if choice is None:
            text = normalizer(self._spec, self._tools, allow_calls=self._allow, parallel=self._parallel)
            choice = self.choices[index] = _Choice(index, text)
            self._only = choice if len(self.choices) == 1 else None
        return choice

    def _native(self, choice: _Choice, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if choice.native is None:
            choice.native = _NativeCalls(choice.indices, allow=self._allow, parallel=self._parallel)
        return choice.native.feed(calls)

    # Streamed

    def feed(self, payloads: list[bytes]) -> list[bytes]:
        """The clean payloads for those that came. Raises EngineError for an error frame of the engine."""
        out: list[bytes] = []
        for payload in payloads:
            try:
                chunk = decode_chunk(payload)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ProviderInvalidResponse(f"the engine sent a malformed chunk: {error}") from error
            if chunk.error is not None:
                raise EngineError(payload)
            choices = chunk.choices
            if choices and len(choices) == 1 and not self._every_chunk:
                view = choices[0]
                delta = view.delta
                if view.finish_reason is None and delta is not None and delta.tool_calls is None:
                    text = delta.content
                    if not text:
                        out.append(payload)
                        continue
                    only = self._only
                    choice = only if only is not None and only.index == view.index else self._choice(view.index)
                    events = choice.normalizer.feed(text)
                    if len(events) == 1:
                        event = events[0]
                        if type(event) is TextDelta and event.text is text:
                            out.append(payload)
                            continue
                    self._rewrite(out, payload, choice, events)
                    continue
            self._general(out, payload, chunk)
        return out

    def finish(self, *, done: bool) -> list[bytes]:
        """The payloads that the end of the stream still owes.

        done: the engine said `[DONE]`. Raises ProviderUnavailable where it said neither that nor a finish_reason:
        the stream was cut.
        """
        open_choices = [choice for choice in self.choices.values() if not choice.finished]
        if not open_choices:
            return []
        if not done:
            raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
        out: list[bytes] = []
        for choice in open_choices:
            frame = {"index": choice.index, "delta": {}}
            out += [encode(_chunk(_SHELL, frame, delta)) for delta in self._ending(choice, None)]
            out.append(encode(self._last(choice, _SHELL, frame, None)))
        return out

    def rest(self) -> list[bytes]:
        """What was held back when the engine failed, so that the failure loses nothing that had come."""
        out: list[bytes] = []
        for choice in self.choices.values():
            if not choice.finished:
                deltas = choice.deltas(choice.normalizer.finish("error"))
                out += [encode(_chunk(_SHELL, {"index": choice.index}, delta)) for delta in deltas]
        return out

    def _rewrite(self, out: list[bytes], payload: bytes, choice: _Choice, events: list[Event]) -> None:
        """One chunk of text became something else; whatever stood beside the text stays on the first chunk."""
        body = decode(payload)
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

    def _general(self, out: list[bytes], payload: bytes, chunk: Chunk) -> None:
        """Chunks with calls, a finish_reason, several choices, none, or of an engine that needs mending."""
        if not chunk.choices and self._mender is None:
            out.append(payload)
            return
        body = decode(payload)
        if self._mender is not None:
            self._mender.chunk(body)
        shell = {key: value for key, value in body.items() if key not in ("choices", "usage")}
        clean: list[dict[str, Any]] = []
        for frame in body.get("choices") or []:
            self._frame(clean, shell, frame)
        if "usage" in body:
            if clean:
                clean[-1]["usage"] = body["usage"]
            elif not body.get("choices"):
                clean.append(body)
        if self._mender is None and clean == [body]:
            out.append(payload)
        else:
            out += map(encode, clean)

    def _frame(self, clean: list[dict[str, Any]], shell: dict[str, Any], frame: dict[str, Any]) -> None:
        choice = self._choice(frame.get("index", 0))
        reason = frame.get("finish_reason")
        others = dict(frame.get("delta") or {})
        text = others.pop("content", None)
        calls = others.pop("tool_calls", None)
        deltas = choice.deltas(choice.normalizer.feed(text)) if text else []
        if calls:
            calls = self._native(choice, calls)
            deltas += [{"tool_calls": calls}] if calls else []
        if text is not None and not text and not deltas:
            others["content"] = text
        if others and deltas:
            deltas[0] = {**others, **deltas[0]}
        elif others or (reason is None and not text and calls is None):
            deltas = [others]
        if reason is None:
            clean += [_chunk(shell, frame, delta) for delta in deltas]
        elif not choice.finished:
            # What the last chunk itself said stays on it, where nothing has to come between.
            ending = self._ending(choice, reason)
            last = deltas.pop() if deltas and not ending else {}
            clean += [_chunk(shell, frame, delta) for delta in [*deltas, *ending]]
            clean.append(self._last(choice, shell, {**frame, "delta": last}, reason))

    def _ending(self, choice: _Choice, reason: str | None) -> list[dict[str, Any]]:
        deltas = choice.deltas(choice.normalizer.finish(reason))
        owed = choice.native.finish() if choice.native is not None else []
        return [*deltas, {"tool_calls": owed}] if owed else deltas

    def _last(
        self, choice: _Choice, shell: dict[str, Any], frame: dict[str, Any], reason: str | None
    ) -> dict[str, Any]:
        choice.finished = True
        last = {**shell, "choices": [{**frame, "finish_reason": choice.reason(reason)}]}
        if told := _told(choice):
            last["ctxgate"] = told
        return last

    # Whole

    def whole(self, payload: bytes) -> bytes:
        """The clean body for a whole answer. Raises EngineError, ProviderInvalidResponse."""
        try:
            body = decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProviderInvalidResponse(f"the engine's answer is not JSON: {error}") from error
        if isinstance(body, dict) and body.get("error") is not None:
            raise EngineError(payload)
        choices = body.get("choices") if isinstance(body, dict) else None
        if not isinstance(choices, list) or not choices:
            raise ProviderInvalidResponse("the engine's answer has no choices")
        changed = self._mender is not None
        if self._mender is not None:
            self._mender.answer(body)
        told: dict[str, Any] = {}
        for position, frame in enumerate(choices):
            message = frame.get("message") if isinstance(frame, dict) else None
            if not isinstance(message, dict):
                raise ProviderInvalidResponse(f"the engine's answer has no choices[{position}].message")
            choice = self._choice(frame.get("index", position))
            changed = self._whole_choice(frame, message, choice) or changed
            told.update(_told(choice))
        if told:
            body["ctxgate"] = told
        return encode(body) if changed or told else payload

    def _whole_choice(self, frame: dict[str, Any], message: dict[str, Any], choice: _Choice) -> bool:
        """Cleans one choice in place; whether that changed it."""
        reason = frame.get("finish_reason")
        text = message.get("content")
        events: list[Event] = choice.normalizer.feed(text) if isinstance(text, str) and text else []
        events += choice.normalizer.finish(reason)
        native = message.get("tool_calls")
        calls = self._native(choice, [{**call, "index": at} for at, call in enumerate(native)]) if native else []
        for call in calls:
            del call["index"]
            call["function"]["arguments"] = call["function"]["arguments"] or "{}"
        changed = bool(native)
        if not (len(events) == 1 and isinstance(events[0], TextDelta) and events[0].text is text):
            changed = changed or bool(events)
            self._fold(message, calls, choice, events)
        if calls:
            message["tool_calls"] = calls
            message["content"] = message.get("content") or None
        elif native:
            del message["tool_calls"]
            message["content"] = message.get("content") or ""
        right = choice.reason(reason)
        changed = changed or right != reason
        frame["finish_reason"] = right
        return changed

    def _fold(self, message: dict[str, Any], calls: list[dict[str, Any]], choice: _Choice, events: list[Event]) -> None:
        """Puts events in the place of the text that they were read from."""
        folded = fold(events)
        choice.deltas(event for event in events if isinstance(event, Warn))
        if message.get("content") is not None:
            message["content"] = folded.content
        if folded.reasoning:
            message["reasoning_content"] = (message.get("reasoning_content") or "") + folded.reasoning
        for call in folded.tool_calls:
            function = {"name": call.name, "arguments": call.arguments}
            calls.append({"id": call.id, "type": "function", "function": function})


class EngineError(Exception):
    """The engine answered 200 and then an error; the backend knows what it means."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(payload[:200])
        self.payload = payload


def _told(choice: _Choice) -> dict[str, Any]:
    """What a client may want to know of the mending: the `ctxgate` extension field."""
    told: dict[str, Any] = {}
    if choice.warnings:
        told["warnings"] = choice.warnings
    if choice.normalizer.mended != "none":
        told["mended"] = choice.normalizer.mended
    return told


def _chunk(shell: dict[str, Any], frame: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    return {**shell, "choices": [{**frame, "delta": delta, "finish_reason": None}]}

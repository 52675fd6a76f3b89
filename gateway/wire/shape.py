"""Gives the chunks and answers of other servers the shape that OpenAI's API has and its clients rely on. Pure.

A server may leave out what its author's own client doesn't read, repeat what belongs into the first delta, or write an
empty text for "none". What isn't known here stays as it is.
"""

from __future__ import annotations

from time import time
from typing import Any, get_args
from uuid import uuid4

from gateway.errors import ProviderInvalidResponse
from gateway.wire.chat import LATEST, FinishReason
from gateway.wire.fold import malformed
from gateway.wire.lenient import BROKEN, LenientReader
from gateway.wire.usage import repaired_usage

Json = dict[str, Any]

ROLE = "assistant"
CHUNK, WHOLE, COMPLETION = "chat.completion.chunk", "chat.completion", "text_completion"

_REASONS = {
    **{reason: reason for reason in get_args(FinishReason)},
    **dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed", "done"), "stop"),
    **dict.fromkeys(("max_tokens", "max_length", "model_length", "token_limit"), "length"),
    **dict.fromkeys(("tool_use", "tool_call", "tool-calls"), "tool_calls"),
    **dict.fromkeys(("safety", "recitation", "content-filter"), "content_filter"),
}
"""Other servers' names of OpenAI's finish reasons, in lower case."""


class _Misshapen(Exception):
    """Something that can't be repaired. The text says what."""


class Repairs:
    """Reads and repairs the payloads of one stream, or one answer.

    model: the name for an answer that has none. first: the first payload of a stream whose beginning was sound.
    """

    __slots__ = ("_made", "_model", "_reader", "changed")

    def __init__(self, model: str | None, first: bytes = b"") -> None:
        self._reader = LenientReader()
        self._model = model or ""
        self._made: Json | None = None
        """The fields around the choices for payloads that lack them."""
        self.changed = False
        """Whether the answer needed a repair."""
        if first:
            self.chunk(first)

    def envelope(self) -> Json:
        """The fields around the choices of the gateway's own chunks."""
        return self._made or {}

    def chunk(self, payload: bytes) -> Json:
        """The payload as a `chat.completion.chunk`. An error stays as it is. Raises ProviderInvalidResponse."""
        try:
            body = self._reader.read(payload)
        except BROKEN as error:
            raise ProviderInvalidResponse(f"the engine sent a malformed chunk: {error}") from error
        try:
            return self._chunk(body)
        except _Misshapen as error:
            raise malformed(str(error)) from None

    def rest(self) -> list[Json]:
        """The last chunk of a stream that ends with half a character; [] if it doesn't."""
        rest = self._reader.rest()
        return [] if rest is None else [self._chunk(rest)]

    def answer(self, payload: bytes) -> Json:
        """The payload as a `chat.completion`. An error stays as it is. Raises ProviderInvalidResponse."""
        try:
            body = self._reader.read(payload, last=True)
        except BROKEN as error:
            raise ProviderInvalidResponse(f"the engine's answer is not JSON: {error}") from error
        if isinstance(body, dict) and body.get("error") is not None:
            return body
        if not isinstance(body, dict) or not isinstance(body.get("choices"), list) or not body["choices"]:
            raise ProviderInvalidResponse("the engine's answer has no choices")
        try:
            choices = _numbered([_whole(_choice(each, at), at) for at, each in enumerate(_objects(body, "choices"))])
        except _Misshapen as error:
            raise ProviderInvalidResponse(f"the engine's answer is malformed: {error}") from None
        made = {**self._enveloped(body, WHOLE), "choices": choices}
        self.changed = self._reader.repaired or made != body
        return made

    def completion(self, payload: bytes, *, whole: bool) -> Json:
        """The payload, whole or of a stream, as a `text_completion`. Raises ProviderInvalidResponse."""
        try:
            body = self._reader.read(payload, last=whole)
            if not isinstance(body, dict):
                raise _Misshapen("it is not an object")
            choices = [_choice(each, at) for at, each in enumerate(_objects(body, "choices"))]
        except (*BROKEN, _Misshapen) as error:
            raise ProviderInvalidResponse(f"the engine's answer is not a completion: {error}") from error
        for choice in _numbered(choices) if whole else ():
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        return {**self._enveloped(body, COMPLETION), "choices": choices}

    def _chunk(self, body: Any) -> Json:
        if not isinstance(body, dict):
            raise _Misshapen("it is not an object")
        if body.get("error") is not None:
            return body
        choices = [_streamed(_choice(each, at)) for at, each in enumerate(_objects(body, "choices"))]
        return {**self._enveloped(body, CHUNK), "choices": choices}

    def _enveloped(self, body: Json, kind: str) -> Json:
        """The body with sound fields around its choices. Those that it lacks are the same in all chunks of a stream."""
        if self._made is None:
            new = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time()), "model": self._model}
            self._made = {**new, **_sound(body)}
        made = {**body, **self._made, **_sound(body), "object": kind}
        if "usage" in body:
            made["usage"] = repaired_usage(body["usage"])
        if not isinstance(body.get("system_fingerprint"), str | None):
            del made["system_fingerprint"]
        return made


def _streamed(choice: Json) -> Json:
    delta = choice.pop("delta", None)
    if delta is None:
        delta = choice.pop("message") if isinstance(choice.get("message"), dict) else _said(choice)
    if not isinstance(delta, dict):
        raise _Misshapen("a delta is not an object")
    delta = _spoken(delta)
    if delta.get("role", ROLE) != ROLE:
        del delta["role"]
    return {**choice, "delta": delta}


def _sound(body: Json) -> Json:
    """Those fields around the choices that are as they should be."""
    found = {name: body[name] for name in ("id", "model") if isinstance(body.get(name), str) and body[name]}
    created = body.get("created")
    if isinstance(created, int | float) and not isinstance(created, bool) and 0 <= created < LATEST:
        found["created"] = int(created)
    return found


def _choice(choice: Json, position: int) -> Json:
    index, reason, logprobs = choice.get("index"), choice.get("finish_reason"), choice.get("logprobs")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if type(index) is not int or index < 0:
        index = position
    reason = _REASONS.get(reason.lower(), reason) if isinstance(reason, str) else None
    made = {**choice, "index": index, "finish_reason": reason or None}
    if logprobs is not None and not isinstance(logprobs, dict):
        made["logprobs"] = None
    return made


def _numbered(choices: list[Json]) -> list[Json]:
    """The choices of a whole answer, numbered anew if two have the same number."""
    if len({choice["index"] for choice in choices}) < len(choices):
        for at, choice in enumerate(choices):
            choice["index"] = at
    return choices


def _whole(choice: Json, position: int) -> Json:
    message = choice.pop("message", None)
    if not isinstance(message, dict):
        found = choice.pop("delta", None)
        message = found if isinstance(found, dict) else _said(choice)
        if not message:
            raise _Misshapen(f"it has no choices[{position}].message")
    return {**choice, "message": {**_spoken(message), "role": ROLE}}


def _said(choice: Json) -> Json:
    """The delta of a chunk that has the text in its choice, as text completions do."""
    return {"content": choice.pop("text")} if isinstance(choice.get("text"), str) else {}


def _spoken(delta: Json) -> Json:
    """The delta or message with texts as texts, and calls as a list of objects."""
    made = dict(delta)
    if isinstance(parts := made.get("content"), list):
        made |= _joined(parts)
    if not isinstance(made.get("content", ""), str | None):
        raise _Misshapen("its content is not a text")
    for name in ("reasoning_content", "reasoning"):
        if not isinstance(made.get(name, ""), str | None):
            del made[name]
    if isinstance(made.get("tool_calls"), dict):
        made["tool_calls"] = [made["tool_calls"]]
    if "tool_calls" in made:
        calls = [_call(each) for each in _objects(made, "tool_calls")]
        if calls or made["tool_calls"] is not None:
            made["tool_calls"] = calls
    return made


def _joined(parts: list[Any]) -> Json:
    """The text and the reasoning of content in parts, as Mistral's API has it."""
    texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
    for part in parts:
        if isinstance(part, str):
            texts["content"].append(part)
        elif isinstance(part, dict):
            thinks = part.get("type") == "thinking"
            inner = part.get("thinking" if thinks else "text")
            said = _joined(inner)["content"] if isinstance(inner, list) else inner
            if isinstance(said, str):
                texts["reasoning_content" if thinks else "content"].append(said)
    found = {name: "".join(said) for name, said in texts.items()}
    return found if found["reasoning_content"] else {"content": found["content"]}


def _call(call: Json) -> Json:
    """A call, or a fragment of one, that has nothing in place of a text. What is missing is added later."""
    made = dict(call)
    if isinstance(made.get("index"), str) and made["index"].isdecimal():
        made["index"] = int(made["index"])
    if isinstance(made.get("id"), int):
        made["id"] = str(made["id"])
    function = made.get("function")
    if function is None and isinstance(made.get("name"), str):
        made["function"] = {name: made.pop(name) for name in ("name", "arguments") if name in made}
    elif not isinstance(function, dict | None):
        raise _Misshapen("a call's function is not an object")
    elif not isinstance((function or {}).get("name", ""), str | None) or not isinstance(made.get("id", ""), str | None):
        raise _Misshapen("a call's name or id is not a text")
    return made


def _objects(body: Json, name: str) -> list[Json]:
    """A field that is a list of objects."""
    found = body.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise _Misshapen(f"its {name} are not a list of objects")
    return found

"""Translates OpenAI's chat requests to Ollama's `/api/chat`, and its answers back.

Ollama's OpenAI-compatible endpoint supports neither `num_ctx`, which sets the context window, nor `truncate: false`,
which forbids cutting a prompt.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from msgspec import Raw

from gateway.backends.openai import json_object, malformed
from gateway.backends.stopping import StopAt
from gateway.errors import ProviderInvalidRequest, ProviderUnsupportedContentBlock
from gateway.wire.chat import decode, encode
from gateway.wire.lenient import LenientReader
from gateway.wire.usage import whole_number
from gateway.wire.values import MAX_TOKENS

Json = dict[str, Any]

OPTIONS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "repeat_penalty")},
    **{name: name for name in ("frequency_penalty", "presence_penalty", "num_ctx", "num_keep", "repeat_last_n")},
    "typical_p": "typical_p",
    "max_tokens": "num_predict",
    "max_completion_tokens": "num_predict",
}
"""Request fields → Ollama's `options`. A request may set any other option in its own `options`."""

FORWARDED = ("keep_alive", "think", "logprobs", "top_logprobs")

THINK: Mapping[str, object] = {"none": False, "minimal": "low", "xhigh": "max"}
"""`reasoning_effort` → Ollama's `think`, where the values differ."""

BYTES_PER_TOKEN = 4
"""To estimate by, where Ollama counts nothing."""

BROKEN_OFF = "Ollama broke the answer off, as it does with repetition and white space without end"

_DATA = re.compile(r"data:[\w/+.-]*;base64,")


def request(model: str, fields: Mapping[str, Raw], settings: Mapping[str, object]) -> Json:
    """The body for `/api/chat`, or without messages for `/api/generate`. settings: `options` of every request.

    Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock for what Ollama doesn't support.
    """
    known: Json = {name: decode(fields[name]) for name in fields if name not in ("messages", "tools")}
    given = {name: value for name, value in known.items() if value is not None}
    options = {OPTIONS[name]: value for name, value in given.items() if name in OPTIONS}
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    options = {**settings, **options}
    if isinstance(given.get("options"), dict):
        options |= given["options"]
    body: Json = {
        "model": model,
        "stream": bool(given.get("stream")),
        "options": options,
        # By default Ollama silently cuts a long prompt, and shifts the context when it is full.
        "truncate": False,
        "shift": False,
        **{name: given[name] for name in FORWARDED if name in given},
    }
    if "messages" in fields:
        body["messages"] = _messages(decode(fields["messages"]))
    else:
        body |= _completion(given)
    if "tools" in fields:
        body["tools"] = fields["tools"]
    if (effort := given.get("reasoning_effort")) is not None:
        if not isinstance(effort, str):
            raise ProviderInvalidRequest("reasoning_effort: must be a string", param="reasoning_effort")
        body.setdefault("think", THINK.get(effort, effort))
    if (format := _format(given.get("response_format"))) is not None:
        body["format"] = format
    return body


def _completion(given: Mapping[str, Any]) -> Json:
    """The fields of a text completion."""
    if not isinstance(given["prompt"], str):
        raise ProviderInvalidRequest("prompt: Ollama takes only text, no tokens", param="prompt")
    for name in ("logprobs", "logit_bias"):
        if given.get(name):
            raise ProviderInvalidRequest(f"{name}: not supported by runtime ollama on this endpoint", param=name)
    return {name: given[name] for name in ("prompt", "suffix") if name in given}


def _format(wanted: Any) -> object:
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        named = wanted.get("json_schema")
        return named.get("schema") if isinstance(named, dict) else None
    return None


def _messages(messages: list[Json]) -> list[Json]:
    for at, message in enumerate(messages):
        if not isinstance(message.get("tool_calls") or [], list):
            where = f"messages[{at}].tool_calls"
            raise ProviderInvalidRequest(f"{where}: must be a list of calls", param=where)
    names = {
        call["id"]: call["function"].get("name", "")
        for message in messages
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict) and isinstance(call.get("id"), str) and isinstance(call.get("function"), dict)
    }
    return [_message(message, at, names) for at, message in enumerate(messages)]


def _message(message: Json, at: int, names: Mapping[str, str]) -> Json:
    role = message.get("role")
    text, media = _content(message.get("content") or message.get("refusal"), at)
    made: Json = {"role": "system" if role == "developer" else role, "content": text}
    if media:
        made["images"] = media
    if thinking := message.get("reasoning_content") or message.get("reasoning"):
        made["thinking"] = thinking
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [_call(call, f"messages[{at}].tool_calls[{place}]") for place, call in enumerate(calls)]
    if role == "tool":
        call_id = message.get("tool_call_id")
        made["tool_name"] = message.get("name") or names.get(call_id or "", "")
        made["tool_call_id"] = call_id or ""
    return made


def _content(content: Any, at: int) -> tuple[str, list[str]]:
    """The text, and images and audio as base64."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    texts, media = [], []
    for place, part in enumerate(content if isinstance(content, list) else [content]):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        where = f"messages[{at}].content[{place}]"
        if kind == "text":
            texts.append(str(part.get("text", "")))
        elif kind == "refusal":
            texts.append(str(part.get("refusal", "")))
        elif kind == "image_url":
            url = part.get("image_url", "")
            url = url.get("url", "") if isinstance(url, dict) else url
            if not isinstance(url, str) or (found := _DATA.match(url)) is None:
                raise ProviderUnsupportedContentBlock(
                    f"{where}: Ollama supports images only as data:image/…;base64 URLs", param=where
                )
            media.append(url[found.end() :])
        elif kind == "input_audio" and isinstance(part.get("input_audio"), dict):
            media.append(str(part["input_audio"].get("data", "")))
        else:
            raise ProviderUnsupportedContentBlock(
                f"{where}: Ollama doesn't support content of type {kind!r}", param=where
            )
    return "".join(texts), media


def _call(call: Any, where: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ProviderInvalidRequest(f"{where}: a call needs a function", param=where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = decode(arguments)
    return {"id": call.get("id") or "", "function": {"name": function.get("name", ""), "arguments": arguments}}


class OllamaChat:
    """Translates the answers of `/api/chat` to one request to OpenAI's format, each a choice.

    usage: add a usage chunk to a stream. window: the most tokens of a prompt, or None. stop: cuts a stream's text.
    """

    object = "chat.completion"
    piece = "chat.completion.chunk"

    def __init__(
        self, model: str, *, usage: bool, choices: int = 1, window: int | None = None, stop: StopAt | None = None
    ) -> None:
        self._stop = stop
        self._shell = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model}
        self._usage = usage
        self._choices = choices
        self._window = window
        self._index = 0
        self._json = LenientReader()
        self.done = False
        """Whether the stream's last line has arrived."""
        self._calls = 0
        self.lines = 0
        """Of the current choice so far; about one a token."""
        self._written = 0

    def whole(self, body: bytes, answers: list[Json]) -> bytes:
        """Translates whole answers. body: of the last one, which may be an error. Raises ProviderInvalidResponse."""
        if answers and "error" in answers[-1]:
            return body
        try:
            if (refusal := self._too_long(answers[0])) is not None:
                return refusal
            choices = [self._whole(index, answer) for index, answer in enumerate(answers)]
            usage = _usage(answers[0], sum(whole_number(answer.get("eval_count")) for answer in answers))
        except (AttributeError, TypeError) as error:
            raise malformed(error) from error
        return encode({**self._shell, "object": self.object, "choices": choices, "usage": usage})

    def chunks(self, line: bytes) -> list[bytes]:
        """Translates one line of a stream; the last one sets `done`. Raises ProviderInvalidResponse."""
        answer = json_object(line, self._json, MAX_TOKENS)
        if "error" in answer:
            return [line]
        try:
            return self.translated(answer)
        except (AttributeError, TypeError) as error:
            raise malformed(error) from error

    def broken_off(self, end: Json) -> list[bytes]:
        """The chunks of an end that Ollama didn't write."""
        return self.translated({**(self._json.rest() or {}), **end})

    def translated(self, answer: Json) -> list[bytes]:
        """The chunks of a line."""
        done = bool(answer.get("done"))
        if self._stop is not None and isinstance(message := answer.get("message"), dict):
            text = self._stop.feed(message.get("content") or "")
            message["content"] = text + self._stop.finish() if done else text
        delta = self._delta(answer, done=done)
        frame: Json = {"index": self._index, **delta, "finish_reason": None}
        if logprobs := answer.get("logprobs"):
            frame["logprobs"] = {"content": logprobs}
        self.lines += 1
        shell = {**self._shell, "object": self.piece}
        if not done:
            return [encode({**shell, "choices": [frame]})]
        self.done = True
        if (refusal := self._too_long(answer)) is not None:
            return [refusal]
        frame["finish_reason"] = answer.get("done_reason") or "stop"
        if self.stopped:
            frame |= {"finish_reason": "stop", "stop_reason": self._stop and self._stop.stopped_by}
        made = [encode({**shell, "choices": [frame]})]
        self._written += whole_number(answer.get("eval_count"))
        if self._usage and not self.has_more:
            made.append(encode({**shell, "choices": [], "usage": _usage(answer, self._written)}))
        return made

    @property
    def stopped(self) -> bool:
        """Whether a stop sequence has come: nothing behind it counts."""
        return self._stop is not None and self._stop.stopped_by is not None

    @property
    def has_more(self) -> bool:
        """Whether the request wants more choices than this one."""
        return self._index + 1 < self._choices

    def next_choice(self) -> None:
        self._index, self._calls, self.lines, self.done = self._index + 1, 0, 0, False

    def _too_long(self, answer: Json) -> bytes | None:
        """The error for a prompt that Ollama took though it exceeds the context window."""
        prompt = whole_number(answer.get("prompt_eval_count"))
        if self._window is None or prompt < self._window:
            return None
        return encode(
            {"error": f"request ({prompt} tokens) exceeds the available context size ({self._window} tokens)"}
        )

    def _whole(self, index: int, answer: Json) -> Json:
        message = answer.get("message") or {}
        content = message.get("content") or ""
        self._calls = 0
        translated: Json = {"role": "assistant", "content": content, **self._reasoning_and_calls(message)}
        choice = {"index": index, "message": translated, "finish_reason": answer.get("done_reason") or "stop"}
        if logprobs := answer.get("logprobs"):
            choice["logprobs"] = {"content": logprobs}
        return choice

    def _delta(self, answer: Json, *, done: bool) -> Json:
        message = answer.get("message") or {}
        text = message.get("content") or ""
        delta: Json = self._reasoning_and_calls(message)
        if text or not (delta or done):
            delta["content"] = text
        return {"delta": delta if self.lines else {"role": "assistant", **delta}}

    def _reasoning_and_calls(self, message: Json) -> Json:
        fields: Json = {}
        if thinking := message.get("thinking"):
            fields["reasoning_content"] = thinking
        calls = []
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            arguments = encode(function.get("arguments") or {}).decode()
            named = {"name": function.get("name", ""), "arguments": arguments}
            calls.append({"index": self._calls, "id": call.get("id") or "", "type": "function", "function": named})
            self._calls += 1
        return {**fields, "tool_calls": calls} if calls else fields


class Completion(OllamaChat):
    """The same for answers of `/api/generate`, as those of OpenAI's `/v1/completions`."""

    object = piece = "text_completion"

    def _whole(self, index: int, answer: Json) -> Json:
        return {"index": index, **self._delta(answer, done=True), "finish_reason": answer.get("done_reason") or "stop"}

    def _delta(self, answer: Json, *, done: bool) -> Json:
        return {"text": answer.get("response") or "", "logprobs": None}


def _usage(answer: Json, completion: int) -> Json:
    prompt = whole_number(answer.get("prompt_eval_count"))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

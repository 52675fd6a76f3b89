"""Reads Ollama's requests and translates them to chat requests."""

from __future__ import annotations

import base64
import math
import re
from collections import deque
from typing import Any

import msgspec
from msgspec import Struct

from gateway.errors import ProviderInvalidRequest
from gateway.wire import body
from gateway.wire.chat import encode

OPTIONS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
}
"""Ollama's options → fields of a chat request. Ignores the others (`num_ctx`, `num_gpu`, …): see config.yaml."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"\d{1,12}(?:\.\d{0,12})?|\.\d{1,12}"
_PART = re.compile(rf"({_NUMBER})({'|'.join(_UNITS)})")
_DURATION = re.compile(rf"([+-]?)(?:({_NUMBER})|((?:(?:{_NUMBER})(?:{'|'.join(_UNITS)})){{1,8}}))")

KINDS = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"))


class Function(Struct):
    name: str
    arguments: dict[str, Any] | str | None = None


class Call(Struct):
    function: Function
    id: str | None = None


class Message(Struct):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Common(Struct, kw_only=True):
    """stream: None means True."""

    model: str = ""
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: Any = None
    service_tier: str | None = None

    def fields(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields of the chat request. Raises ProviderInvalidRequest."""
        fields: dict[str, Any] = {"messages": messages, "stream": self.stream is not False}
        if self.model:
            fields["model"] = plain_name(self.model)
        if fields["stream"]:
            fields["stream_options"] = {"include_usage": True}
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        for name, value in (self.options or {}).items():
            unlimited = name == "num_predict" and isinstance(value, int | float) and value <= 0
            if name in OPTIONS and value is not None and not unlimited:
                fields[OPTIONS[name]] = value
        if isinstance(self.format, dict):
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "o", "schema": self.format}}
        elif self.format == "json":
            fields["response_format"] = {"type": "json_object"}
        elif self.format:
            raise ProviderInvalidRequest("format: must be json or a JSON schema", param="format")
        if isinstance(self.think, str):
            fields["reasoning_effort"] = self.think
        elif self.think is not None:
            fields["chat_template_kwargs"] = {"enable_thinking": self.think}
        return fields

    @property
    def kept_seconds(self) -> float | None:
        """`keep_alive` in seconds without a request; inf: for ever; None: not given. Raises ProviderInvalidRequest."""
        return None if self.keep_alive is None else _duration(self.keep_alive)


class Chat(Common):
    messages: list[Message] = []
    tools: list[dict[str, Any]] | None = None

    @classmethod
    def parse(cls, data: bytes) -> Chat:
        """Raises ProviderInvalidRequest."""
        return body.read(_chat_decoder, data)

    def chat_fields(self) -> dict[str, Any]:
        fields = self.fields(_messages(self.messages))
        if self.tools:
            fields["tools"] = self.tools
        return fields


class Generate(Common):
    """raw: send the prompt to the model without a chat template."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None
    template: str | None = None
    context: list[int] | None = None

    @classmethod
    def parse(cls, data: bytes) -> Generate:
        """Raises ProviderInvalidRequest."""
        request = body.read(_generate_decoder, data)
        if request.template:
            raise ProviderInvalidRequest("template: not supported; the model's own applies", param="template")
        if request.context:
            raise ProviderInvalidRequest("context: not supported; send the conversation to /api/chat", param="context")
        return request

    @property
    def plain(self) -> bool:
        return bool(self.raw or self.suffix)

    def chat_fields(self) -> dict[str, Any]:
        system = [Message("system", self.system)] if self.system else []
        return self.fields(_messages([*system, Message("user", self.prompt, images=self.images)]))

    def completion_fields(self) -> dict[str, Any]:
        fields = self.fields([])
        del fields["messages"]
        fields["prompt"] = self.prompt
        return fields | ({"suffix": self.suffix} if self.suffix else {})


class Embed(Struct, kw_only=True):
    """`/api/embed`, and `/api/embeddings` with its `prompt`."""

    model: str = ""
    input: str | list[str] = ""
    prompt: str | None = None
    dimensions: int | None = None
    service_tier: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> Embed:
        """Raises ProviderInvalidRequest."""
        return body.read(_embed_decoder, data)


class Named(Struct, kw_only=True):
    """`/api/show`, `pull` and `delete`; `name` is the old name of `model`. stream: None means True."""

    model: str = ""
    name: str = ""
    stream: bool | None = None

    @classmethod
    def parse(cls, data: bytes) -> Named:
        """Raises ProviderInvalidRequest."""
        return body.read(_named_decoder, data)


def _duration(value: Any) -> float:
    """A number of seconds, or a text as Go writes durations (`1h30m`, `500ms`); negative: inf."""
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        sign, bare, parts = found.groups()
        sizes = [float(number) * _UNITS[unit] for number, unit in _PART.findall(parts or "")]
        seconds = (-1 if sign == "-" else 1) * (float(bare) if bare else sum(sizes))
    if seconds is None or math.isnan(seconds):
        message = "keep_alive: must be a duration, as 5m or 1h30m, or a number of seconds; -1: for ever"
        raise ProviderInvalidRequest(message, param="keep_alive")
    return math.inf if seconds < 0 else seconds


_chat_decoder = msgspec.json.Decoder(Chat)
_generate_decoder = msgspec.json.Decoder(Generate)
_embed_decoder = msgspec.json.Decoder(Embed)
_named_decoder = msgspec.json.Decoder(Named)


def plain_name(name: str) -> str:
    """Removes the tag `:latest`, which Ollama's clients add to names without a tag."""
    return name.removesuffix(":latest")


def _messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Chat messages. Ollama's calls may lack ids; then a result belongs to the first unanswered call of its name."""
    made: list[dict[str, Any]] = []
    waiting = _Waiting([])
    for position, message in enumerate(messages):
        one: dict[str, Any] = {"role": message.role, "content": _content(message, f"messages[{position}]")}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [_call(call, f"call_{position}_{at}") for at, call in enumerate(message.tool_calls)]
            one["tool_calls"] = calls
            waiting = _Waiting(calls)
        if message.role == "tool":
            name = message.tool_name or message.name
            found = waiting.first(name)
            if call_id := message.tool_call_id or found:
                one["tool_call_id"] = call_id
            if name:
                one["name"] = name
        made.append(one)
    return made


class _Waiting:
    """The unanswered calls of one message."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self._calls = calls
        self._answered: set[int] = set()
        self._named: dict[str | None, deque[int]] = {None: deque(range(len(calls)))}
        """By name, and all under None: the places of calls that may still be unanswered, in their order."""
        for at, call in enumerate(calls):
            self._named.setdefault(call["function"]["name"], deque()).append(at)

    def first(self, name: str | None) -> str | None:
        """The id of the first one, from now on answered. name: None for any."""
        places = self._named.get(name, deque())
        while places:
            if (at := places.popleft()) not in self._answered:
                self._answered.add(at)
                id: str = self._calls[at]["id"]
                return id
        return None


def _call(call: Call, id: str) -> dict[str, Any]:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else encode(arguments or {}).decode()
    return {"id": call.id or id, "type": "function", "function": {"name": call.function.name, "arguments": text}}


def _content(message: Message, place: str) -> str | list[dict[str, Any]]:
    text = message.content or ""
    if not message.images:
        return text
    images = [_image(image, f"{place}.images[{at}]") for at, image in enumerate(message.images)]
    return [{"type": "text", "text": text}, *images]


def _image(data: str, place: str) -> dict[str, Any]:
    try:
        head = base64.b64decode(data[:64], validate=True)
    except ValueError:
        raise ProviderInvalidRequest(f"{place}: must be an image in base64", param=place) from None
    kind = next((kind for start, kind in KINDS if head.startswith(start)), "png")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}

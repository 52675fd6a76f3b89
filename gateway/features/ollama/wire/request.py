"""Reads Ollama's requests and translates them to chat requests."""

from __future__ import annotations

import base64
import math
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.errors import ProviderInvalidRequest
from gateway.features.ollama.wire import options
from gateway.features.ollama.wire.options import Warning, ignored
from gateway.wire import body
from gateway.wire.body import Name
from gateway.wire.chat import encode

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


MAX_TOP_LOGPROBS = 20
"""Ollama's limit, and OpenAI's."""


class Asked(Struct, kw_only=True):
    """What the requests for text and for vectors have in common."""

    model: Name = ""
    options: dict[str, Any] | None = None
    keep_alive: Any = None
    truncate: bool | None = None
    service_tier: str | None = None

    @property
    def kept_seconds(self) -> float | None:
        """`keep_alive` in seconds without a request; inf: for ever; None: not given. Raises ProviderInvalidRequest."""
        return None if self.keep_alive is None else _duration(self.keep_alive)

    def warnings(self, runtime: str, window: int | None) -> Iterator[Warning]:
        """What the request asks for and the model's engine doesn't get. window: of the model's context, in tokens."""
        if self.truncate:
            yield ignored("truncate", "nothing is cut: a text that is too long is refused (400)")
        yield from options.warnings(self.options, runtime, window)


def unknown_fields(kind: type[Struct], data: bytes) -> list[Warning]:
    """Warnings about the fields of a body, already read as `kind`, that Ollama's API doesn't have."""
    names: dict[str, Raw] = msgspec.json.decode(data, type=dict[str, Raw])
    return [
        ignored(name[:MAX_NAME], "Ollama's API has no such field")
        for name in [*names][:MAX_FIELDS]
        if name not in kind.__struct_encode_fields__
    ]


MAX_NAME, MAX_FIELDS = 64, 64
"""Characters of a name, and number of names, that a warning repeats: they are the client's."""


class Common(Asked, kw_only=True):
    """stream: None means True."""

    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def fields(self, messages: list[dict[str, Any]], runtime: str | None = None) -> dict[str, Any]:
        """The fields of the chat request. runtime: as for `options.fields`. Raises ProviderInvalidRequest."""
        fields: dict[str, Any] = {"messages": messages, "stream": self.stream is not False}
        if self.model:
            fields["model"] = plain_name(self.model)
        if fields["stream"]:
            fields["stream_options"] = {"include_usage": True}
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        body.check_stop((self.options or {}).get("stop"), "options.stop")
        fields |= options.fields(self.options, runtime)
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
        if self.top is not None:
            fields["logprobs"] = True
            fields |= {"top_logprobs": self.top} if self.top else {}
        return fields

    @property
    def top(self) -> int | None:
        """How many likely tokens to show in the place of each; None: no log-probabilities.

        Raises ProviderInvalidRequest.
        """
        maximum = self.top_logprobs or 0
        if not 0 <= maximum <= MAX_TOP_LOGPROBS:
            message = f"top_logprobs: must be from 0 to {MAX_TOP_LOGPROBS}"
            raise ProviderInvalidRequest(message, param="top_logprobs")
        return maximum if self.logprobs else None

    @property
    def unlimited(self) -> bool:
        """Whether the answer may be as long as it gets, whatever the model's defaults say."""
        return options.unlimited(self.options)

    def warnings(self, runtime: str, window: int | None) -> Iterator[Warning]:
        if self.shift:
            yield ignored("shift", "the context isn't shifted: an answer ends where it is full")
        if self.top_logprobs and not self.logprobs:
            yield ignored("top_logprobs", "needs `logprobs: true`")
        yield from super().warnings(runtime, window)


class Chat(Common):
    messages: list[Message] = []
    tools: list[dict[str, Any]] | None = None

    @classmethod
    def parse(cls, data: bytes) -> Chat:
        """Raises ProviderInvalidRequest."""
        return body.read(_chat_decoder, data)

    def chat_fields(self, runtime: str | None = None) -> dict[str, Any]:
        fields = self.fields(_messages(self.messages), runtime)
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
        if request.raw and request.system:
            raise ProviderInvalidRequest("system: a raw prompt has no place for it; put it into prompt", param="system")
        return request

    @property
    def plain(self) -> bool:
        return bool(self.raw or self.suffix)

    def chat_fields(self, runtime: str | None = None) -> dict[str, Any]:
        system = [Message("system", self.system)] if self.system else []
        return self.fields(_messages([*system, Message("user", self.prompt, images=self.images)]), runtime)

    def completion_fields(self, runtime: str | None = None) -> dict[str, Any]:
        """The fields for a prompt without a chat template."""
        fields = self.fields([], runtime)
        for name in ("messages", "chat_template_kwargs", "reasoning_effort", "top_logprobs"):
            fields.pop(name, None)
        if self.top is not None:
            fields["logprobs"] = max(1, self.top)
        if runtime == "llama.cpp" and fields.pop("response_format", None) is not None:
            # Its endpoint for prompts drops `response_format` without a word.
            fields["json_schema"] = self.format if isinstance(self.format, dict) else {"type": "object"}
        fields["prompt"] = self.prompt
        return fields | ({"suffix": self.suffix} if self.suffix else {})

    def warnings(self, runtime: str, window: int | None) -> Iterator[Warning]:
        if self.plain:
            for name, there in (("images", self.images), ("think", self.think), ("system", self.system)):
                if there:
                    yield ignored(name, "a prompt without a chat template has no place for it")
            if self.format and runtime not in HOLDS_PROMPTS:
                yield ignored("format", f"runtime {runtime} holds only chats to a format")
        yield from super().warnings(runtime, window)


HOLDS_PROMPTS = ("llama.cpp", "ollama")
"""Runtimes that hold the answer to a prompt without a chat template to a format."""


class Embed(Asked, kw_only=True):
    """`/api/embed`, and `/api/embeddings` with its `prompt`. Without a text it only loads or unloads the model."""

    input: str | list[str] = ""
    prompt: str | None = None
    dimensions: int | None = None

    @classmethod
    def parse(cls, data: bytes) -> Embed:
        """Raises ProviderInvalidRequest."""
        request = body.read(_embed_decoder, data)
        if request.dimensions is not None and request.dimensions < 0:
            raise ProviderInvalidRequest("dimensions: must be at least 1", param="dimensions")
        return request


class Named(Struct, kw_only=True):
    """`/api/show`, `pull` and `delete`; `name` is the old name of `model`. stream: None means True."""

    model: Name = ""
    name: Name = ""
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

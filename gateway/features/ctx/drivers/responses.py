"""`openai-responses`: asks through the Responses API of the model's own server, if it has one. Stores nothing there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from gateway.backends.openai import OpenAIBackend
from gateway.core import Gateway, RequestMeter, Route
from gateway.engines import Engine
from gateway.errors import (
    GatewayError,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnavailable,
)
from gateway.features.ctx.drivers.base import Ask, NotOffered
from gateway.features.ctx.errors import TooLong
from gateway.features.ctx.events import AnswerTooLong, Event, EventWriter
from gateway.observe.request_log import LEFT, OK, outcome_of
from gateway.upstream import Response
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.sse import EventTooLarge, SSEReader

PATH = "/v1/responses"
NO_SUCH_PATH = (404, 405, 501)


class OpenAIResponses:
    async def open(self, gateway: Gateway, ask: Ask) -> ResponsesAnswering:
        if ask.model is None:
            raise NotOffered("the built-in echo has no server")
        route = gateway.route(ask.model.name)
        # Checks the request as strictly as the other driver.
        chat = ChatRequest.parse(encode({**ask.fields, "model": ask.model.name}))
        engine = route.engine
        count = route.count("ctx", stream=True)
        route.requests.hold(count, monotonic())
        try:
            backend = await (engine.requests.join() if engine is not None else route.server.backend())
        except BaseException as error:
            count.end(outcome_of(error))
            route.requests.release(count)
            raise
        try:
            if not isinstance(backend, OpenAIBackend):
                raise NotOffered(f"the runtime {ask.model.runtime} has no Responses API")
            fields = {**ask.model.defaults, **ask.fields, "model": ask.model.upstream_name}
            fields |= {name: decode(value) for name, value in chat.limit().items()}
            response = await _accepted(backend, encode(request(fields)))
        except BaseException as error:
            if not isinstance(error, NotOffered):  # the next driver counts the request
                count.end(outcome_of(error))
            if engine is not None:
                engine.requests.leave()
            route.requests.release(count)
            raise
        return ResponsesAnswering(response, backend, route, engine, ask, count)


async def _accepted(backend: OpenAIBackend, body: bytes) -> Response:
    response = await backend.upstream.request(backend.post_head(PATH), body)
    if response.status == 200:
        return response
    try:
        body = await response.read(1 << 20)
    finally:
        response.close()
    error = backend.fault(response.status, body)
    if response.status in NO_SUCH_PATH and not (isinstance(error, ProviderInvalidModel) and b"model" in body.lower()):
        raise NotOffered(f"the model's server has no {PATH}")
    raise error


class ResponsesAnswering:
    def __init__(
        self,
        response: Response,
        backend: OpenAIBackend,
        route: Route,
        engine: Engine | None,
        ask: Ask,
        count: RequestMeter,
    ) -> None:
        self._response = response
        self._backend = backend
        self._route = route
        self._engine = engine
        self._count = count
        self._sse = SSEReader()
        self._reader = StreamReader(EventWriter(ask.run, ask.limit), backend)
        self._closed = False
        self._failed: GatewayError | None = None

    @property
    def cut(self) -> bool:
        return self._reader.cut

    async def events(self) -> list[Event]:
        while not self._reader.ended:
            if self._failed is not None:
                raise self._failed
            try:
                await self._read()
            except EventTooLarge as error:
                self._failed = ProviderInvalidResponse(f"the engine's answer is malformed: {error}")
            except AnswerTooLong as error:
                self._failed = TooLong(str(error))
            except GatewayError as error:
                self._failed = error
            # The events before a failure go first.
            if events := self._reader.take():
                return events
        return []

    async def _read(self) -> None:
        data = await self._response.receive()
        if payloads := self._sse.feed(data) if data else self._sse.finish():
            self._count.came(len(payloads))
        for payload in payloads:
            self._reader.feed(payload)
        if not data and not self._reader.ended:
            raise ProviderUnavailable("the engine's stream ended before the answer did", status=502)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._count.usage = self._reader.usage
            if self._reader.ended:
                self._response.finish()
                self._count.end(OK)
            else:
                self._response.close()
                self._count.end(LEFT if self._failed is None else self._failed.category)
            if self._engine is not None:
                self._engine.requests.leave()
            self._route.requests.release(self._count)


class _Item(Struct):
    type: str = ""
    name: str = ""
    arguments: str = ""


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Answer(Struct):
    usage: _Usage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _StreamEvent(Struct):
    type: str = ""
    delta: str = ""
    item: _Item | None = None
    response: _Answer | None = None


_decode = msgspec.json.Decoder(_StreamEvent).decode


class StreamReader:
    """Translates the events of a Responses stream to canonical ones."""

    def __init__(self, writer: EventWriter, backend: OpenAIBackend) -> None:
        self._writer = writer
        self._backend = backend
        self._calls = 0
        self._events: list[Event] = []
        self.ended = False
        self.cut = False
        self.usage: Mapping[str, Any] = {}
        """Token counts, as in a chat answer."""

    def take(self) -> list[Event]:
        events, self._events = [*self._events, *self._writer.take()], []
        return events

    def feed(self, payload: bytes) -> None:
        """Adds the events of a payload. Raises GatewayError if the server reports a failure."""
        if self.ended or payload == b"[DONE]":
            return
        try:
            event = _decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProviderInvalidResponse(f"the engine sent a malformed event: {error}") from error
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._writer.text(event.delta)
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                self._writer.reasoning(event.delta)
            case "response.output_item.done" if event.item is not None and event.item.type == "function_call":
                self._writer.call(self._calls, event.item.name)
                self._writer.arguments(self._calls, event.item.arguments)
                self._calls += 1
            case "response.completed" | "response.incomplete":
                if event.response is not None and (usage := event.response.usage) is not None:
                    details = usage.input_tokens_details
                    cached = details.cached_tokens or 0 if details is not None else 0
                    self._writer.usage(usage.input_tokens, usage.output_tokens, cached)
                    tokens = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
                    self.usage = {**tokens, "prompt_tokens_details": {"cached_tokens": cached}}
                if event.response is not None and (why := event.response.incomplete_details) is not None:
                    self.cut = why.reason == "max_output_tokens"
                self._events += self._writer.finish()
                self.ended = True
            case "response.failed" | "error":
                raise self._failure(event, payload)

    def _failure(self, event: _StreamEvent, payload: bytes) -> GatewayError:
        error = event.response.error if event.response is not None else None
        return self._backend.fault(500, encode({"error": error}) if error is not None else payload)


def request(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Translates chat fields to the Responses API. Fields with the same name, and unknown ones, stay as they are."""
    made = {key: value for key, value in fields.items() if key not in _TRANSLATED and value is not None}
    made |= {"input": list(_items(fields["messages"])), "stream": True, "store": False}
    if (limit := fields.get("max_completion_tokens") or fields.get("max_tokens")) is not None:
        made["max_output_tokens"] = limit
    if tools := fields.get("tools"):
        made["tools"] = [{"type": "function", **tool["function"]} for tool in tools if "function" in tool]
    match fields.get("tool_choice"):
        case {"function": {"name": name}}:
            made["tool_choice"] = {"type": "function", "name": name}
        case str(choice):
            made["tool_choice"] = choice
    if effort := fields.get("reasoning_effort"):
        made["reasoning"] = {"effort": effort}
    match fields.get("response_format"):
        case {"type": "json_schema", "json_schema": dict(schema)}:
            made["text"] = {"format": {"type": "json_schema", **schema}}
        case {"type": str(kind)}:
            made["text"] = {"format": {"type": kind}}
    return made


_TRANSLATED = frozenset(
    {
        *("messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "reasoning_effort"),
        *("response_format", "stream", "stream_options", "n"),
    }
)


def _items(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": _text(content)}
            continue
        if content and role == "assistant":
            # llama.cpp knows an answer of its own only by this form; OpenAI takes it, too.
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            yield {"type": "message", "role": role, "content": list(_parts(role, parts))}
        elif content:
            yield {"role": role, "content": content if isinstance(content, str) else list(_parts(role, content))}
        for call in message.get("tool_calls") or ():
            yield {"type": "function_call", "call_id": call.get("id"), **call.get("function", {})}


def _parts(role: object, content: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for part in content:
        match part:
            case {"type": "text", "text": text}:
                yield {"type": "output_text" if role == "assistant" else "input_text", "text": text}
            case {"type": "image_url", "image_url": {"url": url}}:
                yield {"type": "input_image", "image_url": url}
            case _:
                raise ProviderInvalidRequest(f"openai-responses has no content part {part.get('type')!r}")


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")

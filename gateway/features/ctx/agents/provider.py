"""The provider of an agent's model: asks it through the route `agent` of its object."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import httpx
import msgspec

from gateway.core import Gateway
from gateway.errors import GatewayError
from gateway.features.agents.inprocess import BASE_URL, Transport
from gateway.features.ctx import drivers
from gateway.features.ctx.agents.rooms import ROUTE
from gateway.features.ctx.drivers.base import Answering, Ask, NotOffered
from gateway.features.ctx.errors import NoDriver
from gateway.features.ctx.events import Delta, Event, ReasoningDelta, ToolCall, UsageEvent
from gateway.features.ctx.execution import MAX_ANSWER
from gateway.features.ctx.objects import ObjectName, Triple
from gateway.features.ctx.tree import Control, find_root, read_control
from gateway.provider import OpenAIProvider
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.sse import DONE, event

CHAT = "openai-chat"


def provider(gateway: Gateway, adapter: str, model: str) -> OpenAIProvider:
    """A provider of a model's object. adapter: names the object."""
    client = httpx.AsyncClient(transport=_Routed(gateway, adapter.removeprefix(ROUTE), model), trust_env=False)
    return OpenAIProvider(BASE_URL, model, http_client=client)


class _Routed(Transport):
    def __init__(self, gateway: Gateway, object: str, model: str) -> None:
        super().__init__(gateway, "ctx")
        self._object = object
        self._model = model

    async def _chat(self, request: ChatRequest) -> httpx.Response:
        root = find_root(None, self._gateway.config)
        control = await asyncio.to_thread(read_control, Triple.of(root, ObjectName("model", self._object)))
        fields = {**control.defaults, **{name: msgspec.json.decode(raw) for name, raw in request.fields.items()}}
        for name in control.routes.drivers("agent"):
            if name == CHAT:
                # The gateway's own path, whose chunks need no translation.
                return await super()._chat(ChatRequest.parse(encode({**fields, "model": self._model}), "ctx"))
            driver = drivers.load(name)
            if driver is None:
                continue
            with suppress(NotOffered):
                answering = await driver.open(self._gateway, self._ask(control, fields))
                return httpx.Response(
                    200, headers={"content-type": "text/event-stream"}, stream=_Chunks(answering, self._model)
                )
        raise NoDriver(f"model/{self._object}: none of the drivers of its route agent can ask it")

    def _ask(self, control: Control, fields: dict[str, Any]) -> Ask:
        asked = {name: value for name, value in fields.items() if name not in ("model", "stream", "stream_options")}
        return Ask("agent", self._gateway.config.models[self._model], {**control.defaults, **asked}, MAX_ANSWER)


class _Chunks(httpx.AsyncByteStream):
    """A driver's events as a chat stream."""

    def __init__(self, answering: Answering, model: str) -> None:
        self._answering = answering
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion.chunk", "created": 0}
        self._head["model"] = model
        self._calls = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while events := await self._answering.events():
                for one in events:
                    for chunk in self._chunks(one):
                        yield event(encode({**self._head, **chunk}))
            reason = "tool_calls" if self._calls else "length" if self._answering.cut else "stop"
            yield event(encode({**self._head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
        except GatewayError as error:
            yield event(encode(error.body()))
        finally:
            self._answering.close()
        yield DONE

    def _chunks(self, one: Event) -> Iterator[dict[str, Any]]:
        match one:
            case Delta(text=text):
                yield _delta(content=text)
            case ReasoningDelta(text=text):
                yield _delta(reasoning_content=text)
            case ToolCall(name=name, arguments=arguments):
                called = {"name": name, "arguments": bytes(arguments).decode()}
                call = {"index": self._calls, "id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
                self._calls += 1
                yield _delta(tool_calls=[{**call, "function": called}])
            case UsageEvent(input_tokens=prompt, output_tokens=completion):
                usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
                yield {"choices": [], "usage": usage}

    async def aclose(self) -> None:
        self._answering.close()


def _delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}

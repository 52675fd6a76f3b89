"""A provider that asks this very gateway, in the same process: httpx without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from gateway.config import Config, Model
from gateway.config.names import DEFAULT
from gateway.core import Gateway, Run
from gateway.core.lightest import lightest
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.features.agents.settings import Rooms
from gateway.provider import Message, OpenAIProvider, Retry, RuntimeConfig, SystemMessage, UserMessage
from gateway.wire.chat import NOBODY, ApiName, Caller, ChatRequest, encode
from gateway.wire.sse import DONE, event, events

BASE_URL = "http://gateway/v1"


def provider(gateway: Gateway, model: str, api: ApiName, caller: Caller = NOBODY) -> OpenAIProvider:
    """A provider of one configured model. It needs no closing. api: who asks, for the request log."""
    client = httpx.AsyncClient(transport=Transport(gateway, api, caller), trust_env=False)
    return OpenAIProvider(BASE_URL, model, http_client=client)


async def complete(
    gateway: Gateway,
    api: ApiName,
    model: str,
    system: str,
    prompt: str,
    *,
    max_tokens: int,
    retry: Retry | None = None,
    caller: Caller = NOBODY,
) -> str:
    """Answers one prompt, without tools or history. With gateway and api given: a `tools.base.Complete`."""
    asked = provider(gateway, gateway.config.resolve(model).name, api, caller)
    messages: list[Message] = [SystemMessage(system), UserMessage(prompt)]
    return (await asked.complete(messages, config=RuntimeConfig(max_tokens=max_tokens), retry=retry)).message.text


def summary_writer(config: Config) -> Model:
    """The model that writes summaries: `rooms.tools.summary_model`, or the lightest if config.yaml has no such.

    Blocks a moment, as `lightest` does.
    """
    named = config.section(Rooms).tools.summary_model
    return config.resolve(named) if named in (DEFAULT, *config.models) else lightest(config)


class Transport(httpx.AsyncBaseTransport):
    """Answers a provider's requests with the methods of `Gateway`. Closing an answer cancels it in the engine."""

    def __init__(self, gateway: Gateway, api: ApiName, caller: Caller = NOBODY) -> None:
        self._gateway = gateway
        self._caller = caller
        self._api: ApiName = api

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            if request.method == "POST" and request.url.path == "/v1/chat/completions":
                return await self._chat(ChatRequest.parse(await request.aread(), self._api, self._caller))
            if request.method == "GET":
                return await self._models(request.url.path.removeprefix("/v1/"))
            raise ProviderInvalidRequest(f"{request.method} {request.url.path}: no such endpoint", status=404)
        except GatewayError as error:
            return httpx.Response(error.status, headers=error.headers(), content=encode(error.body()))

    async def _chat(self, request: ChatRequest) -> httpx.Response:
        run = await self._gateway.chat(request)
        if request.stream:
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Events(run))
        with run:
            return httpx.Response(200, content=await run.whole())

    async def _models(self, path: str) -> httpx.Response:
        if path == "models":
            names = self._gateway.config.models
            models = [{"id": name, "ready_path": f"models/{name}/ready"} for name in names]
            return httpx.Response(200, content=encode({"data": models}))
        await self._gateway.ready(path.removeprefix("models/").removesuffix("/ready"))
        return httpx.Response(200, content=b"{}")


class _Events(httpx.AsyncByteStream):
    def __init__(self, run: Run) -> None:
        self._run = run

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._run as run:
            try:
                while payloads := await run.payloads():
                    yield events(payloads)
            except GatewayError as error:
                yield event(encode(error.body()))
            yield DONE

    async def aclose(self) -> None:
        self._run.close()
